"""The recurrence by its equation, step by step: the reference for other backends."""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.masks import length_mask
from regard.ops.recurrence.steps import CellStep, cell_step_projected
from regard.ops.recurrence.weights import CellWeights, State


def recur(
    x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State, CellStep]:
    """All outputs, the final state and every gate; x is (sequence, time, dim)."""
    valid = None if lengths is None else length_mask(lengths, x.shape[1])[..., None]
    # W x does not depend on the state: one product for all steps.
    projected = F.linear(x.transpose(0, 1), weights.w, weights.w_bias)
    steps = []
    for t, wx in enumerate(projected.unbind(0)):
        step = cell_step_projected(wx, state, weights)
        steps.append(step)
        if valid is None:
            state = step.state
        else:
            pairs = zip(step.state, state, strict=True)
            state = tuple(torch.where(valid[:, t], new, old) for new, old in pairs)
    trace = steps[0]._make(torch.stack(values, 1) for values in zip(*steps, strict=True))
    trace = zero_padding_steps(trace, lengths)
    return trace.h, state, trace


def zero_padding_steps(trace: CellStep, lengths: Tensor | None) -> CellStep:
    """The gates with zeros in the padding."""
    if lengths is None:
        return trace
    padding = ~length_mask(lengths, trace.h.shape[1])[..., None]
    return trace._make(values.masked_fill(padding, 0) for values in trace)
