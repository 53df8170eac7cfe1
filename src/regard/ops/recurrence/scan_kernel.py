"""What is kept and what is new, carried along time by one Triton kernel: for CUDA.

There each step of a walk waits for its launch, which takes longer than all sums of the step.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_SIZE = 128  # numbers that a program carries


def linear_scan(decay: Tensor, inputs: Tensor, initial: Tensor) -> Tensor:
    """c_t = kept_t · c_{t-1} + new_t, from c_0 = first; (sequence, time, hidden)."""
    return _Carried.apply(decay, inputs, initial)


class _Carried(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kept: Tensor, new: Tensor, first: Tensor) -> Tensor:
        kept, first = kept.contiguous(), first.contiguous()
        cells, _ = _launch(kept, new.contiguous(), first, back=False)
        ctx.save_for_backward(kept, cells, first)
        return cells

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, d_cells: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        kept, cells, first = ctx.saved_tensors
        d_new, d_first = _launch(kept, d_cells.contiguous(), torch.zeros_like(first), back=True)
        before = torch.cat([first[:, None], cells[:, :-1]], 1)
        return d_new * before, d_new, d_first


def _launch(kept: Tensor, new: Tensor, first: Tensor, *, back: bool) -> tuple[Tensor, Tensor]:
    out, last = torch.empty_like(new), torch.empty_like(first)
    numbers, (_, time, hidden) = first.numel(), kept.shape
    _kernel[(triton.cdiv(numbers, BLOCK_SIZE),)](
        kept, new, first, out, last, time, hidden, numbers,
        BACK=back, WIDE=kept.dtype == torch.float64, BLOCK=BLOCK_SIZE,
    )  # fmt: skip
    return out, last


@triton.jit
@no_type_check  # Triton has its own types
def _kernel(
    KEPT, NEW, FIRST, OUT, LAST, time, hidden, numbers,
    BACK: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = n < numbers
    at = (n // hidden).to(tl.int64) * time * hidden + n % hidden
    kind: tl.constexpr = tl.float64 if WIDE else tl.float32
    c = tl.load(FIRST + n, mask=live, other=0.0).to(kind)
    for step in range(time):
        t = time - 1 - step if BACK else step
        kept = tl.load(KEPT + at + t * hidden, mask=live, other=0.0).to(kind)
        new = tl.load(NEW + at + t * hidden, mask=live, other=0.0).to(kind)
        if BACK:  # what comes back to a cell goes on to the one before it by what was kept
            c += new
            tl.store(OUT + at + t * hidden, c.to(OUT.dtype.element_ty), mask=live)
            c *= kept
        else:
            c = kept * c + new
            tl.store(OUT + at + t * hidden, c.to(OUT.dtype.element_ty), mask=live)
    tl.store(LAST + n, c.to(LAST.dtype.element_ty), mask=live)
