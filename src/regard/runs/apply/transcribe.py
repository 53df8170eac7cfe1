"""A trained recogniser at work: what is said in each file, and how sure that is."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.data import AudioFile
from regard.decode import PrefixBeam, Transcriber
from regard.errors import ConfigError
from regard.runs.run import Run
from regard.tasks.recognition.transcripts import Transcript


def transcribe_run(
    run: Run, paths: str | Path | Sequence[str | Path], *, beam_width: int = 1
) -> list[str]:
    """The text of each sound file, heard piece by piece as a live sound would be.

    A sound of another rate is resampled, loudness is levelled. This is `rg.transcribe`.

    >>> import tempfile, wave
    >>> place = tempfile.mkdtemp() + "/silence.wav"
    >>> with wave.open(place, "wb") as file:
    ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
    ...     file.writeframes(bytes(16000))
    >>> transcribe_run(rg.load_pretrained("morse"), [place])
    ['']
    """
    return [found.text for found in transcribe_run_detailed(run, paths, beam_width=beam_width)]


def transcribe_run_detailed(
    run: Run, paths: str | Path | Sequence[str | Path], *, beam_width: int = 1
) -> list[Transcript]:
    """The same, each with the confidence that the run's calibration gives it.

    >>> import tempfile, wave
    >>> place = tempfile.mkdtemp() + "/silence.wav"
    >>> with wave.open(place, "wb") as file:
    ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
    ...     file.writeframes(bytes(16000))
    >>> transcribe_run_detailed(rg.load_pretrained("morse"), [place])[0].text
    ''
    """
    transcriber = build_transcriber(run, beam_width)
    paths = [paths] if isinstance(paths, str | Path) else paths
    found = list[Transcript]()
    for path in paths:
        sound = open_audio(transcriber, path)
        pieces = rechunk(sound.chunks(), transcriber.sample_rate)
        text = "".join([transcriber.push(piece) for piece in pieces])
        text = (text + transcriber.finish()).strip()
        confidence = transcript_confidence(run, transcriber.score if text else -math.inf)
        found.append(Transcript(text, transcriber.score, confidence))
    return found


def open_audio(transcriber: Transcriber, path: str | Path) -> AudioFile:
    """A sound file at its beginning, after a first pass that has prepared the transcriber for it.

    >>> open_audio(build_transcriber(rg.load_pretrained("morse")), "nothing.wav")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nothing.wav: needs to be a sound file, got nothing there
    """
    transcriber.prepare(AudioFile(path, transcriber.sample_rate).chunks())
    return AudioFile(path, transcriber.sample_rate)


def rechunk(pieces: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """The same sound in pieces of at least this size: each costs the same, small or large.

    >>> [len(piece) for piece in rechunk(torch.zeros(7).split(2), 4)]
    [4, 3]
    """
    held, count = list[Tensor](), 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        if count >= size:
            yield torch.cat(held)
            held, count = [], 0
    yield torch.cat([torch.zeros(0), *held])


def transcript_confidence(run: Run, score: float) -> float | None:
    """The probability that a transcript of this score is right; None of a run that cannot tell.

    >>> transcript_confidence(rg.load_pretrained("morse")._replace(calibration=None), -0.1) is None
    True
    """
    return None if run.calibration is None else run.calibration.confidence(score)


def build_transcriber(run: Run, beam_width: int = 1, *, normalize_peak: bool = True) -> Transcriber:
    """What turns sound into text by a run's model, if it is one that hears.

    >>> build_transcriber(rg.load_pretrained("morse")).rate
    8000
    """
    if run.tokenizer is None:
        raise ConfigError("run: needs one that hears, got one without a tokenizer; try morse")
    search = PrefixBeam(width=beam_width) if beam_width != 1 else None  # its own check of the width
    return Transcriber(run.model, run.tokenizer, search=search, normalize_peak=normalize_peak)
