"""Building blocks of Triton kernels that stream over an attention map in tiles."""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.kernels.terms import INTERPRETED, KernelTerms


class KernelInputs(NamedTuple):
    """q, k and lse with strides and sizes, as kernels take them: one argument."""

    q: Tensor
    k: Tensor
    lse: Tensor
    q_b: int
    q_h: int
    q_i: int
    k_b: int
    k_h: int
    k_j: int
    heads: int
    group: int  # heads of q per head of k
    queries: int
    keys: int
    offset: int


def launch_arguments(
    q: Tensor, k: Tensor, lse: Tensor, offset: int, terms: KernelTerms
) -> dict[str, Any]:
    """The arguments of every kernel: inputs and terms, and what is known at compile time."""
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    # rows without visible keys get weight 0 without a branch; one launch, not two of masked_fill
    lse = lse.float().nan_to_num(torch.nan, torch.inf, 1e30).contiguous()
    (q_b, q_h, q_i, _), (k_b, k_h, k_j, _) = q.stride(), k.stride()
    (_, heads, queries, _), (_, kv_heads, keys, _) = q.shape, k.shape
    group = heads // kv_heads
    return {
        "inputs": KernelInputs(
            q, k, lse, q_b, q_h, q_i, k_b, k_h, k_j, heads, group, queries, keys, offset
        ),
        "terms": terms,
        "HEAD_DIM": q.shape[3],
        "HEAD_DIM_PADDED": max(16, 1 << (q.shape[3] - 1).bit_length()),  # Triton's takes longer
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "ieee",
        "GENERAL": not terms.is_band,
    }


def choose_tile(bytes_per_row: int, operands: int = 1) -> dict[str, int]:
    """Rows (BM), keys (BN), warps and stages: the fastest of those timed on an H200.

    A row of q (of q and out together, with two operands) takes `bytes_per_row`. 64 rows and 128
    keys, three stages deep, as long as two programs fit on a multiprocessor.
    """
    if INTERPRETED:  # small, so that tests cross every edge
        return {"BM": 16, "BN": 32, "num_warps": 4, "num_stages": 1}
    wide = bytes_per_row <= (256 if operands == 1 else 128 * operands)
    tile = {"BM": 64, "BN": 128 if wide else 64, "num_warps": 4, "num_stages": 3 if wide else 2}
    if bytes_per_row > 512 * operands:
        tile |= {"BN": 32, "num_stages": 1}
    return tile


@triton.jit
@no_type_check  # Triton has other types
def load_rows(pointer, at, stride, live, dims, DIM: tl.constexpr):
    """Rows `at` of a matrix, zeros where not live and beyond DIM."""
    mask = live[:, None] & (dims < DIM)[None, :]
    return tl.load(pointer + at[:, None] * stride + dims[None, :], mask=mask, other=0.0)


@triton.jit
@no_type_check
def row_segments(
    j0, inputs, terms, GENERAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Bounds of the rows that see keys j0 … j0 + BN, in five segments.

    [lo, a) mask edge, [a, x) plain, [x, y) diagonal, [y, c) plain, [c, hi) mask edge. Only the
    edges and the diagonal pay for masking.
    """
    left, right, offset = terms.left, terms.right, inputs.offset
    lo = tl.maximum(j0 - right - offset, 0) // BM * BM
    hi = tl.minimum(inputs.queries, tl.maximum(j0 + BN + left - offset, 0))
    x = tl.maximum(tl.minimum(tl.maximum(j0 - offset, 0) // BM * BM, hi), lo)
    y = tl.maximum(tl.cdiv(tl.maximum(j0 + BN - offset, 0), BM) * BM, x)
    a, c = x, y
    if not GENERAL:  # noqa: SIM102, one is known at compile time, the other at run time
        if j0 + BN <= inputs.keys:
            a = tl.cdiv(tl.maximum(j0 + BN - 1 - right - offset, 0), BM) * BM
            a = tl.minimum(tl.maximum(a, lo), x)
            c = tl.maximum(j0 + left - offset + 1, 0) // BM * BM
            c = tl.maximum(tl.minimum(c, tl.cdiv(hi, BM) * BM), y)
    return lo, a, x, tl.minimum(y, hi), tl.minimum(c, hi), hi


@triton.jit
@no_type_check
def segment_bounds(segment: tl.constexpr, lo, a, x, y, c, hi):
    """Start and stop of one of the five segments."""
    if segment == 0:
        start, stop = lo, a
    elif segment == 1:
        start, stop = a, x
    elif segment == 2:
        start, stop = x, y
    elif segment == 3:
        start, stop = y, c
    else:
        start, stop = tl.maximum(c, y), hi
    return start, stop


# Atomics of BM x 2 numbers on 2 · BM threads are issued by the warp that computed them; BM numbers
# would first go through shared memory and two barriers, which cost more. So a single number is
# sent as the first of a pair.


@triton.jit
@no_type_check
def atomic_add_rows(where, x, live):
    """Atomically add x, one number per row."""
    first = tl.arange(0, 2)[None, :] == 0
    tl.atomic_add(
        where[:, None] + tl.zeros([1, 2], tl.int32),
        tl.join(x, x),
        mask=live[:, None] & first,
        sem="relaxed",
    )


@triton.jit
@no_type_check
def atomic_max_rows(where, x, live):
    """Atomic maximum, one number per row; x holds pairs."""
    first = tl.arange(0, 2)[None, :] == 0
    tl.atomic_max(
        where[:, None] + tl.zeros([1, 2], tl.int32), x, mask=live[:, None] & first, sem="relaxed"
    )
