"""A recurrence by torch's kernels, its gates opened afterwards, all times at once."""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.recurrence import fused
from regard.ops.recurrence.reference import blank
from regard.ops.recurrence.steps import GRUStep, LSTMStep, RNNStep, Step
from regard.ops.recurrence.weights import GRUWeights, RNNWeights, State, Weights


def recur(
    x: Tensor, weights: Weights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State, Step]:
    """All states, the last real one, and every gate; x is (sequence, time, dim).

    Once each h_{t-1} is known nothing waits for anything: every gate is a plain product.
    """
    out, last = fused.recur(x, weights, state, lengths)
    if isinstance(weights, RNNWeights):
        return out, last, blank(RNNStep(out), lengths)
    before = torch.cat([state[0][:, None], out[:, :-1]], 1)
    wx, uh = F.linear(x, weights.w, weights.w_bias), F.linear(before, weights.u, weights.u_bias)
    if isinstance(weights, GRUWeights):
        return out, last, blank(_open_gru(wx, uh, out), lengths)
    return out, last, blank(_open_lstm(wx + uh, out, state[1]), lengths)


def _open_gru(wx: Tensor, uh: Tensor, h: Tensor) -> GRUStep:
    gates = 2 * h.shape[-1]
    z, r = torch.sigmoid(wx[..., :gates] + uh[..., :gates]).chunk(2, -1)
    candidate = torch.tanh(torch.addcmul(wx[..., gates:], r, uh[..., gates:]))
    return GRUStep(z, r, candidate, h)


def _open_lstm(both: Tensor, h: Tensor, c: Tensor) -> LSTMStep:
    gates = 3 * h.shape[-1]
    i, f, o = torch.sigmoid(both[..., :gates]).chunk(3, -1)
    candidate = torch.tanh(both[..., gates:])
    cells = []
    for kept, new in zip(f.unbind(1), (i * candidate).unbind(1), strict=True):
        c = torch.addcmul(new, kept, c)  # the one thing that must be walked, and it has no product
        cells.append(c)
    return LSTMStep(i, f, o, candidate, torch.stack(cells, 1), h)
