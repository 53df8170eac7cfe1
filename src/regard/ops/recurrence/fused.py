"""A recurrence by torch's own kernels: quick, but the gates stay inside."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from regard.ops.recurrence.weights import CellWeights, GRUWeights, LSTMWeights, RNNWeights, State

_KERNELS: dict[type[CellWeights], Any] = {
    RNNWeights: torch._VF.rnn_tanh,  # pyright: ignore[reportAttributeAccessIssue]
    GRUWeights: torch._VF.gru,  # pyright: ignore[reportAttributeAccessIssue]
    LSTMWeights: torch._VF.lstm,  # pyright: ignore[reportAttributeAccessIssue]
}


def refusal(x: Tensor, weights: CellWeights) -> str | None:
    """Why torch's kernels cannot run this; None when they can."""
    if x.dtype != weights.w.dtype:
        return f"x and weights need one dtype, got {x.dtype} and {weights.w.dtype}"
    if 0 in (*x.shape, weights.hidden):
        return "torch's kernels need at least one of everything"
    return None


def recur(
    x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State]:
    """All states h and the last real state; x is (sequence, time, dim)."""
    if lengths is None:
        return _run(x, None, weights, state)
    # Packing wants each sequence to have a step; what it does in an empty one is undone below.
    packed = pack_padded_sequence(
        x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
    )
    there, back = packed.sorted_indices, packed.unsorted_indices
    assert there is not None
    data, last = _run(packed.data, packed.batch_sizes, weights, tuple(s[there] for s in state))
    again = PackedSequence(data, packed.batch_sizes, there, back)
    out, _ = pad_packed_sequence(again, batch_first=True, total_length=x.shape[1])
    some = (lengths > 0)[:, None]
    last = tuple(torch.where(some, new[back], old) for new, old in zip(last, state, strict=True))
    return out.masked_fill(~some[..., None], 0), last


def _run(
    x: Tensor, batch_sizes: Tensor | None, weights: CellWeights, state: State
) -> tuple[Tensor, State]:
    flat = weights.to_torch()
    if x.is_cuda:
        flat = _side_by_side(flat)
    carried = [s[None].to(x).contiguous() for s in state]
    start = carried if len(carried) > 1 else carried[0]
    # one layer, no dropout, one direction; "training" keeps what the way back needs
    how = (flat, len(flat) == 4, 1, 0.0, torch.is_grad_enabled(), False)
    kernel = _KERNELS[type(weights)]
    with torch.autocast(x.device.type, enabled=False):  # states are carried in full precision
        if batch_sizes is None:
            out, *last = kernel(x, start, *how, True)
        else:
            out, *last = kernel(x, batch_sizes, start, *how)
    return out, tuple(s.squeeze(0) for s in last)


def _side_by_side(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same tensors in one piece of memory, where cuDNN wants them; else it warns and copies."""
    whole = torch.cat([part.flatten() for part in parts])
    cuts = whole.split([part.numel() for part in parts])
    return tuple(cut.view_as(part) for cut, part in zip(cuts, parts, strict=True))
