"""Log-mel frames as other throats, mouths, rooms and microphones would give them."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError

LOG_MEL_FLOOR = math.log(1e-10)  # what log_mel makes of nothing
GAIN_JITTER_RANGE = 8.0  # below the loudest, in nats: what is softer than that is a room, no voice
REVERB_FRAMES = 16  # frames that an echo is heard for
MAX_TIME_WARP = 0.65  # bend: 1 + a cos πt + b/2 cos 2πt stays above zero


@dataclass(frozen=True, kw_only=True)
class SpeechAugmentation:
    """How far the voices, rooms and microphones of training differ from those recorded.

    `warp`, `colour` and `masks` are those of `augment_log_mel`, `pace` is the largest share of change,
    `bend` that inside a digit: some say a vowel long, some a consonant. `swell` is by what share
    all that is softer than the loudest vowel gets softer or louder: some hardly voice an s.
    `trim` is the share of digits that lose a soft beginning, and of those that lose a soft end:
    takes are cut out of silence, and what is soft goes with it.
    `between` is the share of strings whose voice is a mean of two, `mixed` of those whose digits
    are each of any speaker, `echo` the most power that comes back in the next frame, `hiss` the
    size of a curve over the bands of the noise as `colour` is of all, `snr` the most noise.

    >>> SpeechAugmentation(tempo_range=0.0).tempo_range
    0.0
    """

    vtlp: float = 0.12
    eq: float = 3.0
    spec_augment: int = 0
    tempo_range: float = 0.35
    time_warp: float = 0.0
    gain_jitter: float = 0.0
    trim_fraction: float = 0.0
    speaker_interpolation: float = 0.0
    speaker_mixing: float = 0.0
    reverb: float = 0.0
    noise_tilt: float = 0.0
    min_snr: float = 8.0

    def __post_init__(self) -> None:
        for name in ("gain_jitter", "trim_fraction", "speaker_interpolation", "speaker_mixing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: needs 0 to 1, got {getattr(self, name)}")
        if not 0 <= self.time_warp <= MAX_TIME_WARP:
            raise ConfigError(
                f"time_warp: needs 0 to {MAX_TIME_WARP}, or time would run backwards, got {self.time_warp}"
            )


def augment_log_mel(
    frames: Float[Tensor, "batch time mel"],
    generator: torch.Generator,
    *,
    vtlp: float = 0.12,
    eq: float = 1.0,
    spec_augment: int = 2,
) -> Float[Tensor, "batch time mel"]:
    """Log-mel frames as another throat, room and microphone would give them.

    The scale of pitches is stretched (Jaitly and Hinton 2013), a smooth curve is added to it, and
    some bands and moments are hidden (SpecAugment, Park et al. 2019).

    >>> x = torch.arange(8.0).expand(1, 1, 8)
    >>> torch.equal(augment_log_mel(x, rg.data.seeded_generator(0), vtlp=0.0, eq=0.0, spec_augment=0), x)
    True
    """
    batch, time, mels = frames.shape
    device = frames.device
    if vtlp:
        stretch = 1 + vtlp * (2 * torch.rand(batch, 1, generator=generator) - 1)
        bend = 0.5 * vtlp * (2 * torch.rand(batch, 1, generator=generator) - 1)
        line = torch.linspace(0, 1, mels)
        places = ((line * stretch + bend * (math.pi * line).sin()) * (mels - 1)).clamp(0, mels - 1)
        below = places.floor().clamp(max=mels - 2)
        part = (places - below).to(device)[:, None]
        at = below.long().to(device)[:, None].expand(-1, time, -1)
        frames = frames.gather(2, at) * (1 - part) + frames.gather(2, at + 1) * part
    if eq:
        frames = frames + random_eq_curves(batch, mels, eq, generator).to(device)[:, None]
    mean = frames.mean((1, 2), keepdim=True)
    for _ in range(spec_augment):
        frames = _hidden(frames, generator, 2, 6, mean)
        frames = _hidden(frames, generator, 1, 12, mean)
    return frames


def random_eq_curves(
    batch: int, mels: int, scale: float, generator: torch.Generator
) -> Float[Tensor, "batch mel"]:
    """Smooth curves over the bands, one for each sound, by chance.

    curve(m) = size Σ_{n=1…5} ε_n cos(n π m / (mels - 1)) / √n

    >>> random_eq_curves(2, 8, 0.0, rg.data.seeded_generator(0)).any().item()
    False
    """
    line = torch.linspace(0, math.pi, mels, device=generator.device)
    waves = torch.stack([torch.cos(n * line) / n**0.5 for n in range(1, 6)])
    return scale * torch.randn(batch, 5, generator=generator, device=generator.device) @ waves


def gain_jitter(
    x: Float[Tensor, "batch time mel"], max_gain: float, generator: torch.Generator
) -> Float[Tensor, "batch time mel"]:
    """Frames of speakers whose consonants are softer or louder beside their vowels.

    y_t = x_t + gain (level_t - max_t level),   -most ≤ gain ≤ most; level is a mean over the bands

    >>> x = torch.tensor([[[0.0], [-4.0]]])
    >>> torch.equal(gain_jitter(x, 0.0, rg.data.seeded_generator(0)), x)
    True
    """
    if not max_gain:
        return x
    gain = max_gain * (
        2 * torch.rand(len(x), 1, 1, generator=generator, device=generator.device) - 1
    )
    level = x.mean(2, keepdim=True)
    said = level > LOG_MEL_FLOOR + 1e-3  # between digits there is nothing to make louder
    below = F.avg_pool1d(level.mT, 5, 1, padding=2, count_include_pad=False).mT
    below = (below - below.amax(1, keepdim=True)).clamp(min=-GAIN_JITTER_RANGE)
    return torch.where(said, (x + gain * below).clamp(min=LOG_MEL_FLOOR), x)


def reverb(
    x: Float[Tensor, "batch time mel"], max_gain: float, generator: torch.Generator
) -> Float[Tensor, "batch time mel"]:
    """Frames in rooms: of each moment's power some comes again, less with each frame.

    exp y_t = exp x_t + gain Σ_{n=1…15} decay^(n-1) exp x_{t-n},   0 ≤ gain ≤ most

    >>> x = torch.zeros(1, 3, 2)
    >>> torch.equal(reverb(x, 0.0, rg.data.seeded_generator(0)), x)
    True
    """
    draws = torch.rand(3, len(x), 1, generator=generator, device=generator.device)
    gain = max_gain * draws[0] * (draws[1] < 0.6)  # and many sounds are of no room
    decay = 0.3 + 0.55 * draws[2]
    back = torch.arange(REVERB_FRAMES - 1, -1, -1, device=x.device)
    kernel = torch.where(back == 0, 1.0, gain * decay ** (back - 1).clamp(min=0))
    power = F.pad(x.exp(), (0, 0, REVERB_FRAMES - 1, 0)).permute(2, 0, 1)
    heard = F.conv1d(power, kernel[:, None], groups=len(x)).permute(1, 2, 0)
    return heard.clamp(min=1e-10).log()


def _hidden(frames: Tensor, chance: torch.Generator, axis: int, most: int, fill: Tensor) -> Tensor:
    batch, size = frames.shape[0], frames.shape[axis]
    width = torch.randint(0, most + 1, (batch, 1), generator=chance)
    first = (torch.rand(batch, 1, generator=chance) * size).long()
    line = torch.arange(size)
    mask = ((line >= first) & (line < first + width)).to(frames.device)
    return torch.where(mask[:, :, None] if axis == 1 else mask[:, None, :], fill, frames)
