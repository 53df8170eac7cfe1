"""The recurrence with gates on CUDA: torch's kernel, then all gates of all steps at once.

Step by step, each step would wait for the launch of its small kernels. Once every h_{t-1} is known,
the gates of all steps are independent matrix products.
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
    """All outputs, the final state and every gate; x is (sequence, time, dim)."""
    out, last = fused.recur(x, weights, state, lengths)
    if isinstance(weights, RNNWeights):
        return out, last, RNNStep(out)
    before = torch.cat([state[0][:, None], out[:, :-1]], 1)
    wx, uh = F.linear(x, weights.w, weights.w_bias), F.linear(before, weights.u, weights.u_bias)
    trace = _gru(wx, uh, out) if isinstance(weights, GRUWeights) else _lstm(wx + uh, out, state[1])
    return out, last, zero_padding_steps(trace, lengths)


def _gru(wx: Tensor, uh: Tensor, h: Tensor) -> GRUStep:
    gates = 2 * h.shape[-1]
    z, r = torch.sigmoid(wx[..., :gates] + uh[..., :gates]).chunk(2, -1)
    candidate = torch.tanh(torch.addcmul(wx[..., gates:], r, uh[..., gates:]))
    return GRUStep(z, r, candidate, h)


def _lstm(both: Tensor, h: Tensor, c: Tensor) -> LSTMStep:
    gates = 3 * h.shape[-1]
    i, f, o = torch.sigmoid(both[..., :gates]).chunk(3, -1)
    candidate = torch.tanh(both[..., gates:])
    # the only sequential part, and it has no matrix product
    # (under autocast the gates are in half precision, the cell is not)
    cells = _cells(f.to(c.dtype), (i * candidate).to(c.dtype), c)
    return LSTMStep(i, f, o, candidate, cells, h)


def _cells(decay: Tensor, inputs: Tensor, c: Tensor) -> Tensor:
    if decay.is_cuda and find_spec("triton"):
        from regard.ops.recurrence.scan_kernel import linear_scan  # imports Triton

        return linear_scan(decay, inputs, c)
    cells = []
    for f, x in zip(decay.unbind(1), inputs.unbind(1), strict=True):
        c = torch.addcmul(x, f, c)
        cells.append(c)
    return torch.stack(cells, 1)
