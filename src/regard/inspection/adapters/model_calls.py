"""Calls of a model: its inputs, its logits, and scalars computed from them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from regard.errors import ShapeError

Scalar = Callable[[nn.Module], Tensor]  # runs the model it gets


def run_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor, a sequence of arguments or a mapping."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(inputs) if isinstance(inputs, Tensor) else model(*inputs)


def get_logits(output: Any) -> Tensor:
    """The logits in the output of a model: a tensor, `.logits`, or the first entry."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, Sequence) and output:
        logits = output[0]
    if not isinstance(logits, Tensor):
        raise ShapeError(
            f"model: needs to return logits, got {type(output).__name__}; "
            "try a model with a head, or what_if around a call"
        )
    return logits


def get_output(output: Any) -> Tensor:
    """The logits, or the last hidden states of a model without a head.

    >>> from transformers.modeling_outputs import BaseModelOutput
    >>> get_output(BaseModelOutput(last_hidden_state=torch.ones(1)))
    tensor([1.])
    """
    hidden = getattr(output, "last_hidden_state", None)
    has_logits = isinstance(getattr(output, "logits", None), Tensor)  # Moshi returns both
    return hidden if isinstance(hidden, Tensor) and not has_logits else get_logits(output)


def check_scalar(name: str, value: object) -> None:
    """Raise unless it is a tensor of one number that requires a gradient."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(f"{name}: needs to return a scalar, got {got}; try .sum()")
    if not value.requires_grad:
        raise ShapeError(
            f"{name}: needs to require a gradient, got a detached one; try without no_grad"
        )
