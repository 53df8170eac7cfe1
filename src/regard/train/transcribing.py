"""A trained recogniser at work: what is said in each file, and how sure that is."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.data import SoundFile
from regard.decode import PrefixBeam, Transcriber
from regard.errors import ConfigError
from regard.train.evaluation_speech import Transcript
from regard.train.run import Run


def transcribe_run(
    run: Run, sounds: str | Path | Sequence[str | Path], *, beam: int = 1
) -> list[str]:
    """The text of each sound file, heard piece by piece as a live sound would be.

    A sound of another rate is resampled, loudness is levelled. This is `rg.transcribe`.

    >>> import tempfile, wave
    >>> place = tempfile.mkdtemp() + "/silence.wav"
    >>> with wave.open(place, "wb") as file:
    ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
    ...     file.writeframes(bytes(16000))
    >>> transcribe_run(rg.specimen("morse"), [place])
    ['']
    """
    return [found.text for found in transcripts_run(run, sounds, beam=beam)]


def transcripts_run(
    run: Run, sounds: str | Path | Sequence[str | Path], *, beam: int = 1
) -> list[Transcript]:
    """The same, each with the confidence that the run's calibration gives it.

    >>> import tempfile, wave
    >>> place = tempfile.mkdtemp() + "/silence.wav"
    >>> with wave.open(place, "wb") as file:
    ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
    ...     file.writeframes(bytes(16000))
    >>> transcripts_run(rg.specimen("morse"), [place])[0].text
    ''
    """
    transcriber = hearing(run, beam)
    sounds = [sounds] if isinstance(sounds, str | Path) else sounds
    found = list[Transcript]()
    for path in sounds:
        sound = open_sound(transcriber, path)
        pieces = together(sound.pieces(), transcriber.rate)
        text = "".join([transcriber.hear(piece) for piece in pieces])
        text = (text + transcriber.finish()).strip()
        confidence = confidence_of(run, transcriber.score if text else -math.inf)
        found.append(Transcript(text, transcriber.score, confidence))
    return found


def open_sound(transcriber: Transcriber, path: str | Path) -> SoundFile:
    """A sound file at its beginning, after a first pass that has prepared the transcriber for it.

    >>> open_sound(hearing(rg.specimen("morse")), "nothing.wav")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nothing.wav: needs to be a sound file, got nothing there
    """
    transcriber.prepare(SoundFile(path, transcriber.rate).pieces())
    return SoundFile(path, transcriber.rate)


def together(pieces: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """The same sound in pieces of at least this size: each costs the same, small or large.

    >>> [len(piece) for piece in together(torch.zeros(7).split(2), 4)]
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


def confidence_of(run: Run, score: float) -> float | None:
    """The probability that a transcript of this score is right; None of a run that cannot tell.

    >>> confidence_of(rg.specimen("morse")._replace(calibration=None), -0.1) is None
    True
    """
    return None if run.calibration is None else run.calibration.confidence(score)


def hearing(run: Run, beam: int = 1, *, level: bool = True) -> Transcriber:
    """What turns sound into text by a run's model, if it is one that hears.

    >>> hearing(rg.specimen("morse")).rate
    8000
    """
    if run.tokenizer is None:
        raise ConfigError("run: needs one that hears, got one without a tokenizer; try morse")
    search = PrefixBeam(width=beam) if beam != 1 else None  # its own check of the width
    return Transcriber(run.model, run.tokenizer, search=search, level=level)
