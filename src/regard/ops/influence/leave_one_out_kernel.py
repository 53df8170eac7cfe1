"""Attention without each row's dominant key, as a Triton kernel: an online softmax over the others.

A key with a weight above DOMINANT_WEIGHT, by the given log-sum-exp, is left out. The rows that the
influence kernel needs follow without cancellation: output and log-sum-exp in float32, the key, and
its effect.
"""

import math
from dataclasses import dataclass
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.influence.effect import DOMINANT_WEIGHT
from regard.ops.kernels.terms import INTERPRETED, LOG2E, LOWEST_SCORE, load_rows, masked_score

LOG2_DOMINANT_WEIGHT: tl.constexpr = tl.constexpr(math.log2(DOMINANT_WEIGHT))


@dataclass(frozen=True, kw_only=True)
class InfluenceRows:
    """The rows as the influence kernel needs them."""

    out: Tensor  # divided by `unit` in float16, or in float32 where the values are
    unit: Tensor  # a power of two above the row's largest output, so that float16 can hold it
    square: Tensor  # |out|²
    lse: Tensor  # 1e30 without visible keys
    key: Tensor  # the dominant key, -1 for none
    effect: Tensor  # of that key


def rows_without_dominant(
    arguments: dict[str, Any], v: Tensor, sinks: Tensor | None, remove: bool
) -> InfluenceRows:
    """One launch; `arguments` are those of `launch_arguments`."""
    q, queries = arguments["inputs"].q, arguments["inputs"].queries
    sequences, value = q.shape[0] * q.shape[1], v.shape[3]
    half = v.dtype != torch.float32
    dtype = torch.float16 if half else torch.float32
    out = torch.empty(sequences, queries, value, device=q.device, dtype=dtype)
    square, unit, lse, effect = torch.empty(4, sequences, queries, device=q.device).unbind(0)
    key = torch.empty(sequences, queries, device=q.device, dtype=torch.int32)
    value_dim = max(16, triton.next_power_of_2(value))
    tile = _choose_tile(max(arguments["HEAD_DIM_PADDED"], value_dim) * q.element_size())
    _leave_one_out_kernel[(triton.cdiv(queries, tile["BM"]), sequences)](
        **arguments, V=v, v_b=v.stride(0), v_h=v.stride(1), v_j=v.stride(2),
        SINKS=None if sinks is None else sinks.float().contiguous(),
        OUT=out, UNIT=unit, SQUARE=square, WHOLE=lse, KEY=key, EFFECT=effect,
        VALUE_DIM=value, VALUE_DIM_PADDED=value_dim, HALF=half, REMOVE=remove, **tile,
    )  # fmt: skip
    return InfluenceRows(out=out, unit=unit, square=square, lse=lse, key=key, effect=effect)


def _choose_tile(bytes_per_row: int) -> dict[str, int]:
    """Rows, keys, warps and stages, so that two programs fit on a multiprocessor of an H200."""
    if INTERPRETED:  # small, so that tests cross every edge
        return {"BM": 16, "BN": 32, "num_warps": 4, "num_stages": 1}
    if bytes_per_row <= 256:  # the fastest of seven timed at d = 64 and 128
        return {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3}
    return {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 2 if bytes_per_row <= 512 else 1}


@triton.jit
@no_type_check  # Triton has other types
def _leave_one_out_kernel(
    inputs, terms, V, v_b, v_h, v_j, SINKS, OUT, UNIT, SQUARE, WHOLE, KEY, EFFECT,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_DIM_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, GENERAL: tl.constexpr, HALF: tl.constexpr, REMOVE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    i0, bh = tl.program_id(0) * BM, tl.program_id(1).to(tl.int64)
    b, h = bh // inputs.heads, bh % inputs.heads
    dims, value = tl.arange(0, HEAD_DIM_PADDED), tl.arange(0, VALUE_DIM_PADDED)
    row, keys, offset = i0 + tl.arange(0, BM), inputs.keys, inputs.offset
    live, i, at = row < inputs.queries, row + offset, bh * inputs.queries + row
    q_head = inputs.q + b * inputs.q_b + h * inputs.q_h
    k_head = inputs.k + b * inputs.k_b + (h // inputs.group) * inputs.k_h
    v_head = V + b * v_b + (h // inputs.group) * v_h
    q = load_rows(q_head, row, inputs.q_i, live, dims, HEAD_DIM)
    limit = tl.load(inputs.lse + at, mask=live, other=1e30) * LOG2E + LOG2_DOMINANT_WEIGHT
    best = tl.full([BM], LOWEST_SCORE, tl.float32)
    total = tl.zeros([BM], tl.float32)
    mixed = tl.zeros([BM, VALUE_DIM_PADDED], tl.float32)
    key = tl.full([BM], -1, tl.int32)
    score = tl.full([BM], LOWEST_SCORE, tl.float32)
    # keys in three segments: [lo, a) mask edge, [a, c) plain, [c, hi) mask edge
    lo = tl.maximum(i0 + offset - terms.left, 0) // BN * BN
    hi = tl.maximum(tl.minimum(keys, i0 + BM + offset + terms.right), lo)
    a, c = lo, lo
    if not GENERAL:
        end = tl.cdiv(hi, BN) * BN
        a = tl.cdiv(tl.maximum(i0 + BM - 1 + offset - terms.left, 0), BN) * BN
        a = tl.minimum(tl.maximum(a, lo), end)
        c = tl.maximum(tl.minimum(keys, i0 + offset + terms.right + 1) // BN * BN, a)
    for segment in tl.static_range(3):
        start, stop = c, hi
        if segment == 0:
            start, stop = lo, a
        if segment == 1:
            start, stop = a, c
        for j0 in tl.range(start, stop, BN):
            j = j0 + tl.arange(0, BN)
            k = load_rows(k_head, j, inputs.k_j, j < keys, dims, HEAD_DIM)
            v = load_rows(v_head, j, v_j, j < keys, value, VALUE_DIM)
            dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            if segment == 1:
                s = dot * (terms.scale * LOG2E)
            else:
                inside = live[:, None] & (j < keys)[None, :]
                s = masked_score(dot, i[:, None], j[None, :], row[:, None], inside, b, h, terms)
            top = tl.max(s, 1)
            if tl.max((top > limit).to(tl.int32), 0) > 0:  # in few tiles: at most one key per row
                heavy = s > limit[:, None]
                key = tl.maximum(key, tl.max(tl.where(heavy, j[None, :], -1), 1))
                score = tl.maximum(score, tl.max(tl.where(heavy, s, LOWEST_SCORE), 1))
                s = tl.where(heavy, LOWEST_SCORE, s)
                top = tl.max(s, 1)
            top = tl.maximum(top, best)
            # 0 for rows without any other key, so that LOWEST_SCORE gives weight 0
            base = tl.where(top > 0.5 * LOWEST_SCORE, top, 0.0)
            p = tl.exp2(s - base[:, None])
            decay = tl.exp2(best - base)
            total = total * decay + tl.sum(p, 1)
            mixed = mixed * decay[:, None]
            if HALF:  # p as the sum of two half-precision numbers: one alone is off by up to 1/256
                upper = p.to(v.dtype)
                mixed = tl.dot(upper, v, mixed)
                mixed = tl.dot((p - upper.to(tl.float32)).to(v.dtype), v, mixed)
            else:
                mixed = tl.dot(p, v, mixed, input_precision=PRECISION)
            best = top
    # log2-sum-exps of the rest, then with the sink, then with the dominant key
    nonempty = total > 0
    others = tl.where(nonempty, best + tl.log2(tl.where(nonempty, total, 1.0)), LOWEST_SCORE)
    rest = others
    if SINKS is not None:
        sink = tl.load(SINKS + h) * LOG2E
        most = tl.maximum(others, tl.maximum(sink, LOWEST_SCORE))
        rest = most + tl.log2(tl.exp2(others - most) + tl.exp2(sink - most))
    out = mixed * (tl.exp2(others - rest) / tl.where(nonempty, total, 1.0))[:, None]
    has = key >= 0
    most = tl.maximum(score, rest)
    whole = most + tl.log2(tl.exp2(score - most) + tl.exp2(rest - most))
    whole = tl.where(has, whole, rest)
    odds = tl.exp2(tl.minimum(tl.maximum(score - rest, -126.0), 126.0))  # w / (1 - w)
    w = tl.where(has, odds / (1.0 + odds), 0.0)
    away = load_rows(v_head, key, v_j, has, value, VALUE_DIM).to(tl.float32) - out
    effect = w * tl.sqrt(tl.sum(away * away, 1))
    if not REMOVE:
        effect = effect / (1.0 + odds)
    out = out + w[:, None] * tl.where(has[:, None], away, 0.0)
    tl.store(SQUARE + at, tl.sum(out * out, 1), mask=live)
    tl.store(WHOLE + at, tl.where(whole > 0.5 * LOWEST_SCORE, whole / LOG2E, 1e30), mask=live)
    tl.store(KEY + at, key, mask=live)
    tl.store(EFFECT + at, effect, mask=live)
    unit = tl.full([BM], 1.0, tl.float32)
    if HALF:
        unit = ceil_power_of_two(tl.max(tl.abs(out), 1))
    tl.store(UNIT + at, unit, mask=live)
    tl.store(
        OUT + at[:, None] * VALUE_DIM + value[None, :],
        (out / unit[:, None]).to(OUT.dtype.element_ty),
        mask=live[:, None] & (value < VALUE_DIM)[None, :],
    )


@triton.jit
@no_type_check
def ceil_power_of_two(x):
    """The smallest power of two above x, for positive x: dividing by it is exact."""
    return tl.exp2(tl.ceil(tl.log2(tl.minimum(tl.maximum(x, 1e-30), 1e30))))
