"""Linear layers on a CPU by the faster library, with prepacked weights for few rows."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

ONEDNN_ROWS = (3, 5, 6, 7)  # row counts for which oneDNN is faster than MKL on an Intel CPU
MIN_ONEDNN_SIZE = 64  # rows and columns from which its longer call pays

LinearFunction = Callable[[Tensor], Tensor]


def packed_linear(weight: Tensor, bias: Tensor | None, rows: int) -> LinearFunction | None:
    """x Wᵀ + b with weights packed for `rows` rows of x; None if this torch cannot pack them.

    Chosen by timings on CPUs with AVX-512 of Intel and AMD, float32, weights of 256 × 1,024 to
    512 × 32,000. Packing takes as long as about ten products with few rows.

    >>> linear = packed_linear(torch.tensor([[2.0]]), None, 1)
    >>> linear(torch.tensor([[3.0]]))
    tensor([[6.]])
    """
    if rows == 1:
        return transposed_linear(weight, bias)
    if weight.is_cuda or weight.dtype != torch.float32:
        return None
    try:
        if rows in ONEDNN_ROWS or mkl_is_slow():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
            product = torch.ops.mkldnn._linear_pointwise.default
            return lambda x: product(x, packed, bias, "none", [], "")
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


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` for a matrix x, by the faster library; differentiable once.

    >>> linear(torch.tensor([[3.0]]), torch.tensor([[2.0]]), torch.tensor([1.0]))
    tensor([[7.]])
    """
    fits = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    if fits and mkl_is_slow() and not torch.is_autocast_enabled("cpu"):
        return _OneDNNLinear.apply(x, weight, bias)
    return F.linear(x, weight, bias)


def batched_product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a bᵀ into `out`, matrix by matrix, by the faster library; no gradient.

    >>> batched_product(torch.ones(2, 1, 3), torch.ones(2, 1, 3), torch.empty(2, 1, 1)).tolist()
    [[[3.0]], [[3.0]]]
    """
    is_large = min(a.shape[-2], b.shape[-2]) >= MIN_ONEDNN_SIZE
    fits = is_large and a.dtype == torch.float32 and a.device.type == "cpu"
    if not (fits and mkl_is_slow() and torch.backends.cpu.get_cpu_capability() == "AVX512"):
        return torch.matmul(a, b.mT, out=out)
    matrices = (x.reshape(-1, *x.shape[-2:]) for x in (a, b, out))
    for x, y, product in zip(*matrices, strict=True):
        product.copy_(_onednn(x, y))
    return out


@cache
def mkl_is_slow() -> bool:
    """Whether MKL, which torch calls by default, leaves half of the CPU unused.

    On AMD it runs its kernels for AVX2; oneDNN takes 0.4 of its time with AVX-512, 0.85 without.
    """
    name = getattr(torch.cpu, "get_capabilities", dict)().get("cpu_name", "")
    return "AMD" in name and torch.backends.mkldnn.is_available()


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _onednn(grad, weight.mT) if needs_x else None,
            _onednn(grad.mT, x.mT) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
        )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
