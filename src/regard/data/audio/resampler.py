"""Streaming band-limited resampling."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError

ZERO_CROSSINGS = 16  # of the sinc, on each side
ROLLOFF = 0.94  # cutoff, as a fraction of the lower Nyquist frequency
BLOCK_OUTPUTS = 8192  # outputs per block, fewer with a long filter
MAX_PHASES = 1024  # filters per pair of rates
MAX_STRIDED = 256  # phases up to which each is computed on its own
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
