"""Kernels of the first and last part of a step, and device functions that all kernels share."""

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra import cuda

# epilogues of a matrix product
QKV: tl.constexpr = tl.constexpr(0)  # three stacked matrices: q, k, v
FFN_UP: tl.constexpr = tl.constexpr(1)  # activation, times the gate
RESIDUAL: tl.constexpr = tl.constexpr(2)  # added to the residual in `out`
LOGITS: tl.constexpr = tl.constexpr(3)  # logits, and per block the maximum and Σ exp
SPLIT_K: tl.constexpr = tl.constexpr(4)  # partial sums, which `embed_or_add` adds up
# units per 1.0 of a single row's fixed-point residual: atomic adds give one sum in any order
FIXED_POINT: tl.constexpr = tl.constexpr(2.0**28)
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3}
NORMS = {"none": 0, "layer": 1, "rms": 2}


@triton.jit
@no_type_check
def wait_for_previous_kernel(PDL: tl.constexpr, LATE: tl.constexpr):
    """Wait for the previous kernel (programmatic dependent launch); the next may start.

    With LATE it may start only after the wait. The first kernel of a step is LATE: the others read
    lengths and cache of the previous step without waiting.
    """
    if PDL:
        if not LATE:
            cuda.gdc_launch_dependents()
        cuda.gdc_wait()
        if LATE:
            cuda.gdc_launch_dependents()


@triton.jit
@no_type_check
def load_norm_weights(gain_ptr, shift_ptr, at, live, NORM: tl.constexpr, SHIFTED: tl.constexpr):
    """Weights of a norm; constants, so they are loaded before the wait."""
    gain = at * 0.0
    shift = at * 0.0
    if NORM != 0:
        gain = tl.load(gain_ptr + at, mask=live, other=0.0).to(tl.float32)
        if SHIFTED:
            shift = tl.load(shift_ptr + at, mask=live, other=0.0).to(tl.float32)
    return gain, shift


@triton.jit
@no_type_check
def normalize(x, gain, shift, live, dim, eps, NORM: tl.constexpr):
    if NORM == 1:
        x = tl.where(live, x - tl.sum(x) / dim, 0.0)
    if NORM != 0:
        x = x * tl.rsqrt(tl.sum(x * x) / dim + eps) * gain + shift
    return x


@triton.jit
@no_type_check
def activate(x, KIND: tl.constexpr):
    if KIND == 0:
        x = tl.maximum(x, 0.0)
    elif KIND == 1:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == 2:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x / (1.0 + tl.exp(-2.0 * inner))  # 0.5 (1 + tanh u) = 1 / (1 + exp(-2u))
    else:
        x = x / (1.0 + tl.exp(-x))
    return x


@triton.jit
@no_type_check
def load_float32(ptr, at, live):
    """A vector as float32, from float or fixed point."""
    if ptr.dtype.element_ty == tl.int64:
        x = tl.load(ptr + at, mask=live, other=0).to(tl.float32) / FIXED_POINT
    else:
        x = tl.load(ptr + at, mask=live, other=0.0).to(tl.float32)
    return x


@triton.jit
@no_type_check
def add_to_residual(x_ptr, overflow_ptr, at, part, live, limit):
    """Atomic add to the fixed-point residual; NaN and overflow are flagged."""
    wrong = live & ((tl.abs(part) < limit) == 0)
    tl.store(overflow_ptr + at * 0, 1, mask=wrong)
    steps = (tl.where(wrong, 0.0, part) * FIXED_POINT).to(tl.int64)
    tl.atomic_add(x_ptr + at, steps, mask=live, sem="relaxed")


@triton.jit
@no_type_check
def locate_weights(
    first, w_ptr, w2_ptr, w3_ptr, b_ptr, b2_ptr, b3_ptr, end_a, end_b, JOB: tl.constexpr
):  # fmt: skip
    """Matrix, bias and first row of a block of outputs; QKV stacks three matrices."""
    matrix = w_ptr
    bias = b_ptr
    start = first
    if JOB == QKV:
        if first >= end_a:
            matrix = w2_ptr
            bias = b2_ptr
            start = first - end_a
        if first >= end_b:
            matrix = w3_ptr
            bias = b3_ptr
            start = first - end_b
    return matrix, bias, start


@triton.jit
@no_type_check
def store_logit_stats(
    y, inside, token, suppress_ptr, best_ptr, where_ptr, sum_ptr, row, blocks, rows
):  # fmt: skip
    """Per block of logits: the allowed maximum, its token, and the log-sum-exp."""
    largest = tl.max(tl.where(inside[None, :], y, -float("inf")), 1)
    total = tl.sum(tl.where(inside[None, :], tl.exp(y - largest[:, None]), 0.0), 1)
    free = inside & (tl.load(suppress_ptr + token, mask=inside, other=1) == 0)
    y = tl.where(free[None, :], y, -float("inf"))
    best = tl.max(y, 1)
    here = (y == best[:, None]) & inside[None, :]
    where = tl.min(tl.where(here, token[None, :], 2147483647), 1)
    index = tl.min(row, 1)
    keep = index < rows
    tl.store(best_ptr + index * blocks, best, mask=keep)
    tl.store(where_ptr + index * blocks, where, mask=keep)
    # as log-sum-exp, so that blocks combine whatever their maxima are
    tl.store(sum_ptr + index * blocks, largest + tl.log(total), mask=keep)


@triton.jit
@no_type_check
def embed_or_add(
    token_ptr, lengths_ptr, left_padding_ptr, table_ptr, positions_ptr,
    parts_ptr, bias_ptr, x_ptr, overflow_ptr, out_ptr, gain_ptr, shift_ptr,
    dim, rows, eps, scale, limit,
    WIDTH: tl.constexpr, FIRST: tl.constexpr, HAS_POSITIONS: tl.constexpr, SPLITS: tl.constexpr,
    BIASED: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Token embedding (FIRST), or residual plus split-K sums; and its norm."""
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    live = at < dim
    gain, shift = load_norm_weights(gain_ptr, shift_ptr, at, live, NORM, SHIFTED)
    if BIASED:
        bias = tl.load(bias_ptr + at, mask=live, other=0.0).to(tl.float32)
    wait_for_previous_kernel(PDL, FIRST)
    if FIRST:
        token = tl.load(token_ptr + row)
        x = tl.load(table_ptr + token * dim + at, mask=live, other=0.0).to(tl.float32) * scale
        if HAS_POSITIONS:
            place = tl.maximum(tl.load(lengths_ptr + row) - tl.load(left_padding_ptr + row), 0)
            x += tl.load(positions_ptr + place * dim + at, mask=live, other=0.0).to(tl.float32)
    else:
        x = tl.load(x_ptr + row * dim + at, mask=live, other=0.0)
        for part in tl.static_range(SPLITS):
            x += tl.load(parts_ptr + (part * rows + row) * dim + at, mask=live, other=0.0)
        if BIASED:
            x += bias
    if x_ptr.dtype.element_ty == tl.int64:
        wrong = live & ((tl.abs(x) < limit) == 0)
        tl.store(overflow_ptr, tl.max(wrong.to(tl.int32), 0))
        steps = (tl.where(wrong, 0.0, x) * FIXED_POINT).to(tl.int64)
        tl.store(x_ptr + at, steps, mask=live)
    else:
        tl.store(x_ptr + row * dim + at, x, mask=live)
        y = normalize(x, gain, shift, live, dim, eps, NORM)
        tl.store(out_ptr + row * dim + at, y.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
@no_type_check
def argmax_token(
    best_ptr, where_ptr, sum_ptr, token_ptr, lengths_ptr, start_lengths_ptr, ended_ptr, end_ptr,
    tokens_ptr, log_probs_ptr, end_flags_ptr, blocks, capacity,
    BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Most likely token of a row and its log-probability; advances the row."""
    wait_for_previous_kernel(PDL, False)
    row = tl.program_id(0)
    at = tl.arange(0, BLOCKS)
    live = at < blocks
    best = tl.load(best_ptr + row * blocks + at, mask=live, other=-float("inf"))
    where = tl.load(where_ptr + row * blocks + at, mask=live, other=2147483647)
    sums = tl.load(sum_ptr + row * blocks + at, mask=live, other=-float("inf"))
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, where, 2147483647), 0).to(tl.int64)
    token = tl.where(token == 2147483647, 0, token)  # NaN logits have no maximum
    most = tl.max(sums, 0)
    log_prob = top - most - tl.log(tl.sum(tl.exp(sums - most), 0))
    end = tl.load(end_ptr)
    ended = tl.load(ended_ptr + row)
    token = tl.where(ended != 0, end, token)
    log_prob = tl.where(ended != 0, 0.0, log_prob)
    ended = tl.where(token == end, 1, ended)
    time = tl.load(lengths_ptr + row)
    step = row * capacity + time - tl.load(start_lengths_ptr + row)
    tl.store(tokens_ptr + step, token)
    tl.store(log_probs_ptr + step, log_prob)
    tl.store(end_flags_ptr + step, ended)
    tl.store(token_ptr + row, token)
    tl.store(ended_ptr + row, ended)
    tl.store(lengths_ptr + row, time + 1)


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
        values = tl.load(place, mask=both, other=0.0, eviction_policy="evict_first")
    else:
        values = tl.load(place, mask=both, other=0.0)
    return values


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
