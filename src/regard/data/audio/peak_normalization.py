"""Peak normalisation and dither: every recogniser hears sound at the level it was trained on."""

import math
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

DITHER = 0.03  # standard deviation of the noise that is added, for a peak of 1: -30 dB
MIN_PEAK = 1e-3  # a peak below this counts as this, or silence would be amplified to full scale
PAD_SECONDS = 1.0  # seconds of silence after the end, so that the last label has time to come out


class PeakNormalizer:
    """Samples divided by their peak, plus a little noise; `finish` returns the last ones.

    y_t = (x_t - mean) / max(peak, floor) + dither · ε_t

    Of a recording `peak` and `mean` are known from a first pass (`PeakNormalizer.from_recording`). Without them
    the peak runs along: peak_t = max(|x_t … x_{t + ahead}|, floor, peak_{t-1} 2^(-1 / rate half)).
    The `ahead` seconds are what a live stream is delayed by: with none, every onset would be at
    full scale. ε is standard normal and the same for every stream: a model that was never trained
    on digital silence would be lost in it. How the sound is split into pieces changes nothing.

    >>> level = PeakNormalizer(rate=1, half_life=1.0, lookahead=1.0, dither=0.0)
    >>> level(torch.tensor([0.5, 0.25])), level(torch.tensor([-1.0, 0.5])), level.finish()
    (tensor([1.]), tensor([ 0.2500, -1.0000]), tensor([1.]))
    >>> PeakNormalizer.from_recording(1, [torch.tensor([3.0, 1.0])], dither=0.0)(torch.tensor([3.0, 1.0]))
    tensor([ 1., -1.])
    """

    def __init__(
        self,
        rate: int,
        *,
        peak: float | None = None,
        mean: float = 0.0,
        half_life: float = 10.0,
        lookahead: float = 0.25,
        min_peak: float = MIN_PEAK,
        dither: float = DITHER,
    ):
        self.rate, self.half_life, self.min_peak, self.dither, self.mean = (
            rate,
            half_life,
            min_peak,
            dither,
            mean,
        )
        self.is_streaming = peak is None
        self.peak, self.rng = max(min_peak, peak or 0.0), np.random.default_rng(0)
        self.lookahead = round(lookahead * rate) if self.is_streaming else 0
        self.buffer = torch.zeros(0)

    @classmethod
    def from_recording(
        cls, rate: int, chunks: Iterable[Tensor], *, dither: float = DITHER
    ) -> "PeakNormalizer":
        """The level of a recording of which these are all the samples."""
        low, high, total, count = math.inf, -math.inf, 0.0, 0
        for x in chunks:
            if len(x):
                low, high = min(low, float(x.min())), max(high, float(x.max()))
                total, count = total + float(x.double().sum()), count + len(x)
        mean = total / max(1, count)
        return cls(rate, peak=max(0.0, high - mean, mean - low), mean=mean, dither=dither)

    @property
    def delay(self) -> float:
        """Seconds that the output is behind the input."""
        return self.lookahead / self.rate

    def __call__(self, samples: Float[Tensor, " sample"]) -> Float[Tensor, " ready"]:
        if not self.is_streaming:
            return self._dithered((samples.double() - self.mean) / self.peak).to(samples)
        self.buffer = torch.cat([self.buffer.to(samples), samples])
        return self._run(max(0, len(self.buffer) - self.lookahead))

    def finish(self) -> Float[Tensor, " ready"]:
        """The samples that waited for what follows them."""
        return self._run(len(self.buffer))

    def _run(self, count: int) -> Tensor:
        """The first `count` of the samples that wait."""
        # a piece that outlasts the decay would leave the range of its powers
        size = max(1, int(self.rate * self.half_life))
        found = [self.buffer[:0]]
        for at in range(0, count, size):
            last = min(count, at + size)
            x = self.buffer[at : last + self.lookahead].double().abs()
            loudest = _loudest(x, self.lookahead + 1)[: last - at]
            found.append(self._piece(self.buffer[at:last], loudest))
        self.buffer = self.buffer[count:].clone()
        return torch.cat(found)

    def _piece(self, samples: Tensor, loudest: Tensor) -> Tensor:
        decay = 2.0 ** (-torch.arange(1, len(samples) + 1) / (self.rate * self.half_life)).to(
            loudest
        )
        # divided by decay_t the peak never falls, so one running maximum gives all of it
        highest = torch.cummax(loudest / decay, 0).values.clamp(min=self.peak)
        peak = (highest * decay).clamp(min=self.min_peak)
        self.peak = float(peak[-1])
        return self._dithered(samples.double() / peak).to(samples)

    def _dithered(self, x: Tensor) -> Tensor:
        if not self.dither:
            return x
        return x + self.dither * torch.from_numpy(self.rng.standard_normal(len(x))).to(x)


def _loudest(x: Tensor, size: int) -> Tensor:
    """The maximum of each window x_t … x_{t + size - 1}, by two running maxima (van Herk 1992)."""
    blocks = F.pad(x, (0, 2 * size - len(x) % size)).unflatten(0, (-1, size))
    after = blocks.cummax(1).values.flatten()
    before = blocks.flip(1).cummax(1).values.flip(1).flatten()
    return before[: len(x)].maximum(after[size - 1 : size - 1 + len(x)])


def end_padding(normalizer: PeakNormalizer | None, rate: int) -> Float[Tensor, " sample"]:
    """The samples that end a stream: those that still wait, and a second of silence.

    >>> end_padding(None, 4)
    tensor([0., 0., 0., 0.])
    """
    silence = torch.zeros(round(PAD_SECONDS * rate))
    if normalizer is None:
        return silence
    return torch.cat([normalizer(silence + normalizer.mean), normalizer.finish()])


def normalize_recording(
    wave: Float[Tensor, " sample"], rate: int, *, dither: float = DITHER
) -> Float[Tensor, " longer"]:
    """A whole recording as a model hears it: normalised by its own peak, dithered and padded.

    >>> normalize_recording(torch.tensor([0.5, -0.5]), 2, dither=0.0)
    tensor([ 1., -1.,  0.,  0.])
    """
    level = PeakNormalizer.from_recording(rate, [wave], dither=dither)
    return torch.cat([level(wave), end_padding(level, rate).to(wave)])


def normalize_recordings(
    waves: Float[Tensor, "batch sample"],
    lengths: Int[Tensor, " batch"],
    rate: int,
    generator: torch.Generator,
    *,
    gain: Float[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch longer"], Int[Tensor, " batch"]]:
    """What `normalize_recording` makes of each of a batch, with noise of its own, for training.

    `gain` is a factor after normalisation: what a louder click in the recording would do.

    >>> waves = torch.tensor([[0.5, 0.1, 0.0]])
    >>> normalize_recordings(waves, torch.tensor([2]), 1000, rg.data.seeded_generator(0))[1]
    tensor([1002])
    """
    waves = F.pad(waves, (0, round(PAD_SECONDS * rate)))
    real = torch.arange(waves.shape[1], device=waves.device) < lengths.to(waves.device)[:, None]
    mean = (waves * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    waves = (waves - mean) * real
    waves = waves / waves.abs().amax(1, keepdim=True).clamp(min=MIN_PEAK)
    if gain is not None:
        waves = waves * gain[:, None]
    noise = torch.randn(waves.shape, generator=generator, device=waves.device)
    return waves + DITHER * noise, lengths + round(PAD_SECONDS * rate)
