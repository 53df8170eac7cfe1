"""Matrix products of a batch, on tensor cores."""

from typing import no_type_check

import triton
import triton.language as tl

from regard.decode.gpu.common_kernels import (
    FFN_UP,
    LOGITS,
    SPLIT_K,
    activate,
    load_mma_fragments,
    locate_weights,
    reduce_over_warps,
    store_logit_stats,
    to_mma_operand,
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
