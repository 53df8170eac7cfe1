"""A trained recogniser at work: what is said in each file."""

from collections.abc import Sequence
from pathlib import Path

from regard.data import SoundFile
from regard.decode import Level, PrefixBeam, Transcriber
from regard.errors import ConfigError
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
    transcriber = hearing(run, beam)
    sounds = [sounds] if isinstance(sounds, str | Path) else sounds
    texts = list[str]()
    for sound in sounds:
        level = Level(transcriber.rate)
        pieces = SoundFile(str(sound), transcriber.rate).pieces()
        told = "".join([transcriber.hear(level(piece)) for piece in pieces])
        texts.append(told + transcriber.finish())
    return texts


def hearing(run: Run, beam: int = 1) -> Transcriber:
    """What turns sound into text by a run's model, if it is one that hears.

    >>> hearing(rg.specimen("morse")).rate
    8000
    """
    if run.tokenizer is None:
        raise ConfigError("run: needs one that hears, got one without a tokenizer; try morse")
    search = PrefixBeam(width=beam) if beam != 1 else None  # its own check of the width
    return Transcriber(run.model, run.tokenizer, search=search)
