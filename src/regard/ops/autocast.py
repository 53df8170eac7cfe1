"""Ops under torch.autocast: inputs are cast as SDPA casts them, then autocast is disabled."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

Op = TypeVar("Op", bound=Callable[..., Any])


def is_autocast(x: Tensor) -> bool:
    """Whether autocast is enabled for the device of a tensor."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def cast_to_autocast(*tensors: Tensor) -> list[Tensor]:
    """Cast tensors as `F.scaled_dot_product_attention` does under autocast; float64 stays.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     cast_to_autocast(torch.zeros(1))[0].dtype
    torch.bfloat16
    """
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return [x if x.dtype == torch.float64 else x.to(dtype) for x in tensors]


def without_autocast(op: Op) -> Op:
    """Decorator: run an op of q, … without autocast, which would round its products.

    The first argument is q, or an object that holds it.
    """

    @wraps(op)
    def run(*args: Any, **kwargs: Any) -> Any:
        q = args[0] if args else kwargs["q"]
        q = getattr(q, "q", q)
        if not is_autocast(q):
            return op(*args, **kwargs)
        with torch.autocast(q.device.type, enabled=False):
            return op(*args, **kwargs)

    return run  # pyright: ignore[reportReturnType] the signature of op
