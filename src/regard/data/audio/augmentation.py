"""Augmentation of speech: noise, VTLP, equalisation, SpecAugment, gain jitter and reverberation.

All but noise work on log-mel frames, a batch at a time.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.data.audio.audio_file import AudioExample
from regard.errors import ConfigError

LOG_MEL_FLOOR = math.log(1e-10)  # log_mel of digital silence
GAIN_JITTER_RANGE = 8.0  # nats below the loudest frame; softer frames are background
REVERB_FRAMES = 16  # length of the impulse response


@dataclass(frozen=True, kw_only=True)
class SpeechAugmentation:
    """Strength of each augmentation of training audio; 0 turns one off.

    Args:
        vtlp: largest relative stretch of the frequency axis (`augment_log_mel`).
        eq: scale of the random equalisation, in nats (`random_eq_curves`).
        spec_augment: number of frequency masks and of time masks.
        gain_jitter: largest gain of soft frames relative to the loudest (`gain_jitter`).
        reverb: largest power of the first reflection (`reverb`).

    >>> SpeechAugmentation(spec_augment=2).vtlp
    0.12
    """

    vtlp: float = 0.12
    eq: float = 3.0
    spec_augment: int = 0
    gain_jitter: float = 0.0
    reverb: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.gain_jitter <= 1:
            raise ConfigError(f"gain_jitter: needs 0 to 1, got {self.gain_jitter}")
        for name in ("vtlp", "eq", "spec_augment", "reverb"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: needs 0 or more, got {getattr(self, name)}")


def augment_speech(
    frames: Float[Tensor, "batch time mel"],
    augmentation: SpeechAugmentation,
    cpu_generator: torch.Generator,
    generator: torch.Generator,
) -> Float[Tensor, "batch time mel"]:
    """Apply gain jitter, VTLP, reverberation, equalisation and SpecAugment, in this order.

    `generator` is on the device of the frames.

    >>> x, off = torch.zeros(1, 3, 8), SpeechAugmentation(vtlp=0, eq=0)
    >>> rng = rg.data.seeded_generator(0)
    >>> torch.equal(augment_speech(x, off, rng, rng), x)
    True
    """
    x = gain_jitter(frames, augmentation.gain_jitter, generator)
    x = augment_log_mel(x, cpu_generator, vtlp=augmentation.vtlp, eq=0.0, spec_augment=0)
    x = reverb(x, augmentation.reverb, generator)
    masks = augmentation.spec_augment
    return augment_log_mel(x, cpu_generator, vtlp=0.0, eq=augmentation.eq, spec_augment=masks)


def augment_log_mel(
    frames: Float[Tensor, "batch time mel"],
    generator: torch.Generator,
    *,
    vtlp: float = 0.12,
    eq: float = 1.0,
    spec_augment: int = 2,
) -> Float[Tensor, "batch time mel"]:
    """VTLP (Jaitly and Hinton 2013), random equalisation and SpecAugment (Park et al. 2019).

    Args:
        frames: log-mel frames.
        generator: on the CPU, so that every device gets the same augmentation.
        vtlp, eq, spec_augment: as in `SpeechAugmentation`; masks are up to 6 bands or 12 frames
            wide and filled with the mean.

    >>> x = torch.arange(8.0).expand(1, 1, 8)
    >>> rng = rg.data.seeded_generator(0)
    >>> torch.equal(augment_log_mel(x, rng, vtlp=0.0, eq=0.0, spec_augment=0), x)
    True
    """
    batch, time, mels = frames.shape
    device = frames.device
    if vtlp:
        stretch = 1 + vtlp * (2 * torch.rand(batch, 1, generator=generator) - 1)
        warp = 0.5 * vtlp * (2 * torch.rand(batch, 1, generator=generator) - 1)
        line = torch.linspace(0, 1, mels)
        source = (line * stretch + warp * (math.pi * line).sin()) * (mels - 1)
        source = source.clamp(0, mels - 1)
        below = source.floor().clamp(max=mels - 2)
        weight = (source - below).to(device)[:, None]
        index = below.long().to(device)[:, None].expand(-1, time, -1)
        frames = frames.gather(2, index) * (1 - weight) + frames.gather(2, index + 1) * weight
    if eq:
        frames = frames + random_eq_curves(batch, mels, eq, generator).to(device)[:, None]
    mean = frames.mean((1, 2), keepdim=True) if spec_augment else frames
    for _ in range(spec_augment):
        frames = _mask(frames, generator, 2, 6, mean)
        frames = _mask(frames, generator, 1, 12, mean)
    return frames


def random_eq_curves(
    batch: int, mels: int, scale: float, generator: torch.Generator
) -> Float[Tensor, "batch mel"]:
    """Smooth random curves over the bands, as of different microphones.

    curve(m) = scale Σ_{n=1…5} ε_n cos(n π m / (mels - 1)) / √n
    """
    line = torch.linspace(0, math.pi, mels, device=generator.device)
    waves = torch.stack([torch.cos(n * line) / n**0.5 for n in range(1, 6)])
    return scale * torch.randn(batch, 5, generator=generator, device=generator.device) @ waves


def gain_jitter(
    x: Float[Tensor, "batch time mel"], max_gain: float, generator: torch.Generator
) -> Float[Tensor, "batch time mel"]:
    """Change the level of soft frames (consonants) relative to loud ones (vowels).

    y_t = x_t + gain (level_t - max_t level),   |gain| ≤ max_gain;   level is the mean over bands
    """
    if not max_gain:
        return x
    uniform = torch.rand(len(x), 1, 1, generator=generator, device=generator.device)
    level = x.mean(2, keepdim=True)
    is_sound = level > LOG_MEL_FLOOR + 1e-3  # silence stays silent
    below = F.avg_pool1d(level.mT, 5, 1, padding=2, count_include_pad=False).mT
    below = (below - below.amax(1, keepdim=True)).clamp(min=-GAIN_JITTER_RANGE)
    jittered = (x + max_gain * (2 * uniform - 1) * below).clamp(min=LOG_MEL_FLOOR)
    return torch.where(is_sound, jittered, x)


def reverb(
    x: Float[Tensor, "batch time mel"], max_gain: float, generator: torch.Generator
) -> Float[Tensor, "batch time mel"]:
    """Reverberation with an exponentially decaying power response, in 60% of the examples.

    exp y_t = exp x_t + gain Σ_{n=1…15} decay^(n-1) exp x_{t-n},   0 ≤ gain ≤ max_gain
    """
    uniforms = torch.rand(3, len(x), 1, generator=generator, device=generator.device)
    if not max_gain:
        return x.clamp(min=LOG_MEL_FLOOR)
    gain = max_gain * uniforms[0] * (uniforms[1] < 0.6)
    decay = 0.3 + 0.55 * uniforms[2]
    lag = torch.arange(REVERB_FRAMES - 1, -1, -1, device=x.device)
    kernel = torch.where(lag == 0, 1.0, gain * decay ** (lag - 1).clamp(min=0))
    power = F.pad(x.exp(), (0, 0, REVERB_FRAMES - 1, 0)).permute(2, 0, 1)
    reverberant = F.conv1d(power, kernel[:, None], groups=len(x)).permute(1, 2, 0)
    return reverberant.clamp(min=1e-10).log()


def add_white_noise(example: AudioExample, snr: float, *, seed: int = 0) -> AudioExample:
    """A recording with white noise at a signal-to-noise ratio in dB.

    >>> bool(add_white_noise(AudioExample(torch.ones(8), "", 8000), 300.0).wave.eq(1).all())
    True
    """
    noise = np.random.default_rng(seed).standard_normal(len(example.wave))
    std = float(example.wave.square().mean().sqrt()) * 10 ** (-snr / 20)
    return example._replace(wave=example.wave + std * torch.from_numpy(noise).to(example.wave))


def _mask(
    frames: Tensor, generator: torch.Generator, axis: int, max_width: int, fill: Tensor
) -> Tensor:
    batch, size = frames.shape[0], frames.shape[axis]
    width = torch.randint(0, max_width + 1, (batch, 1), generator=generator)
    first = (torch.rand(batch, 1, generator=generator) * size).long()
    line = torch.arange(size)
    mask = ((line >= first) & (line < first + width)).to(frames.device)
    return torch.where(mask[:, :, None] if axis == 1 else mask[:, None, :], fill, frames)
