"""16-bit operands from global memory to tensor cores without shared memory."""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def load_mma_fragments(
    ptr, first, ins, low, limit, ONCE: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
    DEEP: tl.constexpr,
):  # fmt: skip
    """Rows of a matrix in the register layout of tensor cores, 16 bytes per thread and load.

    Axes (step, eight, warp, row, input): four threads hold 8 inputs each of 32 in a row. ONCE
    marks data that is not read again (evict first).
    """
    step = tl.arange(0, DEEP // 32)[:, None, None, None, None]
    eight = tl.arange(0, ROWS // 8)[None, :, None, None, None]
    warp = tl.arange(0, SPLIT)[None, None, :, None, None]
    row = first + eight * 8 + tl.arange(0, 8)[None, None, None, :, None]
    at = low + warp * DEEP + step * 32 + tl.arange(0, 32)[None, None, None, None, :]
    # a false hint that makes the compiler put eight rows on a warp, inputs split over warps
    place = tl.max_contiguous(ptr + row * ins + at, [1, 1, 2, 4, 32])
    both = (row < limit) & (at < ins)
    if ONCE:
        found = tl.load(place, mask=both, other=0.0, eviction_policy="evict_first")
    else:
        found = tl.load(place, mask=both, other=0.0)
    return found


@triton.jit
@no_type_check
def to_mma_operand(
    fragments, LEFT: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr, DEEP: tl.constexpr
):
    """Fragments as (warp, row, input), or (warp, input, row), inputs permuted.

    A product may sum over its inputs in any order, the same on both sides: in this one every value
    is already in the thread that needs it.
    """
    t = tl.reshape(fragments, [DEEP // 32, ROWS // 8, SPLIT, 8, 4, 2, 2, 2])
    if LEFT:
        t = tl.reshape(tl.permute(t, [2, 1, 3, 0, 5, 6, 4, 7]), [SPLIT, ROWS, DEEP])
    else:
        t = tl.reshape(tl.permute(t, [2, 0, 5, 6, 4, 7, 1, 3]), [SPLIT, DEEP, ROWS])
    return t


@triton.jit
@no_type_check
def vector_to_mma_operand(x, SPLIT: tl.constexpr, DEEP: tl.constexpr):
    """A vector as right operand in the same order: eight equal columns."""
    t = tl.reshape(x, [SPLIT, DEEP // 32, 4, 2, 2, 2])
    t = tl.reshape(tl.permute(t, [0, 1, 3, 4, 2, 5]), [SPLIT, DEEP])
    return tl.broadcast_to(t[:, :, None], [SPLIT, DEEP, 8])


@triton.jit
@no_type_check
def reduce_over_warps(y, SPLIT: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Sum over warps, each result in one thread.

    `tl.sum` would leave all of it in every warp; `tl.split` needs both halves in one thread.
    """
    if SPLIT == 1:
        total = tl.reshape(y, [LEFT, RIGHT])
    else:
        halves = tl.permute(tl.reshape(y, [2, SPLIT // 2, LEFT, RIGHT]), [1, 2, 3, 0])
        one, other = tl.split(halves)
        total = reduce_over_warps(one + other, SPLIT // 2, LEFT, RIGHT)
    return total
