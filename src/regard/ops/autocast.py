"""torch.autocast at our ops: inputs are cast as torch's attention casts them, then it is off."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def is_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of a tensor."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def cast_to_autocast(*tensors: Tensor) -> list[Tensor]:
    """Tensors as `F.scaled_dot_product_attention` takes them under autocast; float64 stays.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     cast_to_autocast(torch.zeros(1))[0].dtype
    torch.bfloat16
    """
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return [x if x.dtype == torch.float64 else x.to(dtype) for x in tensors]


def disable_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """No autocast on the device of a tensor."""
    return torch.autocast(x.device.type, enabled=False)


def without_autocast(op: Callable[..., Any]) -> Callable[..., Any]:
    """Run an op without autocast, which would round its products; its first argument is a tensor,
    or has one as `.q`.
    """

    @wraps(op)
    def alone(first: Any, *args: Any, **kwargs: Any) -> Any:
        x = first if isinstance(first, Tensor) else first.q
        if not is_autocast(x):
            return op(first, *args, **kwargs)
        with disable_autocast(x):
            return op(first, *args, **kwargs)

    return alone
