"""Sound at another rate, exactly as much of it as the new rate can hold; also as it comes."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError

ZEROS = 16  # crossings of zero on each side of the filter
ROLL = 0.94  # of the lower rate's half is passed: the filter needs room to fall
BLOCK = 8192  # outputs made together


class Resample:
    """Samples at one rate in, at another out, piece by piece; `finish` gives the rest.

    y_n = Σ_m x_m h(n · old / new - m),   h(t) = c sinc(c t) · hann(t),   c = 0.94 min(1, new / old)

    It waits for 16 samples of the slower rate, and how the sound is cut changes nothing.

    >>> half = Resample(16000, 8000)
    >>> len(half(torch.ones(16000))) + len(half.finish())
    8000
    """

    def __init__(self, old: int, new: int):
        for name, rate in (("old", old), ("new", new)):
            if not 1000 <= rate <= 1_000_000:
                raise ConfigError(f"{name}: needs 1000 to 1000000 samples a second, got {rate}")
        shared = math.gcd(old, new)
        self.up, self.down = new // shared, old // shared  # y_n stands at x's n · down / up
        self.filters = _filters(self.up, self.down)
        self.reach = self.filters.shape[1] // 2
        # nothing was before the beginning: zeros
        self.kept, self.first = torch.zeros(self.reach), -self.reach
        self.heard = self.told = 0

    def __call__(self, samples: Float[Tensor, " sample"]) -> Float[Tensor, " other"]:
        self.heard += len(samples)
        return self._take(samples, -(-(self.heard - self.reach) * self.up // self.down))

    def finish(self) -> Float[Tensor, " other"]:
        """What is left: nothing comes behind the end."""
        return self._take(torch.zeros(self.reach + 1), -(-self.heard * self.up // self.down))

    def _take(self, samples: Tensor, stop: int) -> Tensor:
        """Outputs up to `stop`, from what was kept and these."""
        self.kept = torch.cat([self.kept.to(samples), samples])
        found = [samples.new_zeros(0)]
        for at in range(self.told, stop, BLOCK):
            found.append(self._block(torch.arange(at, min(stop, at + BLOCK))))
        self.told = max(self.told, stop)
        unneeded = self.told * self.down // self.up - self.reach + 1 - self.first
        if unneeded > 0:
            self.kept, self.first = self.kept[unneeded:].clone(), self.first + unneeded
        return torch.cat(found)

    def _block(self, numbers: Tensor) -> Tensor:
        left = numbers * self.down // self.up - self.reach + 1 - self.first
        near = self.kept[left[:, None] + torch.arange(2 * self.reach)]
        return (near * self.filters[numbers * self.down % self.up].to(near)).sum(1)


@lru_cache(8)
def _filters(up: int, down: int) -> Tensor:
    """One row for each place that an output can have between two inputs, each of sum 1."""
    cut = ROLL * min(1.0, up / down)
    reach = math.ceil(ZEROS / cut)
    between = torch.arange(up, dtype=torch.float64)[:, None] / up
    t = between - torch.arange(1 - reach, reach + 1)
    window = torch.where(t.abs() < reach, torch.cos(math.pi * t / (2 * reach)) ** 2, 0.0)
    rows = torch.sinc(cut * t) * window
    return rows / rows.sum(1, keepdim=True)
