"""Runs a model with gradients, and hands the output of each attention to a function."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.module_tracker import Caller, check_glob, matches
from regard.inspection.record.look import patched
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting

Scalar = Callable[[nn.Module], Tensor]  # runs the model it gets
ReplaceOutput = Callable[[AttentionCall, AttentionResult, Caller], Tensor]


def run_with_gradient(
    model: nn.Module, function: Scalar, name: str, at: str, replace_output: ReplaceOutput
) -> Tensor:
    """The scalar of `function`; attentions that match `at` continue with the replaced output."""
    check_glob("at", at)
    matched = False

    def interceptor(call: AttentionCall, proceed: Proceed) -> AttentionResult:
        nonlocal matched
        out, lse = proceed(call)
        caller = tracker.caller
        if matches(at, caller.name, caller.path):
            matched, out = True, replace_output(call, (out, lse), caller)
        return out, lse

    with (
        patched(model) as tracker,
        intercepting(interceptor, tracker, other_threads=False),
        torch.enable_grad(),
    ):
        value = function(model)
    if not matched:
        raise LookError(f"at: needs an attention that ran, got {at!r}; try '*'")
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(f"{name}: needs to return a scalar, got {got}; try .sum()")
    if not value.requires_grad:
        raise ShapeError(
            f"{name}: needs to require a gradient, got a detached one; try without no_grad"
        )
    return value
