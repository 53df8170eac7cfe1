"""A recurrence as the equation says, step by step: the truth that the other forms meet."""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.recurrence.steps import CellStep, cell_step_projected
from regard.ops.recurrence.weights import CellWeights, State


def recur(
    x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State, CellStep]:
    """All states, the last real one, and every gate; x is (sequence, time, dim)."""
    live = None if lengths is None else valid_steps(lengths, x.shape[1])
    # What is seen does not wait for what is remembered: one product for all times.
    seen = F.linear(x.transpose(0, 1), weights.w, weights.w_bias)
    steps = []
    for t, wx in enumerate(seen.unbind(0)):
        step = cell_step_projected(wx, state, weights)
        steps.append(step)
        if live is None:
            state = step.state
        else:
            pairs = zip(step.state, state, strict=True)
            state = tuple(torch.where(live[:, t], new, old) for new, old in pairs)
    trace = zero_padding_steps(
        type(steps[0])(*(torch.stack(v, 1) for v in zip(*steps, strict=True))), lengths
    )
    return trace.h, state, trace


def valid_steps(lengths: Tensor, time: int) -> Tensor:
    """Where there is something, (sequence, time, 1)."""
    return (torch.arange(time, device=lengths.device) < lengths[:, None])[..., None]


def zero_padding_steps(trace: CellStep, lengths: Tensor | None) -> CellStep:
    """The trace with zeros where there is nothing."""
    if lengths is None:
        return trace
    nothing = ~valid_steps(lengths, trace.h.shape[1])
    return type(trace)(*(values.masked_fill(nothing, 0) for values in trace))
