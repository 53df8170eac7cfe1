"""Weights of 16 bits from memory straight to the tensor cores: no shared memory between."""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def load_mma_fragments(
    ptr, first, ins, low, limit, ONCE: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
    DEEP: tl.constexpr,
):  # fmt: skip
    """Rows of a matrix, each thread 16 bytes at a time, as a product's tensor cores want them.

    (step, eight, warp, row, input): of 32 inputs in a row four threads have 8 each. What is read
    ONCE leaves the cache first.
    """
    step = tl.arange(0, DEEP // 32)[:, None, None, None, None]
    eight = tl.arange(0, ROWS // 8)[None, :, None, None, None]
    warp = tl.arange(0, SPLIT)[None, None, :, None, None]
    row = first + eight * 8 + tl.arange(0, 8)[None, None, None, :, None]
    at = low + warp * DEEP + step * 32 + tl.arange(0, 32)[None, None, None, None, :]
    # not so, but it puts eight rows along a warp and each warp at its own inputs
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
    pieces, LEFT: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr, DEEP: tl.constexpr
):
    """The same as (warp, row, input), or (warp, input, row), inputs in the order that they lie in.

    A product may take its inputs in any order, the same for both sides: in this one every number
    is already in the thread that wants it, and none goes through shared memory.
    """
    t = tl.reshape(pieces, [DEEP // 32, ROWS // 8, SPLIT, 8, 4, 2, 2, 2])
    if LEFT:
        t = tl.reshape(tl.permute(t, [2, 1, 3, 0, 5, 6, 4, 7]), [SPLIT, ROWS, DEEP])
    else:
        t = tl.reshape(tl.permute(t, [2, 0, 5, 6, 4, 7, 1, 3]), [SPLIT, DEEP, ROWS])
    return t


@triton.jit
@no_type_check
def vector_to_mma_operand(x, SPLIT: tl.constexpr, DEEP: tl.constexpr):
    """A vector as the right side of a product, its inputs in that order: eight equal columns."""
    t = tl.reshape(x, [SPLIT, DEEP // 32, 4, 2, 2, 2])
    t = tl.reshape(tl.permute(t, [0, 1, 3, 4, 2, 5]), [SPLIT, DEEP])
    return tl.broadcast_to(t[:, :, None], [SPLIT, DEEP, 8])


@triton.jit
@no_type_check
def reduce_over_warps(y, SPLIT: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """The sum of what all warps found, each number of it in one thread.

    A sum over warps would leave all of it in every warp; `split` wants both halves in one thread.
    """
    if SPLIT == 1:
        total = tl.reshape(y, [LEFT, RIGHT])
    else:
        halves = tl.permute(tl.reshape(y, [2, SPLIT // 2, LEFT, RIGHT]), [1, 2, 3, 0])
        one, other = tl.split(halves)
        total = reduce_over_warps(one + other, SPLIT // 2, LEFT, RIGHT)
    return total
