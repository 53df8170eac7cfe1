"""One matrix times many vectors, one after another: its weights in the order that is quickest."""

from collections.abc import Callable

import torch
from torch import Tensor

ONEDNN_ROWS = (3, 5, 6, 7)  # rows for which oneDNN is quicker than MKL

LinearFunction = Callable[[Tensor], Tensor]


def packed_linear(weight: Tensor, bias: Tensor | None, rows: int) -> LinearFunction | None:
    """x Wᵀ + b for so many rows of x; None where this torch knows no order but its own.

    As measured on a Xeon with AVX-512, float32 and weights of 256 by 1,024 up to 512 by 32,000.
    To bring weights into order takes as long as about ten products of few rows.

    >>> twice = packed_linear(torch.tensor([[2.0]]), None, 1)
    >>> twice(torch.tensor([[3.0]]))
    tensor([[6.]])
    """
    if rows == 1:
        return transposed_linear(weight, bias)
    if weight.is_cuda or weight.dtype != torch.float32:
        return None
    try:
        if rows in ONEDNN_ROWS:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
            return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), rows)
        return lambda x: torch.ops.mkl._mkl_linear(x, packed, weight, bias, rows)
    except (AttributeError, RuntimeError, NotImplementedError):  # a torch without these
        return None


def transposed_linear(weight: Tensor, bias: Tensor | None) -> LinearFunction:
    """x Wᵀ + b with W turned: read once, side by side is how memory is quickest.

    >>> transposed_linear(torch.tensor([[2.0]]), torch.tensor([1.0]))(torch.tensor([[3.0]]))
    tensor([[7.]])
    """
    turned = weight.mT.contiguous()
    return lambda x: x @ turned if bias is None else torch.addmm(bias, x, turned)
