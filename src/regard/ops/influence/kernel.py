"""Influence as a Triton kernel: the structure of the survey's kernel, with a second product.

One program owns a block of keys and values and iterates over the queries that see them. Outputs,
and the effect of each row's dominant key, come from leave_one_out_kernel.py.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl

from regard.ops.grid import to_4d
from regard.ops.influence.effect import AttentionRecord, Effect, Influence
from regard.ops.influence.leave_one_out_kernel import ceil_power_of_two, rows_without_dominant
from regard.ops.kernels.terms import (
    LOG2E,
    KernelTerms,
    atomic_add_rows,
    atomic_max_rows,
    choose_tile,
    launch_arguments,
    load_rows,
    make_kernel_terms,
    masked_score,
    row_segments,
    segment_bounds,
)
from regard.ops.survey.kernel import refusal as survey_refusal


def refusal(record: AttentionRecord, effect: Effect) -> str | None:
    """Why the kernel cannot run on this; None when it can."""
    if effect == "scale":
        return "the kernel computes remove and slope only"
    if record.q.dtype != record.v.dtype:
        return f"q and v need one dtype, got {record.q.dtype} and {record.v.dtype}"
    if record.lse.dtype in (torch.bfloat16, torch.float16):
        return f"the kernel needs lse in float32, got {record.lse.dtype}"
    if 0 in (*record.q.shape, *record.k.shape, *record.v.shape):
        return "the kernel needs sizes of 1 or more"
    if record.v.shape[-1] > 256:
        return f"the kernel needs a value dim of at most 256, got {record.v.shape[-1]}"
    return survey_refusal(record.q, record.k, record.terms)


def influence(record: AttentionRecord, effect: Effect) -> Influence:
    """Two launches: the rows without their dominant keys, then all pairs."""
    q, k, v = (to_4d(x) for x in (record.q, record.k, record.v))
    kernel_terms = make_kernel_terms(q, k, record.terms)
    assert isinstance(kernel_terms, KernelTerms)
    arguments = launch_arguments(q, k, record.lse, record.terms.offset, kernel_terms)
    v = v if v.stride(-1) == 1 else v.contiguous()
    rows = rows_without_dominant(arguments, v, record.terms.sinks, effect == "remove")
    sequences, queries, keys = q.shape[0] * q.shape[1], q.shape[2], k.shape[2]
    on_query = torch.zeros(sequences, queries, device=q.device)
    packed = torch.zeros(sequences, queries, device=q.device, dtype=torch.int64)
    of_key = torch.empty(sequences, keys, device=q.device)
    value_dim = max(16, triton.next_power_of_2(v.shape[3]))
    tile = choose_tile((arguments["HEAD_DIM_PADDED"] + value_dim) * q.element_size(), operands=2)
    _influence_kernel[(triton.cdiv(keys, tile["BN"]), sequences)](
        **arguments, LSE=rows.lse, V=v, OUT=rows.out, UNIT=rows.unit, SQUARE=rows.square,
        KEY=rows.key, EFFECT=rows.effect,
        EFFECT_ON_QUERY=on_query, PEAK=packed, EFFECT_OF_KEY=of_key,
        v_b=v.stride(0), v_h=v.stride(1), v_j=v.stride(2),
        VALUE_DIM=v.shape[3], VALUE_DIM_PADDED=value_dim, HALF=v.dtype != torch.float32,
        REMOVE=effect == "remove", ALLOWS_FUTURE=kernel_terms.right > 0, **tile,
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
