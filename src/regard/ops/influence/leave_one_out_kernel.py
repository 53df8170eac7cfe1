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
from regard.ops.kernels.terms import INTERPRETED, LOG2E, LOWEST_SCORE, masked_score

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
    q, queries = arguments["Q"], arguments["queries"]
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
        SINKS=q if sinks is None else sinks.float().contiguous(), HAS_SINKS=sinks is not None,
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
@no_type_check  # Triton has its own types
def _leave_one_out_kernel(
    Q, K, LSE, q_b, q_h, q_i, k_b, k_h, k_j, heads, group, queries, keys, offset,
    left, right, scale, softcap, LEFT_PADDING, LENGTHS, chunk, chunks_back, IDS, ids_b,
    MASK, mask_b, mask_h, mask_i, mask_j, SLOPES, TABLE, table_radius,
    BIAS, bias_b, bias_h, bias_i, bias_j,
    V, v_b, v_h, v_j, SINKS, OUT, UNIT, SQUARE, WHOLE, KEY, EFFECT,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_DIM_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, GENERAL: tl.constexpr,
    CAPPED: tl.constexpr, PADDED: tl.constexpr, CHUNKED: tl.constexpr, DOCUMENTS: tl.constexpr,
    MASKED: tl.constexpr, ALIBI: tl.constexpr, TOEPLITZ: tl.constexpr, BIASED: tl.constexpr,
    HAS_SINKS: tl.constexpr, HALF: tl.constexpr, REMOVE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    i0, bh = tl.program_id(0) * BM, tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    dims, value, row = (
        tl.arange(0, HEAD_DIM_PADDED),
        tl.arange(0, VALUE_DIM_PADDED),
        i0 + tl.arange(0, BM),
    )
    live, i, at = row < queries, row + offset, bh * queries + row
    q = tl.load(
        Q + b * q_b + h * q_h + row[:, None] * q_i + dims[None, :],
        mask=live[:, None] & (dims < HEAD_DIM)[None, :], other=0.0,
    )  # fmt: skip
    own_k, own_v = K + b * k_b + (h // group) * k_h, V + b * v_b + (h // group) * v_h
    limit = tl.load(LSE + at, mask=live, other=1e30) * LOG2E + LOG2_DOMINANT_WEIGHT
    best = tl.full([BM], LOWEST_SCORE, tl.float32)
    total = tl.zeros([BM], tl.float32)
    mixed = tl.zeros([BM, VALUE_DIM_PADDED], tl.float32)
    key = tl.full([BM], -1, tl.int32)
    score = tl.full([BM], LOWEST_SCORE, tl.float32)
    # keys in three segments: [lo, a) mask edge, [a, c) plain, [c, hi) mask edge
    lo = tl.maximum(i0 + offset - left, 0) // BN * BN
    hi = tl.maximum(tl.minimum(keys, i0 + BM + offset + right), lo)
    a, c = lo, lo
    if not GENERAL:
        end = tl.cdiv(hi, BN) * BN
        a = tl.maximum(tl.cdiv(tl.maximum(i0 + BM - 1 + offset - left, 0), BN) * BN, lo)
        a = tl.minimum(a, end)
        c = tl.maximum(tl.minimum(keys, i0 + offset + right + 1) // BN * BN, a)
    for segment in tl.static_range(3):
        start, stop = c, hi
        if segment == 0:
            start, stop = lo, a
        if segment == 1:
            start, stop = a, c
        for j0 in tl.range(start, stop, BN):
            j = j0 + tl.arange(0, BN)
            k = tl.load(
                own_k + j[:, None] * k_j + dims[None, :],
                mask=(j < keys)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0,
            )  # fmt: skip
            v = tl.load(
                own_v + j[:, None] * v_j + value[None, :],
                mask=(j < keys)[:, None] & (value < VALUE_DIM)[None, :], other=0.0,
            )  # fmt: skip
            dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            if segment == 1:
                s = dot * (scale * LOG2E)
            else:
                s = masked_score(
                    dot, i[:, None], j[None, :], row[:, None],
                    live[:, None] & (j < keys)[None, :], b, h, left, right, scale, softcap,
                    LEFT_PADDING, LENGTHS, chunk, chunks_back, IDS, ids_b,
                    MASK, mask_b, mask_h, mask_i, mask_j, SLOPES, TABLE, table_radius,
                    BIAS, bias_b, bias_h, bias_i, bias_j,
                    CAPPED, PADDED, CHUNKED, DOCUMENTS, MASKED, ALIBI, TOEPLITZ, BIASED,
                )  # fmt: skip
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
    own = tl.where(nonempty, best + tl.log2(tl.where(nonempty, total, 1.0)), LOWEST_SCORE)
    rest = own
    if HAS_SINKS:
        sink = tl.load(SINKS + h) * LOG2E
        most = tl.maximum(own, tl.maximum(sink, LOWEST_SCORE))
        rest = most + tl.log2(tl.exp2(own - most) + tl.exp2(sink - most))
    out = mixed * (tl.exp2(own - rest) / tl.where(nonempty, total, 1.0))[:, None]
    has = key >= 0
    most = tl.maximum(score, rest)
    whole = most + tl.log2(tl.exp2(score - most) + tl.exp2(rest - most))
    whole = tl.where(has, whole, rest)
    odds = tl.exp2(tl.minimum(tl.maximum(score - rest, -126.0), 126.0))  # w / (1 - w)
    w = tl.where(has, odds / (1.0 + odds), 0.0)
    away = tl.load(
        own_v + key[:, None] * v_j + value[None, :],
        mask=has[:, None] & (value < VALUE_DIM)[None, :], other=0.0,
    ).to(tl.float32) - out  # fmt: skip
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
