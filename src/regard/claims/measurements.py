"""What several experiments measure: derivatives, slopes, numbers of parameters and operations."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def jacobian(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Derivative of f at x: the axes of the output, then those of the input.

    >>> jacobian(torch.square, torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    result = torch.autograd.functional.jacobian(f, x)
    assert isinstance(result, Tensor)
    return result


def slope(x: Iterable[Any], y: Iterable[Any]) -> float:
    """Slope of the least-squares line of y over x.

    >>> slope([1, 2, 3], [5, 7, 9])
    2.0
    """
    a, b = (torch.as_tensor([float(v) for v in values]).double() for values in (x, y))
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b / (a @ a))


def log_slope(x: Iterable[Any], y: Iterable[Any]) -> float:
    """Power of x that y follows: the slope of log y over log x.

    >>> round(log_slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return slope(*([math.log(v) for v in values] for values in (x, y)))


def count_parameters(module: nn.Module) -> int:
    """Number of trainable numbers of a module; shared ones count once."""
    return sum(p.numel() for p in module.parameters())


def graph_depth(y: Tensor) -> int:
    """Operations on the longest path of the autograd graph that leads to y."""
    depths: dict[Any, int] = {}
    waiting: list[Any] = [y.grad_fn]
    while waiting:
        node = waiting[-1]
        parents = [p for p, _ in node.next_functions if p is not None]
        missing = [p for p in parents if p not in depths]
        if missing:
            waiting += missing
        else:
            depths[node] = 1 + max((depths[p] for p in parents), default=0)
            waiting.pop()
    return depths[y.grad_fn]


def to_tensor(matrix: Any) -> Tensor:
    """An exact matrix of a worked solution, in float64."""
    rows = [[float(x) for x in matrix.row(i)] for i in range(matrix.rows)]
    return torch.tensor(rows, dtype=torch.float64)
