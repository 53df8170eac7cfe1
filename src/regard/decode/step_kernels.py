"""One token through a language model as Triton kernels. Only `captured` imports this."""

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra import cuda

# what a product does with its sums
THREE: tl.constexpr = tl.constexpr(0)  # rows of three matrices on top of each other: q, k, v
HIDDEN: tl.constexpr = tl.constexpr(1)  # through the activation, times the gate's if there is one
ADDED: tl.constexpr = tl.constexpr(2)  # onto what is in `out`: the residual
SCORES: tl.constexpr = tl.constexpr(3)  # logits, and of each block the largest and Σ exp
PARTS: tl.constexpr = tl.constexpr(4)  # sums over a slice of the inputs, for `enter` to add up
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3}
NORMS = {"none": 0, "layer": 1, "rms": 2}


@triton.jit
@no_type_check
def _begin(PDL: tl.constexpr, LATE: tl.constexpr):
    """Wait for the kernel before. The next may start now, but for a LATE one only after the wait:
    so a kernel knows that all before the last LATE one is done, and reads that without waiting.
    """
    if PDL:
        if not LATE:
            cuda.gdc_launch_dependents()
        cuda.gdc_wait()
        if LATE:
            cuda.gdc_launch_dependents()


@triton.jit
@no_type_check
def _gain(gain_ptr, shift_ptr, at, live, NORM: tl.constexpr, SHIFTED: tl.constexpr):
    """A norm's weights: no other kernel makes them, so they are read before the wait."""
    gain = at * 0.0
    shift = at * 0.0
    if NORM != 0:
        gain = tl.load(gain_ptr + at, mask=live, other=0.0).to(tl.float32)
        if SHIFTED:
            shift = tl.load(shift_ptr + at, mask=live, other=0.0).to(tl.float32)
    return gain, shift


@triton.jit
@no_type_check
def _normed(x, gain, shift, live, dim, eps, NORM: tl.constexpr):
    if NORM == 1:
        x = tl.where(live, x - tl.sum(x, 0) / dim, 0.0)
    if NORM != 0:
        x = x * tl.rsqrt(tl.sum(x * x, 0) / dim + eps) * gain + shift
    return x


@triton.jit
@no_type_check
def activated(x, KIND: tl.constexpr):
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
def enter(
    token_ptr, time_ptr, skip_ptr, table_ptr, places_ptr,
    parts_ptr, bias_ptr, x_ptr, out_ptr, gain_ptr, shift_ptr,
    dim, rows, eps, scale,
    WIDTH: tl.constexpr, FIRST: tl.constexpr, PLACES: tl.constexpr, PARTS_: tl.constexpr,
    BIASED: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, NORMED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A token's vector, or the residual with what was found added; and its norm beside it."""
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    live = at < dim
    gain, shift = _gain(gain_ptr, shift_ptr, at, live, NORM, SHIFTED)
    if BIASED:
        bias = tl.load(bias_ptr + at, mask=live, other=0.0).to(tl.float32)
    _begin(PDL, FIRST)
    if FIRST:
        token = tl.load(token_ptr + row)
        x = tl.load(table_ptr + token * dim + at, mask=live, other=0.0).to(tl.float32) * scale
        if PLACES:
            place = tl.maximum(tl.load(time_ptr + row) - tl.load(skip_ptr + row), 0)
            x += tl.load(places_ptr + place * dim + at, mask=live, other=0.0).to(tl.float32)
    else:
        x = tl.load(x_ptr + row * dim + at, mask=live, other=0.0)
        for part in tl.static_range(PARTS_):
            x += tl.load(parts_ptr + (part * rows + row) * dim + at, mask=live, other=0.0)
        if BIASED:
            x += bias
    tl.store(x_ptr + row * dim + at, x, mask=live)
    if NORMED:
        y = _normed(x, gain, shift, live, dim, eps, NORM)
        tl.store(out_ptr + row * dim + at, y.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
@no_type_check
def _pick(first, a_ptr, b_ptr, c_ptr, end_a, end_b):
    """Which of three stacked matrices a block of rows is in, and the row it starts at there."""
    ptr = a_ptr
    start = first
    if first >= end_a:
        ptr = b_ptr
        start = first - end_a
    if first >= end_b:
        ptr = c_ptr
        start = first - end_b
    return ptr, start


@triton.jit
@no_type_check
def one_row(
    x_ptr, w_ptr, w2_ptr, w3_ptr, b_ptr, b2_ptr, b3_ptr, gain_ptr, shift_ptr, out_ptr,
    barred_ptr, best_ptr, where_ptr, sum_ptr, end_a, end_b, outs, ins, eps, scale,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, JOB: tl.constexpr, NORM: tl.constexpr,
    SHIFTED: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """W x for one x: the norm first, the rest after; ROWS outputs a program, all inputs at once."""
    block = tl.program_id(0)
    first = block * ROWS
    at = tl.arange(0, WIDTH)
    live = at < ins
    n = tl.arange(0, ROWS)
    if JOB == THREE:
        matrix, start = _pick(first, w_ptr, w2_ptr, w3_ptr, end_a, end_b)
        bias, _ = _pick(first, b_ptr, b2_ptr, b3_ptr, end_a, end_b)
    else:
        matrix = w_ptr
        bias = b_ptr
        start = first
    inside = first + n < outs
    both = inside[:, None] & live[None, :]
    places = (start + n)[:, None] * ins + at[None, :]
    # weights wait for nobody: they are on their way while the kernel before still works
    w = tl.load(matrix + places, mask=both, other=0.0, eviction_policy="evict_first")
    if GATED:
        g = tl.load(w2_ptr + places, mask=both, other=0.0, eviction_policy="evict_first")
    gain, shift = _gain(gain_ptr, shift_ptr, at, live, NORM, SHIFTED)
    more = tl.zeros([ROWS], tl.float32)
    if BIASED:
        more = tl.load(bias + start + n, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            open_ = tl.load(b2_ptr + start + n, mask=inside, other=0.0).to(tl.float32)
    _begin(PDL, False)
    x = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
    if JOB == ADDED:
        more += tl.load(out_ptr + first + n, mask=inside, other=0.0)
    x = _normed(x, gain, shift, live, ins, eps, NORM)
    y = tl.sum(w.to(tl.float32) * x[None, :], 1) + more
    if JOB == HIDDEN:
        if GATED:
            gate = tl.sum(g.to(tl.float32) * x[None, :], 1)
            if BIASED:
                gate += open_
            y = y * activated(gate, ACTIVATION)
        else:
            y = activated(y, ACTIVATION)
    if JOB == SCORES:
        y = y * scale
        _leave_scores(
            y[None, :], inside, first + n, barred_ptr, best_ptr + block, where_ptr + block,
            sum_ptr + block, n[None, :] * 0, 0, 1,
        )  # fmt: skip
    tl.store(out_ptr + first + n, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _leave_scores(
    y, inside, token, barred_ptr, best_ptr, where_ptr, sum_ptr, row, blocks, rows
):  # fmt: skip
    """Of a block's logits: the largest that is allowed, which token, and Σ exp(logit - largest)."""
    largest = tl.max(tl.where(inside[None, :], y, -float("inf")), 1)
    total = tl.sum(tl.where(inside[None, :], tl.exp(y - largest[:, None]), 0.0), 1)
    free = inside & (tl.load(barred_ptr + token, mask=inside, other=1) == 0)
    y = tl.where(free[None, :], y, -float("inf"))
    best = tl.max(y, 1)
    where = tl.min(tl.where(y == best[:, None], token[None, :], 2147483647), 1)
    index = tl.min(row, 1)
    keep = index < rows
    tl.store(best_ptr + index * blocks, best, mask=keep)
    tl.store(where_ptr + index * blocks, where, mask=keep)
    # the sum alone, as a logarithm: blocks then add up whatever their largest was
    tl.store(sum_ptr + index * blocks, largest + tl.log(total), mask=keep)


@triton.jit
@no_type_check
def some_rows(
    x_ptr, w_ptr, w2_ptr, w3_ptr, b_ptr, b2_ptr, b3_ptr, out_ptr,
    barred_ptr, best_ptr, where_ptr, sum_ptr, end_a, end_b, outs, ins, rows, scale,
    BATCH: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, SLICE: tl.constexpr,
    STAGES: tl.constexpr, JOB: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x Wᵀ for a batch: ROWS outputs a program, over all inputs or over one SLICE of them."""
    block = tl.program_id(0)
    first = block * ROWS
    n = tl.arange(0, ROWS)
    m = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    d = tl.arange(0, DEPTH)
    if JOB == THREE:
        matrix, start = _pick(first, w_ptr, w2_ptr, w3_ptr, end_a, end_b)
        bias, _ = _pick(first, b_ptr, b2_ptr, b3_ptr, end_a, end_b)
    else:
        matrix = w_ptr
        bias = b_ptr
        start = first
    inside = first + n < outs
    some = m < rows
    begin = tl.program_id(1) * SLICE
    _begin(PDL, False)
    y = tl.zeros([BATCH, ROWS], tl.float32)
    gate = tl.zeros([BATCH, ROWS], tl.float32)
    for k in tl.range(begin, begin + SLICE, DEPTH, num_stages=STAGES):
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
    if BIASED:
        y += tl.load(bias + start + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    if JOB == HIDDEN:
        if GATED:
            if BIASED:
                more = tl.load(b2_ptr + start + n, mask=inside, other=0.0)
                gate += more.to(tl.float32)[None, :]
            y = y * activated(gate, ACTIVATION)
        else:
            y = activated(y, ACTIVATION)
    if JOB == SCORES:
        y = y * scale
        _leave_scores(
            y, inside, first + n, barred_ptr, best_ptr + block, where_ptr + block,
            sum_ptr + block, m[:, None] + n[None, :] * 0, tl.num_programs(0), rows,
        )  # fmt: skip
    if JOB == PARTS:
        out_ptr += tl.program_id(1) * rows * outs
    at = m[:, None] * outs + (first + n)[None, :]
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=some[:, None] & inside[None, :])


@triton.jit
@no_type_check
def _turned(x, ptr, f, live, place, cos_ptr, sin_ptr, FEAT: tl.constexpr, HALVES: tl.constexpr):
    """Rotary positions: x cos ± its partner sin, by pairs of neighbours or of halves."""
    half: tl.constexpr = FEAT // 2
    if HALVES:
        pair = f % half
        second = f >= half
        partner = tl.where(second, f - half, f + half)
    else:
        pair = f // 2
        second = f % 2 == 1
        partner = tl.where(second, f - 1, f + 1)
    other = tl.load(ptr + partner, mask=live, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + place * half + pair, mask=live, other=0.0)
    sin = tl.load(sin_ptr + place * half + pair, mask=live, other=0.0)
    return x * cos + tl.where(second, other, -other) * sin


@triton.jit
@no_type_check
def _past(
    k_ptr, v_ptr, home_ptr, j, seen, row, key_head, key_heads, room, f, live, FEAT: tl.constexpr,
    HOMES: tl.constexpr,
):  # fmt: skip
    """Keys and values of earlier steps, each read once: past the first cache."""
    home = row
    if HOMES:
        home = tl.load(home_ptr + row * room + j, mask=seen, other=0)
    at = ((home * key_heads + key_head).to(tl.int64) * room + j)[:, None] * FEAT + f[None, :]
    both = seen[:, None] & live[None, :]
    k = tl.load(k_ptr + at, mask=both, other=0.0, cache_modifier=".cg")
    v = tl.load(v_ptr + at, mask=both, other=0.0, cache_modifier=".cg")
    return k, v


@triton.jit
@no_type_check
def attend_step(
    qkv_ptr, k_ptr, v_ptr, out_ptr, time_ptr, skip_ptr, home_ptr, cos_ptr, sin_ptr,
    heads, key_heads, room, scale, window,
    FEAT: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr, ROTARY: tl.constexpr,
    HALVES: tl.constexpr, HOMES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A head of a row: its new key and value enter the cache, its query asks them all.

    The last KEYS of the past are on their way while the kernel before still makes the query.
    """
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    group = heads // key_heads
    key_head = head // group
    f = tl.arange(0, WIDTH)
    live = f < FEAT
    time = tl.load(time_ptr + row)
    skip = tl.load(skip_ptr + row)
    low = tl.maximum(skip, time + 1 - window)
    j = time - KEYS + tl.arange(0, KEYS)
    seen = j >= low
    k, v = _past(
        k_ptr, v_ptr, home_ptr, j, seen, row, key_head, key_heads, room, f, live, FEAT, HOMES
    )
    _begin(PDL, True)
    all_heads = heads + 2 * key_heads
    q_at = qkv_ptr + (row * all_heads + head) * FEAT
    k_at = qkv_ptr + (row * all_heads + heads + key_head) * FEAT
    v_at = k_at + key_heads * FEAT
    q = tl.load(q_at + f, mask=live, other=0.0).to(tl.float32)
    new_k = tl.load(k_at + f, mask=live, other=0.0).to(tl.float32)
    new_v = tl.load(v_at + f, mask=live, other=0.0)
    if ROTARY:
        place = tl.maximum(time - skip, 0)
        q = _turned(q, q_at, f, live, place, cos_ptr, sin_ptr, FEAT, HALVES)
        new_k = _turned(new_k, k_at, f, live, place, cos_ptr, sin_ptr, FEAT, HALVES)
    new_k = new_k.to(k_ptr.dtype.element_ty)
    new_v = new_v.to(v_ptr.dtype.element_ty)
    here = ((row * key_heads + key_head).to(tl.int64) * room + time) * FEAT
    if head % group == 0:
        tl.store(k_ptr + here + f, new_k, mask=live)
        tl.store(v_ptr + here + f, new_v, mask=live)
    q = q * scale
    own = tl.sum(q * new_k.to(tl.float32), 0)
    score = tl.where(seen, tl.sum(k.to(tl.float32) * q[None, :], 1), -float("inf"))
    most = tl.maximum(own, tl.max(score, 0))
    w = tl.exp(score - most)
    own = tl.exp(own - most)
    total = own + tl.sum(w, 0)
    y = own * new_v.to(tl.float32) + tl.sum(w[:, None] * v.to(tl.float32), 0)
    for begin in range(low, time - KEYS, KEYS):
        j = begin + tl.arange(0, KEYS)
        seen = j < time - KEYS
        k, v = _past(
            k_ptr, v_ptr, home_ptr, j, seen, row, key_head, key_heads, room, f, live, FEAT, HOMES
        )
        score = tl.where(seen, tl.sum(k.to(tl.float32) * q[None, :], 1), -float("inf"))
        new = tl.maximum(most, tl.max(score, 0))
        fade = tl.exp(most - new)
        w = tl.exp(score - new)
        total = total * fade + tl.sum(w, 0)
        y = y * fade + tl.sum(w[:, None] * v.to(tl.float32), 0)
        most = new
    out = out_ptr + (row * heads + head) * FEAT + f
    tl.store(out, (y / total).to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
@no_type_check
def choose(
    best_ptr, where_ptr, sum_ptr, token_ptr, time_ptr, base_ptr, ended_ptr, end_ptr,
    tokens_ptr, chances_ptr, ends_ptr, blocks, room,
    BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The likeliest token of a row, written down; the next step starts from it."""
    _begin(PDL, True)
    row = tl.program_id(0)
    at = tl.arange(0, BLOCKS)
    live = at < blocks
    best = tl.load(best_ptr + row * blocks + at, mask=live, other=-float("inf"))
    where = tl.load(where_ptr + row * blocks + at, mask=live, other=2147483647)
    sums = tl.load(sum_ptr + row * blocks + at, mask=live, other=-float("inf"))
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, where, 2147483647), 0).to(tl.int64)
    most = tl.max(sums, 0)
    chance = top - most - tl.log(tl.sum(tl.exp(sums - most), 0))
    end = tl.load(end_ptr)
    ended = tl.load(ended_ptr + row)
    token = tl.where(ended != 0, end, token)
    chance = tl.where(ended != 0, 0.0, chance)
    ended = tl.where(token == end, 1, ended)
    time = tl.load(time_ptr + row)
    step = row * room + time - tl.load(base_ptr + row)
    tl.store(tokens_ptr + step, token)
    tl.store(chances_ptr + step, chance)
    tl.store(ends_ptr + step, ended)
    tl.store(token_ptr + row, token)
    tl.store(ended_ptr + row, ended)
    tl.store(time_ptr + row, time + 1)
