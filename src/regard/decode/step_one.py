"""The products of one row: weights are on their way before the kernel before is done."""

from typing import no_type_check

import triton
import triton.language as tl

from regard.decode.step_attention import attention
from regard.decode.step_kernels import (
    ADDED,
    HIDDEN,
    SCORES,
    THREE,
    activated,
    add_part,
    begin,
    gain_of,
    leave_scores,
    normed,
    number,
    pick,
    whole,
)
from regard.decode.step_tiles import across, added_up, column, fits, fits_across, pieces


@triton.jit
@no_type_check
def _matrix(ptr, first, stride, at, inside, live):
    """Rows of a matrix as (piece, row, lane): a warp has whole rows, so it need not meet others."""
    rows = first + tl.arange(0, inside.shape[0])
    both = inside[None, :, None] & live[:, None, :]
    place = ptr + rows[None, :, None] * stride + at[:, None, :]
    # not so, but it puts lanes along the last axis and warps along the rows
    place = tl.max_contiguous(place, [1, 2, at.shape[1]])
    return tl.load(place, mask=both, other=0.0, eviction_policy="evict_first")


@triton.jit
@no_type_check
def _weights(
    ptr, first, end, stride, low, at, inside, live, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    if SPLIT:
        w = pieces(ptr, first, stride, low, end, True, ROWS, SPLIT, WIDTH // SPLIT)
    else:
        w = _matrix(ptr, first, stride, at, inside, live)
    return w


@triton.jit
@no_type_check
def _times(w, x, ROWS: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr):
    """W x, by tensor cores (each of SPLIT warps has its inputs) or as sums of products."""
    if SPLIT:
        right = column(x.to(w.dtype), SPLIT, WIDTH // SPLIT)
        y = tl.dot(fits(w, True, ROWS, SPLIT, WIDTH // SPLIT), right)
        y = tl.reshape(tl.sum(y, 2), [SPLIT, ROWS, 1])
        y = tl.reshape(added_up(y, SPLIT, ROWS, 1), [ROWS]) / 8
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
def one_row(
    x_ptr, next_ptr, w_ptr, w2_ptr, w3_ptr, b_ptr, b2_ptr, b3_ptr, gain_ptr, shift_ptr, out_ptr,
    wrong_ptr,
    barred_ptr, best_ptr, where_ptr, sum_ptr, end_a, end_b, outs, ins, eps, scale, limit,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, SPLIT: tl.constexpr,
    JOB: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, BIASED: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """W x for one x: the norm first, the rest after; ROWS outputs a program, WIDTH inputs.

    That is all of them, but what is ADDED to the residual may come in slices.
    """
    block = tl.program_id(0)
    first = block * ROWS
    low = tl.program_id(1) * WIDTH
    at = low + _along(WIDTH, LANES, SPLIT)
    live = at < ins
    n = tl.arange(0, ROWS)
    if JOB == THREE:
        matrix, start = pick(first, w_ptr, w2_ptr, w3_ptr, end_a, end_b)
        bias, _ = pick(first, b_ptr, b2_ptr, b3_ptr, end_a, end_b)
    else:
        matrix = w_ptr
        bias = b_ptr
        start = first
    inside = first + n < outs
    end = start + outs - first
    w = _weights(matrix, start, end, ins, low, at, inside, live, ROWS, WIDTH, SPLIT)
    if GATED:
        g = _weights(w2_ptr, start, end, ins, low, at, inside, live, ROWS, WIDTH, SPLIT)
    gain, shift = gain_of(gain_ptr, shift_ptr, at, live, NORM, SHIFTED)
    more = tl.zeros([ROWS], tl.float32)
    if BIASED:
        own = first + n < tl.where(low == 0, outs, 0)  # one slice alone has it
        more = tl.load(bias + start + n, mask=own, other=0.0).to(tl.float32)
        if GATED:
            open_ = tl.load(b2_ptr + start + n, mask=inside, other=0.0).to(tl.float32)
    begin(PDL, False)
    if (JOB == THREE) | (JOB == SCORES):
        x = whole(x_ptr, next_ptr, at, live, ins)
    else:
        x = number(x_ptr, at, live)
    x = normed(x, gain, shift, live, ins, eps, NORM)
    y = _times(w, x, ROWS, WIDTH, SPLIT) + more
    if JOB == HIDDEN:
        if GATED:
            gate = _times(g, x, ROWS, WIDTH, SPLIT)
            if BIASED:
                gate += open_
            y = y * activated(gate, ACTIVATION)
        else:
            y = activated(y, ACTIVATION)
    if JOB == SCORES:
        y = tl.where(tl.load(wrong_ptr) == 0, y * scale, float("nan"))
        leave_scores(
            y[None, :], inside, first + n, barred_ptr, best_ptr + block, where_ptr + block,
            sum_ptr + block, n[None, :] * 0, 0, 1,
        )  # fmt: skip
    if JOB == ADDED:
        add_part(out_ptr, wrong_ptr, first + n, y, inside, limit)
    else:
        tl.store(out_ptr + first + n, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def attend_out(
    qkv_ptr, k_ptr, v_ptr, w_ptr, b_ptr, x_ptr, wrong_ptr, time_ptr, skip_ptr, home_ptr,
    cos_ptr, sin_ptr, heads, key_heads, room, scale, window, dim, limit,
    OUTS: tl.constexpr, BIASED: tl.constexpr, FEAT: tl.constexpr, WIDTH: tl.constexpr,
    GROUPS: tl.constexpr, NEAR: tl.constexpr, REPEATS: tl.constexpr, ROTARY: tl.constexpr,
    HALVES: tl.constexpr, HOMES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A head's attention and what it gives to OUTS outputs, added to the residual.

    Each program of a head attends anew: keys come from the L2 cache, a kernel more would cost more.
    """
    head = tl.program_id(0)
    f = tl.arange(0, WIDTH)[None, None, None, :]
    # outputs lie in a program as keys do: what was found is then where it is needed
    n = tl.arange(0, OUTS // (GROUPS * NEAR))[:, None, None] * (GROUPS * NEAR)
    n += tl.arange(0, GROUPS)[None, :, None] * NEAR + tl.arange(0, NEAR)[None, None, :]
    n += tl.program_id(1) * OUTS
    inside = n < dim
    both = inside[:, :, :, None] & (f < FEAT)
    place = w_ptr + n[:, :, :, None] * (heads * FEAT) + head * FEAT + f
    place = tl.max_contiguous(place, [1, 2, 4, WIDTH])
    w = tl.load(place, mask=both, other=0.0, eviction_policy="evict_first")
    more = tl.zeros_like(n).to(tl.float32)
    if BIASED:
        end = tl.where(head == 0, dim, 0)  # one head alone adds it
        more = tl.load(b_ptr + n, mask=n < end, other=0.0).to(tl.float32)
    y = attention(
        qkv_ptr, k_ptr, v_ptr, time_ptr, skip_ptr, home_ptr, cos_ptr, sin_ptr,
        0, head, tl.program_id(1) == 0, heads, key_heads, room, scale, window,
        FEAT, WIDTH, GROUPS, NEAR, REPEATS, ROTARY, HALVES, HOMES, PDL,
    )  # fmt: skip
    part = tl.sum(w.to(tl.float32) * y[None, None, None, :], 3) + more
    add_part(x_ptr, wrong_ptr, n, part, inside, limit)


@triton.jit
@no_type_check
def feed(
    x_ptr, up_ptr, gate_ptr, down_ptr, up_b_ptr, gate_b_ptr, down_b_ptr, gain_ptr, shift_ptr,
    wrong_ptr, dim, hidden, eps, limit,
    UNITS: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, SPLIT: tl.constexpr,
    EARLY: tl.constexpr,
    NORM: tl.constexpr, SHIFTED: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
    ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some hidden units of a feed-forward from the residual and back onto it, both its products.

    EARLY: the weights of the way back too are asked for before the wait.
    """
    first = tl.program_id(0) * UNITS
    at = _along(WIDTH, LANES, SPLIT)
    live = at < dim
    u = first + tl.arange(0, UNITS)
    inside = u < hidden
    w = _weights(up_ptr, first, hidden, dim, 0, at, inside, live, UNITS, WIDTH, SPLIT)
    if GATED:
        g = _weights(gate_ptr, first, hidden, dim, 0, at, inside, live, UNITS, WIDTH, SPLIT)
    if EARLY:
        d = _back(down_ptr, first, dim, hidden, UNITS, WIDTH, SPLIT)
    gain, shift = gain_of(gain_ptr, shift_ptr, at, live, NORM, SHIFTED)
    more = tl.zeros([UNITS], tl.float32)
    if BIASED:
        more = tl.load(up_b_ptr + u, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            open_ = tl.load(gate_b_ptr + u, mask=inside, other=0.0).to(tl.float32)
    begin(PDL, False)
    x = number(x_ptr, at, live)
    if not EARLY:
        d = _back(down_ptr, first, dim, hidden, UNITS, WIDTH, SPLIT)
    x = normed(x, gain, shift, live, dim, eps, NORM)
    h = _times(w, x, UNITS, WIDTH, SPLIT) + more
    if GATED:
        gate = _times(g, x, UNITS, WIDTH, SPLIT)
        if BIASED:
            gate += open_
        h = h * activated(gate, ACTIVATION)
    else:
        h = activated(h, ACTIVATION)
    if SPLIT:
        n = tl.arange(0, SPLIT)[:, None] * (WIDTH // SPLIT) + tl.arange(0, WIDTH // SPLIT)[None, :]
        right = column(h.to(d.dtype), 1, UNITS)
        right = tl.broadcast_to(right, [SPLIT, UNITS, 8])
        part = tl.sum(tl.dot(fits_across(d, SPLIT, WIDTH // SPLIT), right), 2) / 8
    else:
        n = tl.arange(0, WIDTH)
        part = tl.sum(d.to(tl.float32) * h[None, :], 1)
    if BIASED:
        end = tl.where(tl.program_id(0) == 0, dim, 0)
        part += tl.load(down_b_ptr + n, mask=n < end, other=0.0).to(tl.float32)
    # beside what others still read: the next kernel takes both together
    add_part(x_ptr + dim, wrong_ptr, n, part, n < dim, limit)


@triton.jit
@no_type_check
def _back(
    ptr, first, dim, hidden, UNITS: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr
):  # fmt: skip
    """Some columns of the matrix that leads back to the residual."""
    if SPLIT:
        d = across(ptr, first, hidden, dim, hidden, SPLIT, WIDTH // SPLIT)
    else:
        n = tl.arange(0, WIDTH)
        u = first + tl.arange(0, UNITS)
        both = (n < dim)[:, None] & (u < hidden)[None, :]
        place = ptr + n[:, None] * hidden + u[None, :]
        d = tl.load(place, mask=both, other=0.0, eviction_policy="evict_first")
    return d
