"""Attention of one decoding step."""

from typing import no_type_check

import triton
import triton.language as tl

from regard.decode.gpu.common_kernels import wait_for_previous_kernel


@triton.jit
@no_type_check
def _rotate(
    x, ptr, f, live, place, cos_ptr, sin_ptr, HEAD_DIM: tl.constexpr, ROTATE_HALF: tl.constexpr
):  # fmt: skip
    """Rotary embedding of x, by pairs of neighbours or of halves."""
    half: tl.constexpr = HEAD_DIM // 2
    if ROTATE_HALF:
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
def _load_past(
    k_ptr, v_ptr, cache_rows_ptr, j, valid, row, kv_head, kv_heads, capacity, f, live,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, USE_CACHE_ROWS: tl.constexpr,
):  # fmt: skip
    """Keys and values of past steps, loaded past L1 (each is read once)."""
    cache_row = row
    if USE_CACHE_ROWS:
        cache_row = tl.load(cache_rows_ptr + row * capacity + j, mask=valid, other=0)
    # a row has its keys, then its values (`KVStorage`)
    step = (cache_row * (2 * kv_heads) + kv_head).to(tl.int64) * capacity + j
    at = step[:, :, :, None] * HEAD_DIM + f
    both = valid[:, :, :, None] & live
    # a false hint for the layout: features, then keys along a warp, groups over the warps
    k = tl.load(
        tl.max_contiguous(k_ptr + at, [1, 2, 4, WIDTH]), mask=both, other=0.0, cache_modifier=".cg"
    )
    v = tl.load(
        tl.max_contiguous(v_ptr + at, [1, 2, 4, WIDTH]), mask=both, other=0.0, cache_modifier=".cg"
    )
    return k, v


@triton.jit
@no_type_check
def attend_head(
    qkv_ptr, k_ptr, v_ptr, lengths_ptr, left_padding_ptr, cache_rows_ptr, cos_ptr, sin_ptr,
    row, head, store, heads, kv_heads, capacity, scale, window,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, NEAR: tl.constexpr,
    REPEATS: tl.constexpr, ROTARY: tl.constexpr, ROTATE_HALF: tl.constexpr,
    USE_CACHE_ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attention output of one head of a row; `store`: the new key and value enter the cache.

    The newest keys of the past are loaded while the previous kernel still computes the query. Each
    of the GROUPS has a running maximum; they are combined at the end (online softmax).
    """
    KEYS: tl.constexpr = REPEATS * GROUPS * NEAR
    group = heads // kv_heads
    kv_head = head // group
    f = tl.arange(0, WIDTH)[None, None, None, :]
    live = f < HEAD_DIM
    time = tl.load(lengths_ptr + row)
    skip = tl.load(left_padding_ptr + row)
    low = tl.maximum(skip, time + 1 - window)
    index = tl.arange(0, REPEATS)[:, None, None] * (GROUPS * NEAR)
    index += tl.arange(0, GROUPS)[None, :, None] * NEAR + tl.arange(0, NEAR)[None, None, :]
    j = time - KEYS + 1 + index
    k, v = _load_past(
        k_ptr, v_ptr, cache_rows_ptr, j, (j >= low) & (j < time), row, kv_head, kv_heads, capacity,
        f, live, HEAD_DIM, WIDTH, USE_CACHE_ROWS,
    )  # fmt: skip
    wait_for_previous_kernel(PDL, False)
    all_heads = heads + 2 * kv_heads
    # one copy per key of a tile, from memory: faster than a broadcast between warps
    which = tl.arange(0, GROUPS)[:, None, None] + tl.arange(0, NEAR)[None, :, None]
    g = tl.arange(0, WIDTH)[None, None, :]
    copies = which * tl.where(capacity == 0, 16, 0) + g  # equals g; the compiler must not know
    one = g < HEAD_DIM
    q_at = qkv_ptr + (row * all_heads + head) * HEAD_DIM
    k_at = qkv_ptr + (row * all_heads + heads + kv_head) * HEAD_DIM
    v_at = k_at + kv_heads * HEAD_DIM
    q = tl.load(tl.max_contiguous(q_at + copies, [2, 4, WIDTH]), mask=one, other=0.0)
    new_k = tl.load(tl.max_contiguous(k_at + copies, [2, 4, WIDTH]), mask=one, other=0.0)
    new_v = tl.load(tl.max_contiguous(v_at + copies, [2, 4, WIDTH]), mask=one, other=0.0)
    q = q.to(tl.float32)
    if ROTARY:
        place = tl.maximum(time - skip, 0)
        q = _rotate(q, q_at, copies, one, place, cos_ptr, sin_ptr, HEAD_DIM, ROTATE_HALF)
        turned = new_k.to(tl.float32)
        turned = _rotate(turned, k_at, copies, one, place, cos_ptr, sin_ptr, HEAD_DIM, ROTATE_HALF)
        new_k = turned.to(k_ptr.dtype.element_ty)
    here = ((row * (2 * kv_heads) + kv_head).to(tl.int64) * capacity + time) * HEAD_DIM
    if store & (head % group == 0):
        once = one & (which == 0)
        tl.store(tl.max_contiguous(k_ptr + here + copies, [2, 4, WIDTH]), new_k, mask=once)
        tl.store(tl.max_contiguous(v_ptr + here + copies, [2, 4, WIDTH]), new_v, mask=once)
    q = q * scale
    newest = j == time
    score = tl.sum(k.to(tl.float32) * q[None, :, :, :], 3)
    score = tl.where(newest, tl.sum(new_k.to(tl.float32) * q, 2)[None, :, :], score)
    score = tl.where(j >= low, score, -float("inf"))
    most = tl.max(tl.max(score, 0), 1)
    w = tl.exp(score - _finite(most)[None, :, None])
    total = tl.sum(tl.sum(w, 0), 1)
    y = tl.sum(w[:, :, :, None] * v.to(tl.float32), 0)
    y += tl.sum(tl.where(newest, w, 0.0), 0)[:, :, None] * new_v.to(tl.float32)
    y = tl.sum(y, 1)
    for start in range(low, time - KEYS + 1, KEYS):
        j = start + index
        visible = j < time - KEYS + 1
        k, v = _load_past(
            k_ptr, v_ptr, cache_rows_ptr, j, visible, row, kv_head, kv_heads, capacity,
            f, live, HEAD_DIM, WIDTH, USE_CACHE_ROWS,
        )  # fmt: skip
        score = tl.where(visible, tl.sum(k.to(tl.float32) * q[None, :, :, :], 3), -float("inf"))
        new = tl.maximum(most, tl.max(tl.max(score, 0), 1))
        fade = tl.exp(most - _finite(new))
        w = tl.exp(score - _finite(new)[None, :, None])
        total = total * fade + tl.sum(tl.sum(w, 0), 1)
        y = y * fade[:, None] + tl.sum(tl.sum(w[:, :, :, None] * v.to(tl.float32), 0), 1)
        most = new
    share = tl.exp(most - tl.max(most, 0))
    return tl.sum(y * share[:, None], 0) / tl.sum(total * share, 0)


@triton.jit
@no_type_check
def _finite(most):
    """The maximum, or 0 for a group without keys, whose weights are then 0."""
    return tl.where(most == -float("inf"), 0.0, most)


@triton.jit
@no_type_check
def attend_step(
    qkv_ptr, k_ptr, v_ptr, out_ptr, lengths_ptr, left_padding_ptr, cache_rows_ptr, cos_ptr, sin_ptr,
    heads, kv_heads, capacity, scale, window,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, NEAR: tl.constexpr,
    REPEATS: tl.constexpr, ROTARY: tl.constexpr, ROTATE_HALF: tl.constexpr,
    USE_CACHE_ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attention of one head of a row, stored for the output projection."""
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    y = attend_head(
        qkv_ptr, k_ptr, v_ptr, lengths_ptr, left_padding_ptr, cache_rows_ptr, cos_ptr, sin_ptr,
        row, head, True, heads, kv_heads, capacity, scale, window,
        HEAD_DIM, WIDTH, GROUPS, NEAR, REPEATS, ROTARY, ROTATE_HALF, USE_CACHE_ROWS, PDL,
    )  # fmt: skip
    f = tl.arange(0, WIDTH)
    out = out_ptr + (row * heads + head) * HEAD_DIM + f
    tl.store(out, y.to(out_ptr.dtype.element_ty), mask=f < HEAD_DIM)
