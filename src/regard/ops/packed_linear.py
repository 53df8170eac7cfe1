"""Linear layers with prepacked weights, for many products with few rows."""

from collections.abc import Callable

import torch
from torch import Tensor

ONEDNN_ROWS = (3, 5, 6, 7)  # row counts for which oneDNN is faster than MKL

LinearFunction = Callable[[Tensor], Tensor]


def packed_linear(weight: Tensor, bias: Tensor | None, rows: int) -> LinearFunction | None:
    """x Wᵀ + b with weights packed for `rows` rows of x; None if this torch cannot pack them.

    Chosen by timings on a Xeon with AVX-512, float32, weights of 256 × 1,024 to 512 × 32,000.
    Packing takes as long as about ten products with few rows.

    >>> linear = packed_linear(torch.tensor([[2.0]]), None, 1)
    >>> linear(torch.tensor([[3.0]]))
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
    except (AttributeError, RuntimeError, NotImplementedError):  # not in this build of torch
        return None


def transposed_linear(weight: Tensor, bias: Tensor | None) -> LinearFunction:
    """x Wᵀ + b with a contiguous copy of Wᵀ, the fastest layout for one row.

    >>> transposed_linear(torch.tensor([[2.0]]), torch.tensor([1.0]))(torch.tensor([[3.0]]))
    tensor([[7.]])
    """
    transposed = weight.mT.contiguous()
    return lambda x: x @ transposed if bias is None else torch.addmm(bias, x, transposed)
