"""Sound at another rate, exactly as much of it as the new rate can hold; also as it comes."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError

ZEROS = 16  # crossings of zero on each side of the filter
ROLL = 0.94  # of the lower rate's half is passed: the filter needs room to fall
BLOCK = 8192  # outputs made together, fewer where a filter is long
PHASES = 1024  # filters of a pair of rates
NUMBERS = 1 << 22  # of the products of a block: 16 MiB


class Resample:
    """Samples at one rate in, at another out, piece by piece; `finish` gives the rest.

    y_n = Σ_m x_m h(n · old / new - m),   h(t) = c sinc(c t) · hann(t),   c = 0.94 min(1, new / old)

    It waits for 16 samples of the slower rate, and how the sound is cut changes nothing. Rates with
    no large common divisor would need a filter for each of their many phases; those of 1024 are
    computed, and the others interpolated between two of them, to within 1e-6.

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
        self.filters = _filters(min(self.up, PHASES), self.up / self.down)
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
        block = max(1, min(BLOCK, NUMBERS // (2 * self.reach)))
        filters = self.filters.to(samples)
        for at in range(self.told, stop, block):
            found.append(self._block(torch.arange(at, min(stop, at + block)), filters))
        self.told = max(self.told, stop)
        unneeded = self.told * self.down // self.up - self.reach + 1 - self.first
        if unneeded > 0:
            self.kept, self.first = self.kept[unneeded:].clone(), self.first + unneeded
        return torch.cat(found)

    def _block(self, numbers: Tensor, filters: Tensor) -> Tensor:
        left = numbers * self.down // self.up - self.reach + 1 - self.first
        near = self.kept[left[:, None] + torch.arange(2 * self.reach)]
        phase = numbers * self.down % self.up
        if self.up <= PHASES:
            return (near * filters[phase]).sum(1)
        place = phase.double() * (PHASES / self.up)
        low = place.long()
        share = (place - low).to(near)[:, None]
        return (near * torch.lerp(filters[low], filters[low + 1], share)).sum(1)


@lru_cache(8)
def _filters(phases: int, ratio: float) -> Tensor:
    """One row per phase of an output between two inputs, each of sum 1; the last is phase 1."""
    cut = ROLL * min(1.0, ratio)
    reach = math.ceil(ZEROS / cut)
    between = torch.arange(phases + 1, dtype=torch.float64)[:, None] / phases
    t = between - torch.arange(1 - reach, reach + 1)
    window = torch.where(t.abs() < reach, torch.cos(math.pi * t / (2 * reach)) ** 2, 0.0)
    rows = torch.sinc(cut * t) * window
    return rows / rows.sum(1, keepdim=True)
