"""The recurrence by torch's kernels: fast and without gates; on CUDA, with all gates afterwards."""

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from regard.ops.recurrence.reference import (
    CellStep,
    GRUStep,
    LSTMStep,
    gru_gates,
    lstm_gates,
    zero_padding_steps,
)
from regard.ops.recurrence.weights import CellWeights, GRUWeights, LSTMWeights, RNNWeights, State

_KERNELS: dict[type[CellWeights], Any] = {
    RNNWeights: torch._VF.rnn_tanh,  # pyright: ignore[reportAttributeAccessIssue]
    GRUWeights: torch._VF.gru,  # pyright: ignore[reportAttributeAccessIssue]
    LSTMWeights: torch._VF.lstm,  # pyright: ignore[reportAttributeAccessIssue]
}


def refusal(x: Tensor, weights: CellWeights) -> str | None:
    """Why torch's kernels cannot compute this; None if they can."""
    if x.dtype != weights.w.dtype:
        return f"x and weights need one dtype, got {x.dtype} and {weights.w.dtype}"
    if 0 in (*x.shape, weights.hidden):
        return "torch's kernels need sizes of 1 or more"
    return None


def recur(
    x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State]:
    """All outputs h and the final state; x is (sequence, time, dim)."""
    if lengths is None:
        return _run(x, None, weights, state)
    # Packing needs one step per sequence; the step of an empty one is undone below.
    packed = pack_padded_sequence(
        x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
    )
    order, inverse = packed.sorted_indices, packed.unsorted_indices
    assert order is not None
    data, last = _run(packed.data, packed.batch_sizes, weights, tuple(s[order] for s in state))
    packed = PackedSequence(data, packed.batch_sizes, order, inverse)
    out, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
    nonempty = (lengths > 0)[:, None]
    last = tuple(
        torch.where(nonempty, new[inverse], old) for new, old in zip(last, state, strict=True)
    )
    return out.masked_fill(~nonempty[..., None], 0), last


def _run(
    x: Tensor, batch_sizes: Tensor | None, weights: CellWeights, state: State
) -> tuple[Tensor, State]:
    flat = weights.to_torch()
    if x.is_cuda:  # in one buffer, as cuDNN needs them; otherwise it warns and copies
        views = torch.cat([part.flatten() for part in flat]).split([part.numel() for part in flat])
        flat = tuple(view.view_as(part) for view, part in zip(views, flat, strict=True))
    states = [s[None].to(x).contiguous() for s in state]
    start = states if len(states) > 1 else states[0]
    # one layer, no dropout, one direction; "train" saves what the backward pass needs
    options = (flat, len(flat) == 4, 1, 0.0, torch.is_grad_enabled(), False)
    kernel = _KERNELS[type(weights)]
    with torch.autocast(x.device.type, enabled=False):  # the state stays in full precision
        if batch_sizes is None:
            out, *last = kernel(x, start, *options, True)
        else:
            out, *last = kernel(x, batch_sizes, start, *options)
    return out, tuple(s.squeeze(0) for s in last)


def recur_with_gates(
    x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State, CellStep]:
    """All outputs, the final state and every gate; x is (sequence, time, dim).

    On CUDA each step by itself would wait for the launch of its small kernels. Once every h_{t-1}
    is known, the gates of all steps are independent matrix products.
    """
    out, last = recur(x, weights, state, lengths)
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
