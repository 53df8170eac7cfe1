"""Log-mel frames as other throats, mouths, rooms and microphones would give them."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError

EMPTY = math.log(1e-10)  # what log_mel makes of nothing
SOFT = 8.0  # below the loudest, in nats: what is softer than that is a room, no voice
ECHO = 16  # frames that an echo is heard for
MOST = 0.65  # bend: 1 + a cos πt + b/2 cos 2πt stays above zero


@dataclass(frozen=True, kw_only=True)
class Change:
    """How far the voices, rooms and microphones of training differ from those recorded.

    `warp`, `colour` and `masks` are those of `other_voice`, `pace` is the largest share of change,
    `bend` that inside a digit: some say a vowel long, some a consonant. `swell` is by what share
    all that is softer than the loudest vowel gets softer or louder: some hardly voice an s.
    `trim` is the share of digits that lose a soft beginning, and of those that lose a soft end:
    takes are cut out of silence, and what is soft goes with it.
    `between` is the share of strings whose voice is a mean of two, `mixed` of those whose digits
    are each of any speaker, `echo` the most power that comes back in the next frame, `hiss` the
    size of a curve over the bands of the noise as `colour` is of all, `snr` the most noise.

    >>> Change(pace=0.0).pace
    0.0
    """

    warp: float = 0.12
    colour: float = 3.0
    masks: int = 0
    pace: float = 0.35
    bend: float = 0.0
    swell: float = 0.0
    trim: float = 0.0
    between: float = 0.0
    mixed: float = 0.0
    echo: float = 0.0
    hiss: float = 0.0
    snr: float = 8.0

    def __post_init__(self) -> None:
        for name in ("swell", "trim", "between", "mixed"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: needs 0 to 1, got {getattr(self, name)}")
        if not 0 <= self.bend <= MOST:
            raise ConfigError(
                f"bend: needs 0 to {MOST}, or time would run backwards, got {self.bend}"
            )


def other_voice(
    frames: Float[Tensor, "batch time mel"],
    chance: torch.Generator,
    *,
    warp: float = 0.12,
    colour: float = 1.0,
    masks: int = 2,
) -> Float[Tensor, "batch time mel"]:
    """Log-mel frames as another throat, room and microphone would give them.

    The scale of pitches is stretched (Jaitly and Hinton 2013), a smooth curve is added to it, and
    some bands and moments are hidden (SpecAugment, Park et al. 2019).

    >>> x = torch.arange(8.0).expand(1, 1, 8)
    >>> torch.equal(other_voice(x, rg.data.luck(0), warp=0.0, colour=0.0, masks=0), x)
    True
    """
    batch, time, mels = frames.shape
    device = frames.device
    if warp:
        stretch = 1 + warp * (2 * torch.rand(batch, 1, generator=chance) - 1)
        bend = 0.5 * warp * (2 * torch.rand(batch, 1, generator=chance) - 1)
        line = torch.linspace(0, 1, mels)
        places = ((line * stretch + bend * (math.pi * line).sin()) * (mels - 1)).clamp(0, mels - 1)
        below = places.floor().clamp(max=mels - 2)
        part = (places - below).to(device)[:, None]
        at = below.long().to(device)[:, None].expand(-1, time, -1)
        frames = frames.gather(2, at) * (1 - part) + frames.gather(2, at + 1) * part
    if colour:
        frames = frames + curves(batch, mels, colour, chance).to(device)[:, None]
    mean = frames.mean((1, 2), keepdim=True)
    for _ in range(masks):
        frames = _hidden(frames, chance, 2, 6, mean)
        frames = _hidden(frames, chance, 1, 12, mean)
    return frames


def curves(
    batch: int, mels: int, size: float, chance: torch.Generator
) -> Float[Tensor, "batch mel"]:
    """Smooth curves over the bands, one for each sound, by chance.

    curve(m) = size Σ_{n=1…5} ε_n cos(n π m / (mels - 1)) / √n

    >>> curves(2, 8, 0.0, rg.data.luck(0)).any().item()
    False
    """
    line = torch.linspace(0, math.pi, mels, device=chance.device)
    waves = torch.stack([torch.cos(n * line) / n**0.5 for n in range(1, 6)])
    return size * torch.randn(batch, 5, generator=chance, device=chance.device) @ waves


def swelled(
    x: Float[Tensor, "batch time mel"], most: float, chance: torch.Generator
) -> Float[Tensor, "batch time mel"]:
    """Frames of speakers whose consonants are softer or louder beside their vowels.

    y_t = x_t + gain (level_t - max_t level),   -most ≤ gain ≤ most; level is a mean over the bands

    >>> x = torch.tensor([[[0.0], [-4.0]]])
    >>> torch.equal(swelled(x, 0.0, rg.data.luck(0)), x)
    True
    """
    if not most:
        return x
    gain = most * (2 * torch.rand(len(x), 1, 1, generator=chance, device=chance.device) - 1)
    level = x.mean(2, keepdim=True)
    said = level > EMPTY + 1e-3  # between digits there is nothing to make louder
    below = F.avg_pool1d(level.mT, 5, 1, padding=2, count_include_pad=False).mT
    below = (below - below.amax(1, keepdim=True)).clamp(min=-SOFT)
    return torch.where(said, (x + gain * below).clamp(min=EMPTY), x)


def echoed(
    x: Float[Tensor, "batch time mel"], most: float, chance: torch.Generator
) -> Float[Tensor, "batch time mel"]:
    """Frames in rooms: of each moment's power some comes again, less with each frame.

    exp y_t = exp x_t + gain Σ_{n=1…15} decay^(n-1) exp x_{t-n},   0 ≤ gain ≤ most

    >>> x = torch.zeros(1, 3, 2)
    >>> torch.equal(echoed(x, 0.0, rg.data.luck(0)), x)
    True
    """
    draws = torch.rand(3, len(x), 1, generator=chance, device=chance.device)
    gain = most * draws[0] * (draws[1] < 0.6)  # and many sounds are of no room
    decay = 0.3 + 0.55 * draws[2]
    back = torch.arange(ECHO - 1, -1, -1, device=x.device)
    kernel = torch.where(back == 0, 1.0, gain * decay ** (back - 1).clamp(min=0))
    power = F.pad(x.exp(), (0, 0, ECHO - 1, 0)).permute(2, 0, 1)
    heard = F.conv1d(power, kernel[:, None], groups=len(x)).permute(1, 2, 0)
    return heard.clamp(min=1e-10).log()


def _hidden(frames: Tensor, chance: torch.Generator, axis: int, most: int, fill: Tensor) -> Tensor:
    batch, size = frames.shape[0], frames.shape[axis]
    width = torch.randint(0, most + 1, (batch, 1), generator=chance)
    first = (torch.rand(batch, 1, generator=chance) * size).long()
    line = torch.arange(size)
    mask = ((line >= first) & (line < first + width)).to(frames.device)
    return torch.where(mask[:, :, None] if axis == 1 else mask[:, None, :], fill, frames)
