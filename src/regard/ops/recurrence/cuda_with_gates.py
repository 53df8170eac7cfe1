"""A recurrence by torch's kernel, its gates opened afterwards, all times at once: for CUDA.

There a walk in steps waits on the launch of each little kernel; once each h_{t-1} is known nothing
waits for anything, and every gate is a plain product.
"""

from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.recurrence import fused
from regard.ops.recurrence.reference import zero_padding_steps
from regard.ops.recurrence.steps import CellStep, GRUStep, LSTMStep, RNNStep
from regard.ops.recurrence.weights import CellWeights, GRUWeights, RNNWeights, State


def recur(
    x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State, CellStep]:
    """All states, the last real one, and every gate; x is (sequence, time, dim)."""
    out, last = fused.recur(x, weights, state, lengths)
    if isinstance(weights, RNNWeights):
        return out, last, RNNStep(out)
    before = torch.cat([state[0][:, None], out[:, :-1]], 1)
    wx, uh = F.linear(x, weights.w, weights.w_bias), F.linear(before, weights.u, weights.u_bias)
    opened = _gru(wx, uh, out) if isinstance(weights, GRUWeights) else _lstm(wx + uh, out, state[1])
    return out, last, zero_padding_steps(opened, lengths)


def _gru(wx: Tensor, uh: Tensor, h: Tensor) -> GRUStep:
    gates = 2 * h.shape[-1]
    z, r = torch.sigmoid(wx[..., :gates] + uh[..., :gates]).chunk(2, -1)
    candidate = torch.tanh(torch.addcmul(wx[..., gates:], r, uh[..., gates:]))
    return GRUStep(z, r, candidate, h)


def _lstm(both: Tensor, h: Tensor, c: Tensor) -> LSTMStep:
    gates = 3 * h.shape[-1]
    i, f, o = torch.sigmoid(both[..., :gates]).chunk(3, -1)
    candidate = torch.tanh(both[..., gates:])
    # the one thing that must be walked, and it has no product
    # (under autocast the gates are half precision; what is carried is not)
    cells = _cells(f.to(c.dtype), (i * candidate).to(c.dtype), c)
    return LSTMStep(i, f, o, candidate, cells, h)


def _cells(kept: Tensor, new: Tensor, c: Tensor) -> Tensor:
    if kept.is_cuda and find_spec("triton"):
        from regard.ops.recurrence.scan_kernel import (
            linear_scan,  # imports Triton, so only where it runs
        )

        return linear_scan(kept, new, c)
    cells = []
    for keep, more in zip(kept.unbind(1), new.unbind(1), strict=True):
        c = torch.addcmul(more, keep, c)
        cells.append(c)
    return torch.stack(cells, 1)
