"""A recurrence step by step, with all gates and states kept: the truth that the kernels meet."""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.recurrence.steps import Step, advance
from regard.ops.recurrence.weights import State, Weights


def recur(
    x: Tensor, weights: Weights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State, Step]:
    """All states, the last real one, and every gate; x is (sequence, time, dim)."""
    live = None
    if lengths is not None:
        live = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        x = x.masked_fill(~live[..., None], 0)  # so that a NaN in the padding stays there
    # What is seen does not wait for what is remembered: one product for all times.
    seen = F.linear(x.transpose(0, 1), weights.w, weights.w_bias)
    steps = []
    for t, wx in enumerate(seen.unbind(0)):
        step = advance(wx, state, weights)
        steps.append(step)
        if live is None:
            state = step.state
        else:
            now = live[:, t, None]
            state = tuple(
                torch.where(now, new, old) for new, old in zip(step.state, state, strict=True)
            )
    trace = type(steps[0])(*(torch.stack(values, 1) for values in zip(*steps, strict=True)))
    if live is not None:
        trace = type(trace)(*(values.masked_fill(~live[..., None], 0) for values in trace))
    return trace.h, state, trace
