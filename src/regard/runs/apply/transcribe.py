"""Transcription of audio files by the recogniser of a run."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.data import AudioFile
from regard.decode import PrefixBeam, Transcriber
from regard.runs.run import Device, Run, model_on, require_verb
from regard.tasks import Transcript


def transcribe_run(
    run: Run,
    paths: str | Path | Sequence[str | Path],
    *,
    beam_width: int = 1,
    device: Device | None = None,
) -> list[str]:
    """The text of each audio file; see `transcribe_run_detailed`.

    >>> import tempfile, wave
    >>> path = tempfile.mkdtemp() + "/silence.wav"
    >>> with wave.open(path, "wb") as file:
    ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
    ...     file.writeframes(bytes(16000))
    >>> transcribe_run(rg.load("morse", device="cpu"), [path])
    ['']
    """
    transcripts = transcribe_run_detailed(run, paths, beam_width=beam_width, device=device)
    return [transcript.text for transcript in transcripts]


def transcribe_run_detailed(
    run: Run,
    paths: str | Path | Sequence[str | Path],
    *,
    beam_width: int = 1,
    device: Device | None = None,
) -> list[Transcript]:
    """Text, score and calibrated confidence of each audio file.

    Files are decoded chunk by chunk, as a live stream is; other sample rates are resampled and the
    peak level is normalised.

    Args:
        run: a run of a recogniser.
        paths: WAV, FLAC or OGG files.
        beam_width: of the CTC prefix beam search; 1 takes the best path.
        device: where to compute, on a copy of the model; None is where the model is.

    >>> import tempfile, wave
    >>> path = tempfile.mkdtemp() + "/silence.wav"
    >>> with wave.open(path, "wb") as file:
    ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
    ...     file.writeframes(bytes(16000))
    >>> transcribe_run_detailed(rg.load("morse", device="cpu"), [path])[0].text
    ''
    """
    transcriber = build_transcriber(run, beam_width, device=device)
    transcripts = list[Transcript]()
    for path in [paths] if isinstance(paths, str | Path) else paths:
        chunks = rechunk(open_audio(transcriber, path).chunks(), transcriber.sample_rate)
        text = "".join([transcriber.push(chunk) for chunk in chunks])
        text = (text + transcriber.finish()).strip()
        score = transcriber.score if text else -math.inf
        confidence = None if run.calibration is None else run.calibration.confidence(score)
        transcripts.append(Transcript(text, transcriber.score, confidence))
    return transcripts


def open_audio(transcriber: Transcriber, path: str | Path) -> AudioFile:
    """Open an audio file, after a first pass over it that prepares the transcriber.

    >>> open_audio(build_transcriber(rg.load("morse", device="cpu")), "nothing.wav")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nothing.wav: needs to be a sound file, got nothing there
    """
    transcriber.prepare(AudioFile(path, transcriber.sample_rate).chunks())
    return AudioFile(path, transcriber.sample_rate)


def rechunk(chunks: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """Concatenate chunks to at least `size` samples: the cost per chunk is constant.

    >>> [len(chunk) for chunk in rechunk(torch.zeros(7).split(2), 4)]
    [4, 3]
    """
    buffer, count = list[Tensor](), 0
    for chunk in chunks:
        buffer.append(chunk)
        count += len(chunk)
        if count >= size:
            yield torch.cat(buffer)
            buffer, count = [], 0
    yield torch.cat([torch.zeros(0), *buffer])


def build_transcriber(
    run: Run, beam_width: int = 1, *, normalize_peak: bool = True, device: Device | None = None
) -> Transcriber:
    """A streaming `Transcriber` with the model and tokenizer of a run.

    >>> build_transcriber(rg.load("morse", device="cpu")).sample_rate
    8000
    """
    require_verb(run, "transcribe")
    search = PrefixBeam(width=beam_width) if beam_width != 1 else None  # it checks the width
    model = model_on(run.model, device)
    return Transcriber(model, run.tokenizer, search=search, normalize_peak=normalize_peak)
