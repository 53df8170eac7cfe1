"""Matrix products of a step: of a batch, on tensor cores, and of a single row.

Of a single row, weights are loaded before the previous kernel ends.
"""

from typing import no_type_check

import triton
import triton.language as tl

from regard.decode.gpu.attention_kernels import attend_head
from regard.decode.gpu.common_kernels import (
    FFN_UP,
    LOGITS,
    RESIDUAL,
    SPLIT_K,
    activate,
    add_to_residual,
    load_float32,
    load_mma_fragments,
    load_norm_weights,
    locate_weights,
    normalize,
    reduce_over_warps,
    store_logit_stats,
    to_mma_operand,
    vector_to_mma_operand,
    wait_for_previous_kernel,
)


@triton.jit
@no_type_check
def batch_matmul(
    x_ptr, w_ptr, w2_ptr, w3_ptr, b_ptr, b2_ptr, b3_ptr, out_ptr,
    suppress_ptr, best_ptr, where_ptr, sum_ptr, end_a, end_b, outs, ins, rows, scale,
    BATCH: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, SLICE: tl.constexpr,
    STAGES: tl.constexpr, JOB: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x Wᵀ of a batch; ROWS outputs per program, over all inputs or one SLICE (split-K)."""
    block = tl.program_id(0)
    first = block * ROWS
    n = tl.arange(0, ROWS)
    m = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    d = tl.arange(0, DEPTH)
    matrix, bias, start = locate_weights(
        first, w_ptr, w2_ptr, w3_ptr, b_ptr, b2_ptr, b3_ptr, end_a, end_b, JOB
    )
    inside = first + n < outs
    some = m < rows
    low = tl.program_id(1) * SLICE
    more, open_ = _biases(bias, b2_ptr, start + n, inside, BIASED, GATED)
    wait_for_previous_kernel(PDL, False)
    y = tl.zeros([BATCH, ROWS], tl.float32)
    gate = y
    for k in tl.range(low, low + SLICE, DEPTH, num_stages=STAGES):
        live = k + d < ins
        x = tl.load(
            x_ptr + m[:, None] * ins + (k + d)[None, :], mask=some[:, None] & live[None, :],
            other=0.0,
        )  # fmt: skip
        places = (start + n)[None, :] * ins + (k + d)[:, None]
        both = inside[None, :] & live[:, None]
        w = tl.load(matrix + places, mask=both, other=0.0)
        y = tl.dot(x, w, y, input_precision=PRECISION)
        if GATED:
            g = tl.load(w2_ptr + places, mask=both, other=0.0)
            gate = tl.dot(x, g, gate, input_precision=PRECISION)
    _finish(
        y, gate, more, open_, out_ptr, suppress_ptr, best_ptr, where_ptr, sum_ptr, first, n,
        m, outs, rows, scale, JOB, GATED, ACTIVATION,
    )  # fmt: skip


@triton.jit
@no_type_check
def batch_matmul_registers(
    x_ptr, w_ptr, w2_ptr, w3_ptr, b_ptr, b2_ptr, b3_ptr, out_ptr,
    suppress_ptr, best_ptr, where_ptr, sum_ptr, end_a, end_b, outs, ins, rows, scale,
    BATCH: tl.constexpr, ROWS: tl.constexpr, DEEP: tl.constexpr, SPLIT: tl.constexpr,
    JOB: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """`batch_matmul` with all weights in registers before the wait; DEEP inputs per warp."""
    first = tl.program_id(0) * ROWS
    n = tl.arange(0, ROWS)
    m = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    matrix, bias, start = locate_weights(
        first, w_ptr, w2_ptr, w3_ptr, b_ptr, b2_ptr, b3_ptr, end_a, end_b, JOB
    )
    low = tl.program_id(1) * (SPLIT * DEEP)
    end = start + outs - first
    w = load_mma_fragments(matrix, start, ins, low, end, True, ROWS, SPLIT, DEEP)
    if GATED:
        g = load_mma_fragments(w2_ptr, start, ins, low, end, True, ROWS, SPLIT, DEEP)
    more, open_ = _biases(bias, b2_ptr, start + n, first + n < outs, BIASED, GATED)
    wait_for_previous_kernel(PDL, False)
    x = load_mma_fragments(
        x_ptr, tl.program_id(2) * BATCH, ins, low, rows, False, BATCH, SPLIT, DEEP
    )
    x = to_mma_operand(x, True, BATCH, SPLIT, DEEP)
    y = tl.dot(x, to_mma_operand(w, False, ROWS, SPLIT, DEEP))
    y = reduce_over_warps(y, SPLIT, BATCH, ROWS)
    gate = y
    if GATED:
        gate = tl.dot(x, to_mma_operand(g, False, ROWS, SPLIT, DEEP))
        gate = reduce_over_warps(gate, SPLIT, BATCH, ROWS)
    _finish(
        y, gate, more, open_, out_ptr, suppress_ptr, best_ptr, where_ptr, sum_ptr, first, n,
        m, outs, rows, scale, JOB, GATED, ACTIVATION,
    )  # fmt: skip


@triton.jit
@no_type_check
def _biases(ptr, open_ptr, n, inside, BIASED: tl.constexpr, GATED: tl.constexpr):
    """Biases of a block of outputs and gates, loaded before the wait; 0 if none."""
    more = n * 0.0
    open_ = n * 0.0
    if BIASED:
        more = tl.load(ptr + n, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            open_ = tl.load(open_ptr + n, mask=inside, other=0.0).to(tl.float32)
    return more, open_


@triton.jit
@no_type_check
def _finish(
    y, gate, more, open_, out_ptr, suppress_ptr, best_ptr, where_ptr, sum_ptr, first, n, m,
    outs, rows, scale, JOB: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Epilogue of a block: activation or logit statistics, and the store."""
    inside = first + n < outs
    some = m < rows
    block = tl.program_id(0)
    y += more[None, :]
    if JOB == FFN_UP:
        if GATED:  # noqa: SIM108 (only one of them is compiled)
            y = y * activate(gate + open_[None, :], ACTIVATION)
        else:
            y = activate(y, ACTIVATION)
    if JOB == LOGITS:
        y = y * scale
        store_logit_stats(
            y, inside, first + n, suppress_ptr, best_ptr + block, where_ptr + block,
            sum_ptr + block, m[:, None] + n[None, :] * 0, tl.num_programs(0), rows,
        )  # fmt: skip
    if JOB == SPLIT_K:
        out_ptr += tl.program_id(1) * rows * outs
    at = m[:, None] * outs + (first + n)[None, :]
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=some[:, None] & inside[None, :])


@triton.jit
@no_type_check
def _matrix(ptr, first, stride, at, inside, live):
    """Rows of a matrix as (piece, row, lane): whole rows per warp, so no exchange."""
    rows = first + tl.arange(0, inside.shape[0])
    both = inside[None, :, None] & live[:, None, :]
    place = ptr + rows[None, :, None] * stride + at[:, None, :]
    # a false hint that makes the compiler put lanes on the last axis and warps on the rows
    place = tl.max_contiguous(place, [1, 2, at.shape[1]])
    return tl.load(place, mask=both, other=0.0, eviction_policy="evict_first")


@triton.jit
@no_type_check
def _weights(
    ptr, first, end, stride, low, at, inside, live, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    if SPLIT:
        w = load_mma_fragments(ptr, first, stride, low, end, True, ROWS, SPLIT, WIDTH // SPLIT)
    else:
        w = _matrix(ptr, first, stride, at, inside, live)
    return w


@triton.jit
@no_type_check
def _times(w, x, ROWS: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr):
    """W x, on tensor cores (inputs split over SPLIT warps) or by multiply and sum."""
    if SPLIT:
        right = vector_to_mma_operand(x.to(w.dtype), SPLIT, WIDTH // SPLIT)
        y = tl.dot(to_mma_operand(w, True, ROWS, SPLIT, WIDTH // SPLIT), right)
        y = tl.reshape(tl.sum(y, 2), [SPLIT, ROWS, 1])
        y = tl.reshape(reduce_over_warps(y, SPLIT, ROWS, 1), [ROWS]) / 8
    else:
        y = tl.sum(tl.sum(w.to(tl.float32) * x[:, None, :], 0), 1)
    return y


@triton.jit
@no_type_check
def _along(WIDTH: tl.constexpr, LANES: tl.constexpr, SPLIT: tl.constexpr):
    if SPLIT:
        at = tl.arange(0, WIDTH)
    else:
        piece = tl.arange(0, WIDTH // LANES) * LANES
        at = piece[:, None] + tl.arange(0, LANES)[None, :]
    return at


@triton.jit
@no_type_check
def single_row_matmul(
    x_ptr, w_ptr, w2_ptr, w3_ptr, b_ptr, b2_ptr, b3_ptr, gain_ptr, shift_ptr, out_ptr,
    overflow_ptr, suppress_ptr, best_ptr, where_ptr, sum_ptr, end_a, end_b, outs, ins, eps, scale,
    limit,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, SPLIT: tl.constexpr,
    JOB: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, BIASED: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """norm(x) Wᵀ with an epilogue; ROWS outputs and WIDTH inputs per program.

    WIDTH covers all inputs, except for RESIDUAL, which may be split.
    """
    block = tl.program_id(0)
    first = block * ROWS
    low = tl.program_id(1) * WIDTH
    at = low + _along(WIDTH, LANES, SPLIT)
    live = at < ins
    n = tl.arange(0, ROWS)
    matrix, bias, start = locate_weights(
        first, w_ptr, w2_ptr, w3_ptr, b_ptr, b2_ptr, b3_ptr, end_a, end_b, JOB
    )
    inside = first + n < outs
    end = start + outs - first
    w = _weights(matrix, start, end, ins, low, at, inside, live, ROWS, WIDTH, SPLIT)
    if GATED:
        g = _weights(w2_ptr, start, end, ins, low, at, inside, live, ROWS, WIDTH, SPLIT)
    gain, shift = load_norm_weights(gain_ptr, shift_ptr, at, live, NORM, SHIFTED)
    more = tl.zeros([ROWS], tl.float32)
    if BIASED:
        once = first + n < tl.where(low == 0, outs, 0)  # only the first slice adds it
        more = tl.load(bias + start + n, mask=once, other=0.0).to(tl.float32)
        if GATED:
            open_ = tl.load(b2_ptr + start + n, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous_kernel(PDL, False)
    x = normalize(load_float32(x_ptr, at, live), gain, shift, live, ins, eps, NORM)
    y = _times(w, x, ROWS, WIDTH, SPLIT) + more
    if JOB == FFN_UP:
        if GATED:
            gate = _times(g, x, ROWS, WIDTH, SPLIT)
            if BIASED:
                gate += open_
            y = y * activate(gate, ACTIVATION)
        else:
            y = activate(y, ACTIVATION)
    if JOB == LOGITS:
        y = tl.where(tl.load(overflow_ptr) == 0, y * scale, float("nan"))
        store_logit_stats(
            y[None, :], inside, first + n, suppress_ptr, best_ptr + block, where_ptr + block,
            sum_ptr + block, n[None, :] * 0, 0, 1,
        )  # fmt: skip
    if JOB == RESIDUAL:
        add_to_residual(out_ptr, overflow_ptr, first + n, y, inside, limit)
    else:
        tl.store(out_ptr + first + n, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def attend_and_project(
    qkv_ptr, k_ptr, v_ptr, w_ptr, b_ptr, x_ptr, overflow_ptr, lengths_ptr, left_padding_ptr,
    cache_rows_ptr,
    cos_ptr, sin_ptr, heads, kv_heads, capacity, scale, window, dim, limit,
    OUTS: tl.constexpr, BIASED: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    GROUPS: tl.constexpr, NEAR: tl.constexpr, REPEATS: tl.constexpr, ROTARY: tl.constexpr,
    ROTATE_HALF: tl.constexpr, USE_CACHE_ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attention of one head and its share of the output projection, added to the residual.

    Programs of a head repeat the attention: keys are in L2, and another kernel would cost more.
    """
    head = tl.program_id(0)
    f = tl.arange(0, WIDTH)[None, None, None, :]
    # outputs have the layout of the keys, so that no data moves between threads
    n = tl.arange(0, OUTS // (GROUPS * NEAR))[:, None, None] * (GROUPS * NEAR)
    n += tl.arange(0, GROUPS)[None, :, None] * NEAR + tl.arange(0, NEAR)[None, None, :]
    n += tl.program_id(1) * OUTS
    inside = n < dim
    both = inside[:, :, :, None] & (f < HEAD_DIM)
    place = w_ptr + n[:, :, :, None] * (heads * HEAD_DIM) + head * HEAD_DIM + f
    place = tl.max_contiguous(place, [1, 2, 4, WIDTH])
    w = tl.load(place, mask=both, other=0.0, eviction_policy="evict_first")
    more = tl.zeros_like(n).to(tl.float32)
    if BIASED:
        end = tl.where(head == 0, dim, 0)  # only the first head adds it
        more = tl.load(b_ptr + n, mask=n < end, other=0.0).to(tl.float32)
    y = attend_head(
        qkv_ptr, k_ptr, v_ptr, lengths_ptr, left_padding_ptr, cache_rows_ptr, cos_ptr, sin_ptr,
        0, head, tl.program_id(1) == 0, heads, kv_heads, capacity, scale, window,
        HEAD_DIM, WIDTH, GROUPS, NEAR, REPEATS, ROTARY, ROTATE_HALF, USE_CACHE_ROWS, PDL,
    )  # fmt: skip
    part = tl.sum(w.to(tl.float32) * y[None, None, None, :], 3) + more
    add_to_residual(x_ptr, overflow_ptr, n, part, inside, limit)
