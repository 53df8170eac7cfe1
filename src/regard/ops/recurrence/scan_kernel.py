"""First-order linear recurrence as one Triton kernel.

Step by step on CUDA, the launch of each step takes longer than its arithmetic.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_SIZE = 128  # numbers per program


def linear_scan(decay: Tensor, inputs: Tensor, initial: Tensor) -> Tensor:
    """c_t = decay_t · c_{t-1} + inputs_t, c_0 = initial; (sequence, time, hidden)."""
    return _LinearScan.apply(decay, inputs, initial)


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, decay: Tensor, inputs: Tensor, initial: Tensor) -> Tensor:
        decay, initial = decay.contiguous(), initial.contiguous()
        cells, _ = _launch(decay, inputs.contiguous(), initial, back=False)
        ctx.save_for_backward(decay, cells, initial)
        return cells

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, d_cells: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        decay, cells, initial = ctx.saved_tensors
        d_new, d_first = _launch(decay, d_cells.contiguous(), torch.zeros_like(initial), back=True)
        before = torch.cat([initial[:, None], cells[:, :-1]], 1)
        return d_new * before, d_new, d_first


def _launch(decay: Tensor, inputs: Tensor, initial: Tensor, *, back: bool) -> tuple[Tensor, Tensor]:
    out, last = torch.empty_like(inputs), torch.empty_like(initial)
    numbers, (_, time, hidden) = initial.numel(), decay.shape
    _kernel[(triton.cdiv(numbers, BLOCK_SIZE),)](
        decay, inputs, initial, out, last, time, hidden, numbers,
        BACK=back, DOUBLE=decay.dtype == torch.float64, BLOCK=BLOCK_SIZE,
    )  # fmt: skip
    return out, last


@triton.jit
@no_type_check  # Triton has other types
def _kernel(
    DECAY, INPUTS, INITIAL, OUT, LAST, time, hidden, numbers,
    BACK: tl.constexpr, DOUBLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = n < numbers
    at = (n // hidden).to(tl.int64) * time * hidden + n % hidden
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    c = tl.load(INITIAL + n, mask=live, other=0.0).to(kind)
    for step in range(time):
        t = time - 1 - step if BACK else step
        decay = tl.load(DECAY + at + t * hidden, mask=live, other=0.0).to(kind)
        inputs = tl.load(INPUTS + at + t * hidden, mask=live, other=0.0).to(kind)
        if BACK:  # the gradient reaches the previous cell through the decay
            c += inputs
            tl.store(OUT + at + t * hidden, c.to(OUT.dtype.element_ty), mask=live)
            c *= decay
        else:
            c = decay * c + inputs
            tl.store(OUT + at + t * hidden, c.to(OUT.dtype.element_ty), mask=live)
    tl.store(LAST + n, c.to(LAST.dtype.element_ty), mask=live)
