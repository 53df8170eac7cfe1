"""Online cepstral mean normalisation of log-mel features: independent of gain and microphone."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError

LEVEL_DECAY = 0.01  # per frame: the level falls by 4.3 dB in a second without sound
MIN_LEVEL = -12.0  # softer input is not amplified, or silence would become noise
ACTIVE_MARGIN = 3.0  # frames less than this below the level count as sound
MEAN_DECAY = math.exp(-1 / 150)  # of the running mean per frame of sound: 1.5 s
PRIOR_MEAN = -4.0  # of a band relative to the level, before any sound
PRIOR_FRAMES = 20  # weight of the prior, in frames
BLOCK_FRAMES = 1000  # frames at a time: MEAN_DECAY to a higher power would underflow


def online_cmvn(
    x: Float[Tensor, "*batch time mel"],
    initial_state: Float[Tensor, "*batch state"] | None = None,
    *,
    dynamic_range: float = 8.0,
) -> tuple[Float[Tensor, "*batch time mel"], Float[Tensor, "*batch state"]]:
    """Subtract from each log-mel band its running mean; also returns the state for streaming.

    y_t = max(x_t, level_t - dynamic_range) - (sum_t + 20 (level_t - 4)) / (weight_t + 20)
    level_t = max(loud_t, level_{t-1} - 0.01, -12),   loud_t = log Σ_m exp x[t, m]
    sum_t = 0.9934 sum_{t-1} + x_t, weight_t = 0.9934 weight_{t-1} + 1 if loud_t > level_t - 3

    A gain of the whole signal or of one band changes little, which removes microphone and room as
    far as they are known at time t; values more than `dynamic_range` below the level are clipped.
    With the state (level + 12, weight, sums; zeros at first) a stream gives the same result.

    >>> y, state = online_cmvn(torch.tensor([[3.0], [-9.0]]), dynamic_range=8.0)
    >>> y.flatten()  # 3 - (3 + 20 · -1) / 21, and (2.99 - 8) - (3 + 20 · -1.01) / 21
    tensor([ 3.8095, -4.1910])
    >>> state
    tensor([14.9900,  1.0000,  3.0000])
    """
    if not dynamic_range > 0:
        raise ShapeError(f"dynamic_range: needs more than 0, got {dynamic_range}; try 8")
    state = x.new_zeros(*x.shape[:-2], x.shape[-1] + 2) if initial_state is None else initial_state
    parts = []
    for block in x.split(BLOCK_FRAMES, -2):
        if block.shape[-2]:
            y, state = _normalise(block, state, dynamic_range)
            parts.append(y)
    return torch.cat(parts, -2) if parts else x, state


def _normalise(x: Tensor, state: Tensor, dynamic_range: float) -> tuple[Tensor, Tensor]:
    # in float64: splits of a stream must not show, and powers of MEAN_DECAY span three decades
    x64, state = x.double(), state.double()
    decay = LEVEL_DECAY * torch.arange(1, x.shape[-2] + 1, device=x.device, dtype=torch.float64)
    loudness = x64.logsumexp(-1)
    # with the decay added back the level never falls, so one running maximum gives all of it
    highest = (loudness + decay).cummax(-1).values.maximum(state[..., :1] + MIN_LEVEL)
    level = (highest - decay).clamp(min=MIN_LEVEL)[..., None]
    sound = (loudness[..., None] > level - ACTIVE_MARGIN).double()
    remaining = MEAN_DECAY ** sound.cumsum(-2)
    terms = torch.cat([torch.ones_like(level), x64], -1)  # weight and sums in one cumsum
    sums = remaining * (state[..., None, 1:] + (sound / remaining * terms).cumsum(-2))
    mean = (sums[..., 1:] + PRIOR_FRAMES * (level + PRIOR_MEAN)) / (sums[..., :1] + PRIOR_FRAMES)
    y = x64.maximum(level - dynamic_range) - mean
    return y.to(x), torch.cat([level - MIN_LEVEL, sums], -1)[..., -1, :].to(x)
