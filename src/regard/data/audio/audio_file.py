"""Read audio files in chunks: mono, resampled, with notes on what was changed or wrong."""

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.audio.resampler import Resampler
from regard.errors import FileError

CHUNK_SECONDS = 0.1  # at most this much is lost before a damaged part
READ_SECONDS = 10.0  # read at once where the whole recording is wanted
SILENCE_PEAK = 1e-3  # of full scale; a recording below is silence


class AudioFile:
    """A WAV, FLAC, OGG or other file that libsndfile reads, in chunks at a given sample rate.

    Channels are mixed and other rates resampled; `notes` lists that and, after the last chunk,
    errors of the file. `is_complete` is False if part of it could not be read.

    >>> AudioFile("nothing.wav", 8000)
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nothing.wav: needs to be a sound file, got no such file
    """

    def __init__(self, path: str | Path, rate: int):
        import soundfile  # imported on first use: loads a C library

        self.path, self.rate, self.notes, self.is_complete = Path(path), rate, list[str](), True
        if not self.path.is_file():
            raise FileError(f"{path}: needs to be a sound file, got no such file")
        if not self.path.stat().st_size:
            raise FileError(f"{path}: needs to be a sound file, got an empty one of 0 bytes")
        try:
            self.file = soundfile.SoundFile(str(path))
        except (soundfile.LibsndfileError, OSError) as error:
            # libsndfile says "System error" for a file without permission
            got = _message(error) if os.access(path, os.R_OK) else os.strerror(errno.EACCES)
            raise FileError(
                f"{path}: needs to be WAV, FLAC or OGG, got {got}; try converting it"
            ) from error
        self.expected_samples = max(self.file.frames, _declared_samples(self.path, self.file))
        if not self.file.frames:
            self.file.close()
            raise FileError(f"{path}: needs audio, got a header and 0 samples")
        if self.file.channels > 1:
            self.notes.append(f"{self.file.channels} channels mixed to one")
        if self.file.samplerate != rate:
            self.notes.append(f"resampled from {self.file.samplerate} to {rate} Hz")

    @property
    def seconds(self) -> float:
        """Duration of the readable part."""
        return self.file.frames / self.file.samplerate

    def chunks(self, seconds: float = CHUNK_SECONDS) -> Iterator[Float[Tensor, " sample"]]:
        """The waveform, so many seconds at a time."""
        rate = self.file.samplerate
        resample = None if rate == self.rate else Resampler(rate, self.rate)
        with self.file:
            for wave in self._read(seconds):
                yield wave if resample is None else resample(wave)
        if resample is not None:
            yield resample.finish()

    def wave(self) -> Float[Tensor, " sample"]:
        """The whole waveform."""
        return torch.cat(list(self.chunks(READ_SECONDS)))

    def _read(self, seconds: float) -> Iterator[Tensor]:
        import soundfile

        least = int(CHUNK_SECONDS * self.file.samplerate)
        read, invalid, peak, size = 0, 0, 0.0, int(seconds * self.file.samplerate)
        is_damaged = False
        while True:
            try:
                if is_damaged:
                    self.file.seek(read)
                    is_damaged = False
                samples = self.file.read(size, dtype="float32", always_2d=True)
            except (soundfile.LibsndfileError, OSError) as error:
                if size > least:  # read what comes before the damaged part
                    size, is_damaged = least, True
                    continue
                self.is_complete = False
                position = f"{self._at(read)} of {self._at(self.expected_samples)}"
                self.notes.append(f"unreadable from {position} on: {_message(error)}")
                break
            if not len(samples):
                break
            with np.errstate(over="ignore", invalid="ignore"):  # counted below
                wave = torch.from_numpy(samples.mean(1))
            finite = wave.isfinite()
            read, invalid = read + len(wave), invalid + int((~finite).sum())
            wave = wave.where(finite, 0)
            peak = max(peak, float(wave.abs().max()))
            yield wave
        if invalid:
            self.notes.append(f"{invalid} samples are not finite, replaced by 0")
        if read < self.expected_samples and self.is_complete:
            self.is_complete = False
            self.notes.append(f"truncated: {self._at(read)} of {self._at(self.expected_samples)}")
        if read and peak < SILENCE_PEAK:
            self.notes.append("silence: the peak is below a thousandth of full scale")

    def _at(self, samples: int) -> str:
        return f"{samples / self.file.samplerate:.2f} s"


def _message(error: Exception) -> str:
    return str(error).rpartition(": ")[2].rstrip(".") or type(error).__name__


def _declared_samples(path: Path, file: Any) -> int:
    """Samples that the header of a WAV declares; libsndfile counts the existing ones."""
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
                # a recorder that writes to a pipe leaves the size all ones or zero
                known = frame and size < 0xFFFFFF00
                return size // frame if known else 0
            opened.seek(size + size % 2, 1)
    return 0
