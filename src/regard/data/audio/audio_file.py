"""Read audio files in chunks: mono, resampled, with notes on what was changed or wrong."""

import errno
import math
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError, FileError

ZERO_CROSSINGS = 16  # of the sinc, on each side
ROLLOFF = 0.94  # cutoff, as a fraction of the lower Nyquist frequency
BLOCK_OUTPUTS = 8192  # outputs per block, fewer with a long filter
MAX_PHASES = 1024  # filters per pair of rates
MAX_STRIDED = 256  # phases up to which each is computed separately
MAX_PRODUCTS = 1 << 22  # products per block: 16 MiB


class Resampler:
    """Windowed-sinc resampler, chunk by chunk; `finish` returns the remaining samples.

    y_n = Σ_m x_m h(n · orig / new - m),  h(t) = c sinc(c t) · hann(t),  c = 0.94 min(1, new / orig)

    The latency is 16 samples of the lower rate; the result does not depend on the chunks. For
    rates without a large common divisor, 1024 filter phases are computed and the others
    interpolated, with an error below 1e-6.

    >>> half = Resampler(16000, 8000)
    >>> len(half(torch.ones(16000))) + len(half.finish())
    8000
    """

    def __init__(self, orig_rate: int, new_rate: int):
        for name, rate in (("orig_rate", orig_rate), ("new_rate", new_rate)):
            if not 1000 <= rate <= 1_000_000:
                raise ConfigError(f"{name}: needs 1000 to 1000000 Hz, got {rate}")
        shared = math.gcd(orig_rate, new_rate)
        self.up, self.down = new_rate // shared, orig_rate // shared  # y_n is at x_(n · down / up)
        self.filters = _filters(min(self.up, MAX_PHASES), self.up / self.down)
        self.half_width = self.filters.shape[1] // 2
        self.buffer, self.buffer_start = torch.zeros(self.half_width), -self.half_width
        self.received = self.emitted = 0

    def __call__(self, samples: Float[Tensor, " sample"]) -> Float[Tensor, " other"]:
        self.received += len(samples)
        return self._take(samples, -(-(self.received - self.half_width) * self.up // self.down))

    def finish(self) -> Float[Tensor, " other"]:
        """The remaining samples, as if zeros followed."""
        zeros = torch.zeros(self.half_width + 1)
        return self._take(zeros, -(-self.received * self.up // self.down))

    def _take(self, samples: Tensor, stop: int) -> Tensor:
        """Outputs up to index `stop`."""
        self.buffer = torch.cat([self.buffer.to(samples), samples])
        blocks = [samples.new_zeros(0)]
        make, block = self._block, max(1, MAX_PRODUCTS // (2 * self.half_width))
        if self.up <= MAX_STRIDED:
            make = self._strided_block
        else:
            block = min(BLOCK_OUTPUTS, block)
        filters = self.filters.to(samples)
        for at in range(self.emitted, stop, block):
            numbers = range(at, min(stop, at + block))
            blocks.append(make(numbers, filters))
        self.emitted = max(self.emitted, stop)
        unneeded = self.emitted * self.down // self.up - self.half_width + 1 - self.buffer_start
        if unneeded > 0:
            self.buffer = self.buffer[unneeded:].clone()
            self.buffer_start += unneeded
        return torch.cat(blocks)

    def _strided_block(self, numbers: range, filters: Tensor) -> Tensor:
        """Outputs of the same phase together: their inputs are a strided view."""
        out = self.buffer.new_empty(len(numbers))
        for first, n in enumerate(numbers[: self.up]):
            rows = out[first :: self.up]
            left = n * self.down // self.up - self.half_width + 1 - self.buffer_start
            start = self.buffer.storage_offset() + left
            inputs = self.buffer.as_strided((len(rows), 2 * self.half_width), (self.down, 1), start)
            rows[:] = (inputs * filters[n * self.down % self.up]).sum(1)
        return out

    def _block(self, given: range, filters: Tensor) -> Tensor:
        numbers = torch.arange(given.start, given.stop)
        left = numbers * self.down // self.up - self.half_width + 1 - self.buffer_start
        inputs = self.buffer[left[:, None] + torch.arange(2 * self.half_width)]
        phase = numbers * self.down % self.up
        if self.up <= MAX_PHASES:
            return (inputs * filters[phase]).sum(1)
        place = phase.double() * (MAX_PHASES / self.up)
        low = place.long()
        weight = (place - low).to(inputs)[:, None]
        return (inputs * torch.lerp(filters[low], filters[low + 1], weight)).sum(1)


@lru_cache(8)
def _filters(phases: int, ratio: float) -> Tensor:
    """One filter of sum 1 per phase of an output between two inputs; the last is phase 1."""
    cut = ROLLOFF * min(1.0, ratio)
    reach = math.ceil(ZERO_CROSSINGS / cut)
    between = torch.arange(phases + 1, dtype=torch.float64)[:, None] / phases
    t = between - torch.arange(1 - reach, reach + 1)
    window = torch.where(t.abs() < reach, torch.cos(math.pi * t / (2 * reach)) ** 2, 0.0)
    rows = torch.sinc(cut * t) * window
    return rows / rows.sum(1, keepdim=True)


CHUNK_SECONDS = 0.1  # at most this much is lost before a damaged part
READ_SECONDS = 10.0  # read at once for a whole recording
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


class AudioExample(NamedTuple):
    """A waveform from -1 to 1, its transcript, and the sample at which each character ends."""

    wave: Float[Tensor, " sample"]
    text: str
    rate: int
    char_ends: tuple[int, ...] = ()  # empty where unknown
