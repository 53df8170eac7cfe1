"""Peak normalisation and dither, of streams and of recordings."""

import math
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

DITHER = 0.03  # standard deviation of the added noise, for a peak of 1: -30 dB
MIN_PEAK = 1e-3  # lower bound of the peak: silence is not amplified to full scale
PAD_SECONDS = 1.0  # silence after the end, so that a causal model can emit the last label


class PeakNormalizer:
    """Divide samples by their peak and add dither, chunk by chunk; `finish` returns the last.

    y_t = (x_t - mean) / max(peak, 0.001) + dither · ε_t

    The peak and mean of a recording come from a first pass (`PeakNormalizer.from_recording`). In a
    stream, peak_t = max(|x_t … x_{t + lookahead}|, 0.001, peak_{t-1} 2^(-1 / (rate half_life))).
    ε is standard normal with a fixed seed: models are not trained on digital silence. The result
    does not depend on the chunks.

    Args:
        rate: samples per second.
        peak: of the recording; None for a stream.
        mean: of the recording.
        half_life: seconds in which the peak of a stream decays by half.
        lookahead: delay of a stream in seconds; without it every onset is at full scale.
        dither: standard deviation of the added noise.

    >>> normalize = PeakNormalizer(rate=1, half_life=1.0, lookahead=1.0, dither=0.0)
    >>> x, y = torch.tensor([0.5, 0.25]), torch.tensor([-1.0, 0.5])
    >>> normalize(x), normalize(y), normalize.finish()
    (tensor([1.]), tensor([ 0.2500, -1.0000]), tensor([1.]))
    """

    def __init__(
        self,
        rate: int,
        *,
        peak: float | None = None,
        mean: float = 0.0,
        half_life: float = 10.0,
        lookahead: float = 0.25,
        dither: float = DITHER,
    ):
        self.rate, self.half_life, self.dither, self.mean = rate, half_life, dither, mean
        self.is_streaming = peak is None
        self.peak, self.rng = max(MIN_PEAK, peak or 0.0), np.random.default_rng(0)
        self.lookahead = round(lookahead * rate) if self.is_streaming else 0
        self.buffer = torch.zeros(0)

    @classmethod
    def from_recording(
        cls, rate: int, chunks: Iterable[Tensor], *, dither: float = DITHER
    ) -> "PeakNormalizer":
        """A normalizer with the peak and mean of a recording, given all its chunks."""
        low, high, total, count = math.inf, -math.inf, 0.0, 0
        for x in chunks:
            if len(x):
                low, high = min(low, float(x.min())), max(high, float(x.max()))
                total, count = total + float(x.double().sum()), count + len(x)
        mean = total / max(1, count)
        return cls(rate, peak=max(0.0, high - mean, mean - low), mean=mean, dither=dither)

    @property
    def delay(self) -> float:
        """Latency in seconds."""
        return self.lookahead / self.rate

    def __call__(self, samples: Float[Tensor, " sample"]) -> Float[Tensor, " ready"]:
        if not self.is_streaming:
            return self._add_dither((samples.double() - self.mean) / self.peak).to(samples)
        self.buffer = torch.cat([self.buffer.to(samples), samples])
        return self._run(max(0, len(self.buffer) - self.lookahead))

    def finish(self) -> Float[Tensor, " ready"]:
        """The remaining samples, which waited for the lookahead."""
        return self._run(len(self.buffer))

    def _run(self, count: int) -> Tensor:
        """The first `count` buffered samples."""
        # in blocks of one half-life: powers of the decay would overflow
        size = max(1, int(self.rate * self.half_life))
        blocks = [self.buffer[:0]]
        for at in range(0, count, size):
            last = min(count, at + size)
            x = self.buffer[at : last + self.lookahead].double().abs()
            maxima = _sliding_max(x, self.lookahead + 1)[: last - at]
            steps = torch.arange(1, last - at + 1)
            decay = 2.0 ** (-steps / (self.rate * self.half_life)).to(maxima)
            # divided by decay_t the peak is non-decreasing: one cummax computes it
            highest = torch.cummax(maxima / decay, 0).values.clamp(min=self.peak)
            peak = (highest * decay).clamp(min=MIN_PEAK)
            self.peak = float(peak[-1])
            block = self.buffer[at:last]
            blocks.append(self._add_dither(block.double() / peak).to(block))
        self.buffer = self.buffer[count:].clone()
        return torch.cat(blocks)

    def _add_dither(self, x: Tensor) -> Tensor:
        if not self.dither:
            return x
        return x + self.dither * torch.from_numpy(self.rng.standard_normal(len(x))).to(x)


def _sliding_max(x: Tensor, size: int) -> Tensor:
    """Maximum of each window x_t … x_{t + size - 1} (van Herk 1992)."""
    blocks = F.pad(x, (0, 2 * size - len(x) % size)).unflatten(0, (-1, size))
    after = blocks.cummax(1).values.flatten()
    before = blocks.flip(1).cummax(1).values.flip(1).flatten()
    return before[: len(x)].maximum(after[size - 1 : size - 1 + len(x)])


def end_padding(normalizer: PeakNormalizer | None, rate: int) -> Float[Tensor, " sample"]:
    """The last samples of a stream: the buffered ones and a second of silence."""
    silence = torch.zeros(round(PAD_SECONDS * rate))
    if normalizer is None:
        return silence
    return torch.cat([normalizer(silence + normalizer.mean), normalizer.finish()])


def normalize_recording(
    wave: Float[Tensor, " sample"], rate: int, *, dither: float = DITHER
) -> Float[Tensor, " longer"]:
    """Peak-normalise, dither and pad a recording, as for training and inference.

    >>> normalize_recording(torch.tensor([0.5, -0.5]), 2, dither=0.0)
    tensor([ 1., -1.,  0.,  0.])
    """
    normalize = PeakNormalizer.from_recording(rate, [wave], dither=dither)
    return torch.cat([normalize(wave), end_padding(normalize, rate).to(wave)])


def normalize_recordings(
    waves: Float[Tensor, "batch sample"],
    lengths: Int[Tensor, " batch"],
    rate: int,
    generator: torch.Generator,
    *,
    gain: Float[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch longer"], Int[Tensor, " batch"]]:
    """`normalize_recording` of a padded batch, with fresh dither, for training.

    `gain` applies after normalisation, as if a click had raised the peak.
    """
    waves = F.pad(waves, (0, round(PAD_SECONDS * rate)))
    valid = torch.arange(waves.shape[1], device=waves.device) < lengths.to(waves.device)[:, None]
    mean = (waves * valid).sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp(min=1)
    waves = (waves - mean) * valid
    waves = waves / waves.abs().amax(1, keepdim=True).clamp(min=MIN_PEAK)
    if gain is not None:
        waves = waves * gain[:, None]
    noise = torch.randn(waves.shape, generator=generator, device=waves.device)
    waves = waves + DITHER * noise
    return waves, lengths + round(PAD_SECONDS * rate)
