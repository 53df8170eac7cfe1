"""Sound from files as a model hears it: one channel, its rate, and a word on what was changed."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.audio.resampler import Resampler
from regard.errors import FileError

CHUNK_SECONDS = 0.1  # read together: of a damaged file no more is lost before the damage
SILENCE_PEAK = 1e-3  # of full scale: below, a recording is silence


class AudioFile:
    """A WAV, FLAC, OGG or other file that libsndfile reads, in pieces, at a rate of one's own.

    Channels are mixed, other rates resampled; `notes` says so. When the pieces are over, it also
    says what was wrong with the file, and `whole` whether all of it was there.

    >>> AudioFile("nothing.wav", 8000)
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nothing.wav: needs to be a sound file, got nothing there
    """

    def __init__(self, path: str | Path, rate: int):
        import soundfile  # loads a C library: only who reads recordings waits for it

        self.path, self.rate, self.notes, self.is_complete = Path(path), rate, list[str](), True
        if not self.path.is_file():
            raise FileError(f"{path}: needs to be a sound file, got nothing there")
        if not self.path.stat().st_size:
            raise FileError(f"{path}: needs to be a sound file, got an empty one of 0 bytes")
        try:
            self.file = soundfile.SoundFile(str(path))
        except (soundfile.LibsndfileError, OSError) as error:
            raise FileError(
                f"{path}: needs to be WAV, FLAC or OGG, got {_told(error)}; try converting it"
            ) from error
        self.expected_samples = max(self.file.frames, _promised(self.path, self.file))
        if not self.file.frames:
            self.file.close()
            raise FileError(f"{path}: needs sound in it, got a header and 0 samples")
        if self.file.channels > 1:
            self.notes.append(f"{self.file.channels} channels mixed to one")
        if self.file.samplerate != rate:
            self.notes.append(f"resampled from {self.file.samplerate} to {rate} samples a second")

    @property
    def seconds(self) -> float:
        """How long it is, as far as it is there."""
        return self.file.frames / self.file.samplerate

    def chunks(self) -> Iterator[Float[Tensor, " sample"]]:
        """The sound, a tenth of a second at a time."""
        resample = None
        if self.file.samplerate != self.rate:
            resample = Resampler(self.file.samplerate, self.rate)
        with self.file:
            for wave in self._read():
                yield wave if resample is None else resample(wave)
        if resample is not None:
            yield resample.finish()

    def _read(self) -> Iterator[Tensor]:
        import soundfile

        heard, odd, loudest, size = 0, 0, 0.0, int(CHUNK_SECONDS * self.file.samplerate)
        while True:
            try:
                held = self.file.read(size, dtype="float32", always_2d=True)
            except (soundfile.LibsndfileError, OSError) as error:
                self.is_complete = False
                place = f"{self._at(heard)} of {self._at(self.expected_samples)}"
                self.notes.append(f"unreadable from {place} on: {_told(error)}")
                break
            if not len(held):
                break
            wave = torch.from_numpy(held.mean(1))
            real = wave.isfinite()
            heard, odd = heard + len(wave), odd + int((~real).sum())
            wave = wave.where(real, 0)
            loudest = max(loudest, float(wave.abs().max()))
            yield wave
        self._judge(heard, odd, loudest)

    def _judge(self, heard: int, odd: int, loudest: float) -> None:
        if odd:
            self.notes.append(f"{odd} samples are no number, heard as silence")
        if heard < self.expected_samples and self.is_complete:
            self.is_complete = False
            self.notes.append(
                f"truncated: {self._at(heard)} of {self._at(self.expected_samples)} are there"
            )
        if heard and loudest < SILENCE_PEAK:
            self.notes.append("silence: nothing is louder than a thousandth of full scale")

    def _at(self, samples: int) -> str:
        return f"{samples / self.file.samplerate:.2f} s"


def _told(error: Exception) -> str:
    return str(error).rpartition(": ")[2].rstrip(".") or type(error).__name__


def _promised(path: Path, file: Any) -> int:
    """How many samples a WAV's header speaks of; libsndfile counts those that are there."""
    if file.format not in ("WAV", "WAVEX"):
        return 0
    with path.open("rb") as opened:
        opened.seek(12)
        frame = 0
        while len(head := opened.read(8)) == 8:
            name, size = struct.unpack("<4sI", head)
            if name == b"fmt ":
                frame = struct.unpack("<12xH", opened.read(size)[:14])[0]
                continue
            if name == b"data":
                # a recorder that wrote to a pipe did not know, and wrote all ones or nothing
                known = frame and size < 0xFFFFFF00
                return size // frame if known else 0
            opened.seek(size + size % 2, 1)
    return 0
