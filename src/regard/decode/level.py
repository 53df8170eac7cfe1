"""Sound as loud, and as noisy at least, as what models are trained on, whatever the microphone."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


class Level:
    """Samples over a peak that runs along, and a little noise; nothing is waited for.

    y_t = x_t / peak_t + dither · ε_t,   peak_t = max(|x_t|, floor, peak_{t-1} 2^(-1 / rate / half))

    So a scale of the whole sound changes nothing. What is softer than `floor` stays soft, or
    silence would be made to roar. ε is standard normal, the same each time: a model that never
    heard perfect silence would be lost in it. How the sound is cut changes nothing either.

    >>> level = Level(rate=1, half=1.0, dither=0.0)
    >>> level(torch.tensor([0.5, 0.25])), level(torch.tensor([0.0625, -1.0]))
    (tensor([1., 1.]), tensor([ 0.5000, -1.0000]))
    """

    def __init__(self, rate: int, *, half: float = 10.0, floor: float = 1e-3, dither: float = 0.03):
        self.rate, self.half, self.floor, self.dither = rate, half, floor, dither
        self.peak, self.chance = floor, np.random.default_rng(0)

    def __call__(self, samples: Float[Tensor, " sample"]) -> Float[Tensor, " sample"]:
        # a piece that outlasts the decay would leave the range of its powers
        pieces = samples.split(max(1, int(self.rate * self.half)))
        return torch.cat([self._piece(piece) for piece in pieces])

    def _piece(self, samples: Tensor) -> Tensor:
        if not len(samples):
            return samples
        x = samples.double()
        decay = 2.0 ** (-torch.arange(1, len(x) + 1) / (self.rate * self.half)).to(x)
        # over decay_t the peak never falls, so that one running maximum gives all of it
        highest = torch.cummax(x.abs() / decay, 0).values.clamp(min=self.peak)
        peak = (highest * decay).clamp(min=self.floor)
        self.peak = float(peak[-1])
        noise = torch.from_numpy(self.chance.standard_normal(len(x))).to(x)
        return (x / peak + self.dither * noise).to(samples)
