"""One linear mixer of each form, in float64, by its number of tokens."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from regard.ops import mixers
from regard.ops.mixers import LinearMixer


def double(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64)


def _unit(*sizes: int) -> Tensor:
    return torch.nn.functional.normalize(double(*sizes), dim=-1)


def _decay(*sizes: int) -> Tensor:
    return -torch.rand(*sizes, dtype=torch.float64)


def gated_delta(n: int) -> LinearMixer:
    q, k, v = double(2, 2, n, 4), _unit(2, 2, n, 4), double(2, 4, n, 3)
    beta = torch.rand(2, 4, n, dtype=torch.float64)
    return mixers.delta_rule(q, k, v, _decay(2, 4, n), beta)


def delta(n: int) -> LinearMixer:
    return replace(gated_delta(n), log_decay=None)


def strong_channel_decay(n: int) -> LinearMixer:
    """A decay per key channel that would overflow as a quotient of cumulated decays."""
    return replace(gated_delta(n), log_decay=30 * _decay(2, 4, n, 4))


def kda(n: int) -> LinearMixer:
    return replace(gated_delta(n), log_decay=_decay(2, 4, n, 4))


def packed(n: int) -> LinearMixer:
    """Two documents after an initial state, with a token that is not written."""
    m = kda(n)
    resets = torch.rand(2, n) < 0.3
    return replace(m, state=double(2, 4, 4, 3), resets=resets, beta=m.writes.round(decimals=1))


def retention(n: int) -> LinearMixer:
    q, k, v = (double(2, 3, n, 4) for _ in range(3))
    m = mixers.linear_attention(q, k, v, -torch.rand(3, dtype=torch.float64))
    return replace(m, state=double(2, 3, 4, 4))


def mamba2(n: int) -> LinearMixer:
    c, b, x = double(2, 1, n, 4), double(2, 1, n, 4), double(2, 3, n, 2)
    dt = torch.rand(2, 3, n, dtype=torch.float64)
    resets = torch.rand(2, n) < 0.2
    return mixers.mamba2(c, b, x, dt, _decay(3), double(3), resets=resets)


def mamba1(n: int) -> LinearMixer:
    c, b, x = double(1, 1, n, 4), double(1, 1, n, 4), double(1, 5, n, 1)
    return mixers.mamba2(c, b, x, torch.rand(1, 5, n, dtype=torch.float64), 4 * _decay(5, 4))


def rwkv(n: int) -> LinearMixer:
    q, k, v = (double(2, 3, n, 4) for _ in range(3))
    m = mixers.linear_attention(q, k, v, _decay(2, 3, n, 4), bonus=double(3, 4))
    return replace(m, state=double(2, 3, 4, 4), resets=torch.rand(2, n) < 0.2)


def mlstm(n: int) -> LinearMixer:
    q, k, v = (double(2, 3, n, 4) for _ in range(3))
    return mixers.mlstm(q, k, v, double(2, 3, n), double(2, 3, n))


def rg_lru(n: int) -> LinearMixer:
    return mixers.diagonal_recurrence(double(2, n, 5), _decay(2, n, 5), state=double(2, 5))


MIXERS: dict[str, Callable[[int], LinearMixer]] = {
    "gated delta": gated_delta, "delta": delta, "KDA": kda,
    "strong channel decay": strong_channel_decay, "packed": packed, "retention": retention,
    "Mamba-2": mamba2, "Mamba-1": mamba1, "RWKV": rwkv, "mLSTM": mlstm, "RG-LRU": rg_lru,
}  # fmt: skip
