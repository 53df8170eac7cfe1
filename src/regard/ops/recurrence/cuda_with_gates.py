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
from regard.ops.recurrence.steps import CellStep, GRUStep, LSTMStep, gru_gates, lstm_gates
from regard.ops.recurrence.weights import CellWeights, GRUWeights, State


def recur(
    x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State, CellStep]:
    """All outputs, the final state and every gate; x is (sequence, time, dim)."""
    out, last = fused.recur(x, weights, state, lengths)
    before = torch.cat([state[0][:, None], out[:, :-1]], 1)
    wx, uh = F.linear(x, weights.w, weights.w_bias), F.linear(before, weights.u, weights.u_bias)
    if isinstance(weights, GRUWeights):
        trace = GRUStep(*gru_gates(wx, uh), h=out)
    else:
        i, f, o, candidate = lstm_gates(wx + uh)
        # the only sequential part, and it has no matrix product
        # (under autocast the gates are in half precision, the cell is not)
        c = state[1]
        cells = _cells(f.to(c.dtype), (i * candidate).to(c.dtype), c)
        trace = LSTMStep(i, f, o, candidate, cells, out)
    return out, last, zero_padding_steps(trace, lengths)


def _cells(decay: Tensor, inputs: Tensor, c: Tensor) -> Tensor:
    if decay.is_cuda and find_spec("triton"):
        from regard.ops.recurrence.scan_kernel import linear_scan  # imports Triton

        return linear_scan(decay, inputs, c)
    cells = []
    for f, x in zip(decay.unbind(1), inputs.unbind(1), strict=True):
        c = torch.addcmul(x, f, c)
        cells.append(c)
    return torch.stack(cells, 1)
