"""Influence as Triton kernels: the structure of the survey's kernel, with a second product.

One program of the influence kernel owns a block of keys and values and iterates over the queries
that see them. Before it, `_leave_one_out_kernel` computes the rows: attention without each row's
dominant key, an online softmax over the others. A key with a weight above DOMINANT_WEIGHT, by the
given log-sum-exp, is left out, so that output and log-sum-exp in float32, the key, and its effect
follow without cancellation.
"""

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl

from regard.ops.grid import to_4d
from regard.ops.influence.effect import DOMINANT_WEIGHT, AttentionRecord, Effect, Influence
from regard.ops.kernels.terms import (
    INTERPRETED,
    LOG2E,
    LOWEST_SCORE,
    MAX_WIDTH,
    KernelTerms,
    atomic_add_rows,
    atomic_max_rows,
    choose_tile,
    launch_arguments,
    load_rows,
    masked_score,
    row_segments,
    segment_bounds,
)
from regard.ops.survey.kernel import prepare as prepare_survey

LOG2_DOMINANT_WEIGHT: tl.constexpr = tl.constexpr(math.log2(DOMINANT_WEIGHT))


def _choose_tile(width: int, element_size: int) -> dict[str, int]:
    """Rows, keys, warps and stages, so that two programs fit on a multiprocessor of an H200."""
    # small in tests, so that they cross every edge; wider sums of more rows exceed the registers
    if INTERPRETED or width > 256:
        return {"BM": 16, "BN": 32, "num_warps": 4, "num_stages": 1}
    bytes_per_row = width * element_size
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


def prepare(record: AttentionRecord, effect: Effect) -> KernelTerms | str:
    """The terms as the kernel takes them, or why it cannot run on this."""
    if effect == "scale":
        return "the kernel computes remove and slope only"
    if record.q.dtype != record.v.dtype:
        return f"q and v need one dtype, got {record.q.dtype} and {record.v.dtype}"
    if record.lse.dtype in (torch.bfloat16, torch.float16):
        return f"the kernel needs lse in float32, got {record.lse.dtype}"
    if 0 in (*record.q.shape, *record.k.shape, *record.v.shape):
        return "the kernel needs sizes of 1 or more"
    if record.v.shape[-1] > MAX_WIDTH:
        return f"the kernel needs a value dim of at most {MAX_WIDTH}, got {record.v.shape[-1]}"
    widths = [triton.next_power_of_2(x.shape[-1]) for x in (record.q, record.v)]
    if record.q.is_cuda and record.q.dtype == torch.float32 and sum(widths) > 768:
        return "the kernel needs half precision for keys and values of more than 256 features"
    return prepare_survey(record.q, record.k, record.terms)


def influence(record: AttentionRecord, effect: Effect, terms: KernelTerms) -> Influence:
    """Two launches: the rows without their dominant keys, then all pairs."""
    q, k, v = (to_4d(x) for x in (record.q, record.k, record.v))
    arguments = launch_arguments(q, k, record.lse, record.terms.offset, terms)
    v = v if v.stride(-1) == 1 else v.contiguous()
    sinks, half = record.terms.sinks, v.dtype != torch.float32
    (*_, queries, _), keys, sequences = q.shape, k.shape[2], q.shape[0] * q.shape[1]
    value, value_dim = v.shape[3], max(16, triton.next_power_of_2(v.shape[3]))
    arguments |= {
        "V": v, "v_b": v.stride(0), "v_h": v.stride(1), "v_j": v.stride(2), "VALUE_DIM": value,
        "VALUE_DIM_PADDED": value_dim, "HALF": half, "REMOVE": effect == "remove",
    }  # fmt: skip
    # `unit` is a power of two above a row's largest output, so that float16 can hold out / unit
    # and |out|² is beside it; lse is 1e30 without visible keys; key is -1 for no dominant key
    dtype = torch.float16 if half else torch.float32
    square, unit, lse, key_effect = torch.empty(4, sequences, queries, device=q.device).unbind(0)
    rows = {
        "OUT": torch.empty(sequences, queries, value, device=q.device, dtype=dtype), "UNIT": unit,
        "KEY": torch.empty(sequences, queries, device=q.device, dtype=torch.int32),
        "SQUARE": square, "EFFECT": key_effect,
    }  # fmt: skip
    tile = _choose_tile(max(arguments["HEAD_DIM_PADDED"], value_dim), q.element_size())
    _leave_one_out_kernel[(triton.cdiv(queries, tile["BM"]), sequences)](
        **arguments, **rows, WHOLE=lse, SINKS=None if sinks is None else sinks.float().contiguous(),
        **tile,
    )  # fmt: skip
    on_query = torch.zeros(sequences, queries, device=q.device)
    packed = torch.zeros(sequences, queries, device=q.device, dtype=torch.int64)
    of_key = torch.empty(sequences, keys, device=q.device)
    tile = choose_tile((arguments["HEAD_DIM_PADDED"] + value_dim) * q.element_size(), operands=2)
    _influence_kernel[(triton.cdiv(keys, tile["BN"]), sequences)](
        **arguments, **rows, LSE=lse, EFFECT_ON_QUERY=on_query, PEAK=packed, EFFECT_OF_KEY=of_key,
        ALLOWS_FUTURE=terms.right > 0, **tile,
    )  # fmt: skip
    strongest = (packed >> 32).to(torch.int32).view(torch.float32)
    key = (0x7FFFFFFF - (packed & 0x7FFFFFFF)).masked_fill(packed == 0, -1)
    batch = record.q.shape[:-1]
    return Influence(
        strongest=strongest.view(batch),
        strongest_key=key.view(batch),
        effect_on_query=on_query.view(batch),
        effect_of_key=of_key.view(*record.q.shape[:-2], keys),
        rounding=record.rounding(1e-3),
    )


@triton.jit
@no_type_check  # Triton has other types
def _influence_kernel(
    inputs, terms, LSE, V, OUT, UNIT, SQUARE, KEY, EFFECT, EFFECT_ON_QUERY, PEAK, EFFECT_OF_KEY,
    v_b, v_h, v_j,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_DIM_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, GENERAL: tl.constexpr, REMOVE: tl.constexpr, HALF: tl.constexpr,
    ALLOWS_FUTURE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    j0, bh = tl.program_id(0) * BN, tl.program_id(1).to(tl.int64)
    b, h = bh // inputs.heads, bh % inputs.heads
    dims, value = tl.arange(0, HEAD_DIM_PADDED), tl.arange(0, VALUE_DIM_PADDED)
    column, queries, keys = tl.arange(0, BN), inputs.queries, inputs.keys
    j = j0 + column
    q_head = inputs.q + b * inputs.q_b + h * inputs.q_h
    k_head = inputs.k + b * inputs.k_b + (h // inputs.group) * inputs.k_h
    v_head = V + b * v_b + (h // inputs.group) * v_h
    k = load_rows(k_head, j, inputs.k_j, j < keys, dims, HEAD_DIM)
    v = load_rows(v_head, j, v_j, j < keys, value, VALUE_DIM)
    v_square = tl.sum(v.to(tl.float32) * v.to(tl.float32), 1)
    twice = tl.full([BN], 2.0, tl.float32)
    if HALF:  # float16 over a power of two keeps 11 bits of the output, and all 8 of bfloat16
        unit = ceil_power_of_two(tl.max(tl.abs(v.to(tl.float32)), 1))
        v, twice = (v.to(tl.float32) / unit[:, None]).to(tl.float16), 2.0 * unit
    lo, a, x, y, c, hi = row_segments(j0, inputs, terms, GENERAL, BM, BN)
    total = tl.zeros([BM // 16, 8, BN], tl.float32)
    for segment in tl.static_range(0 if ALLOWS_FUTURE else 2, 5):
        start, stop = segment_bounds(segment, lo, a, x, y, c, hi)
        row = start + tl.arange(0, BM)
        at = bh * queries + row
        next_lse = tl.load(LSE + at, mask=row < queries, other=1e30)
        next_square = tl.load(SQUARE + at, mask=row < queries, other=0.0)
        next_unit = tl.load(UNIT + at, mask=row < queries, other=0.0)
        next_key = tl.load(KEY + at, mask=row < queries, other=-1)
        next_effect = tl.load(EFFECT + at, mask=row < queries, other=0.0)
        for i0 in tl.range(start, stop, BM):
            row = i0 + tl.arange(0, BM)
            live = row < queries
            q = load_rows(q_head, row, inputs.q_i, live, dims, HEAD_DIM)
            at = bh * queries + row
            o = load_rows(OUT, at, VALUE_DIM, live, value, VALUE_DIM)
            lse, o_square, o_unit = next_lse, next_square, next_unit
            key, key_effect = next_key, next_effect
            # loaded one tile ahead, as in the survey
            next_lse = tl.load(LSE + at + BM, mask=row + BM < queries, other=1e30)
            next_square = tl.load(SQUARE + at + BM, mask=row + BM < queries, other=0.0)
            next_unit = tl.load(UNIT + at + BM, mask=row + BM < queries, other=0.0)
            next_key = tl.load(KEY + at + BM, mask=row + BM < queries, other=-1)
            next_effect = tl.load(EFFECT + at + BM, mask=row + BM < queries, other=0.0)
            dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            both = tl.dot(o, tl.trans(v), input_precision=PRECISION)
            if segment == 1 or segment == 3:
                s = dot * (terms.scale * LOG2E)
            else:
                i, inside = row + inputs.offset, live[:, None] & (j < keys)[None, :]
                s = masked_score(dot, i[:, None], j[None, :], row[:, None], inside, b, h, terms)
            w = tl.exp2(s - (lse * LOG2E)[:, None])
            # rounding may make a squared distance slightly negative
            both = both * o_unit[:, None] * twice[None, :]
            far = tl.abs((o_square[:, None] + v_square[None, :]) - both)
            dominant = j[None, :] == key[:, None]
            if REMOVE:
                # √far / (1 - w) is far · rsqrt(far (1 - w)²): one root instead of two divisions
                rest = 1.0 - w
                e = (far * w) * tl.rsqrt(far * rest * rest + 1e-36)
            else:
                e = w * tl.sqrt(far)
            e = tl.where(dominant, key_effect[:, None], e)
            total += tl.sum(tl.reshape(e, [BM // 16, 2, 8, BN]), 1)
            on_query = tl.sum(tl.sum(tl.sum(tl.reshape(e, [BM, BN // 32, 4, 8]), 2), 1), 1)
            atomic_add_rows(EFFECT_ON_QUERY + at, on_query, live)
            # the last bits of an effect are replaced by its column, so one max finds both
            bits = (e.to(tl.int32, bitcast=True) & (0x7FFFFFFF - (BN - 1))) | (BN - 1 - column)[
                None, :
            ]
            best = tl.max(tl.max(tl.reshape(bits, [BM, BN // 8, 8]), 1), 1)
            best = tl.join(best, best)
            key = j0 + (BN - 1) - (best & (BN - 1))
            most = (best & (0x7FFFFFFF - (BN - 1))).to(tl.int64)
            packed = (most << 32) | (0x7FFFFFFF - key).to(tl.int64)
            atomic_max_rows(PEAK + at, tl.where(most > 0, packed, 0), live)
    tl.store(EFFECT_OF_KEY + bh * keys + j, tl.sum(tl.sum(total, 0), 0), mask=j < keys)
