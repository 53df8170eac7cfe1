"""Features that know neither loudness nor microphone: bands against means that run along."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError

LEVEL_DECAY = 0.01  # a frame: the level is down by 4.3 dB a second after the last loud moment
MIN_LEVEL = -12.0  # what is softer than this is not made louder, or silence would roar
ACTIVE_MARGIN = 3.0  # frames that are less than this below the level count as sound
MEAN_DECAY = math.exp(-1 / 150)  # how much of a mean is left after one more frame of sound: 1.5 s
PRIOR_MEAN, PRIOR_FRAMES = (
    -4.0,
    20,
)  # a band's mean against the level before any sound, and for how many
BLOCK_FRAMES = 1000  # frames at a time: KEEP to the power of more would leave the range of numbers


def online_cmvn(
    x: Float[Tensor, "*batch time mel"],
    initial_state: Float[Tensor, "*batch state"] | None = None,
    *,
    dynamic_range: float = 8.0,
) -> tuple[Float[Tensor, "*batch time mel"], Float[Tensor, "*batch state"]]:
    """Log-mel frames, each band against its mean in the sound so far; and the state after them.

    y_t = max(x_t, level_t - depth) - (sum_t + 20 (level_t - 4)) / (weight_t + 20)
    level_t = max(loud_t, level_{t-1} - 0.01, -12),   loud_t = log Σ_m exp x[t, m]
    sum_t = 0.9934 sum_{t-1} + x_t, weight_t = 0.9934 weight_{t-1} + 1 if loud_t > level_t - 3

    A gain of the whole sound or of a band changes little or nothing, and what lies `depth` below
    the level is one floor: microphone and room are taken away, as far as can be known at t. The
    state (level + 12, weight, sums; zeros at first) lets a stream give what the whole gives.

    >>> y, state = online_cmvn(torch.tensor([[3.0], [-9.0]]), dynamic_range=8.0)
    >>> y.flatten()  # 3 - (3 + 20 · -1) / 21, and (2.99 - 8) - (3 + 20 · -1.01) / 21
    tensor([ 3.8095, -4.1910])
    >>> state
    tensor([14.9900,  1.0000,  3.0000])
    """
    if not dynamic_range > 0:
        raise ShapeError(f"dynamic_range: needs more than 0, got {dynamic_range}; try 8")
    state = x.new_zeros(*x.shape[:-2], x.shape[-1] + 2) if initial_state is None else initial_state
    found = []
    for piece in x.split(BLOCK_FRAMES, -2):
        if piece.shape[-2]:
            y, state = _levelled(piece, state, dynamic_range)
            found.append(y)
    return torch.cat(found, -2) if found else x, state


def _levelled(x: Tensor, state: Tensor, depth: float) -> tuple[Tensor, Tensor]:
    # in double: how a sound is cut may not show, and the powers of KEEP span three decades
    wide, state = x.double(), state.double()
    fall = LEVEL_DECAY * torch.arange(1, x.shape[-2] + 1, device=x.device, dtype=torch.float64)
    loud = wide.logsumexp(-1)
    # over the fall the level never sinks, so that one running maximum gives all of it
    highest = (loud + fall).cummax(-1).values.maximum(state[..., :1] + MIN_LEVEL)
    level = (highest - fall).clamp(min=MIN_LEVEL)[..., None]
    sound = (loud[..., None] > level - ACTIVE_MARGIN).double()
    left = MEAN_DECAY ** sound.cumsum(-2)
    ones = torch.cat([torch.ones_like(level), wide], -1)  # so that weight and sums are one sum
    sums = left * (state[..., None, 1:] + (sound / left * ones).cumsum(-2))
    mean = (sums[..., 1:] + PRIOR_FRAMES * (level + PRIOR_MEAN)) / (sums[..., :1] + PRIOR_FRAMES)
    y = wide.maximum(level - depth) - mean
    return y.to(x), torch.cat([level - MIN_LEVEL, sums], -1)[..., -1, :].to(x)
