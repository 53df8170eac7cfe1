"""The survey as Triton kernels, written for Hopper.

One program owns a block of keys and walks over the queries that see them. So the sums down a column
stay in registers until the end, and only the few numbers of each row leave by atomics: a reduction
across rows costs a dozen shuffles a tile, one across columns almost none.
"""

import os
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.grid import four_axes
from regard.ops.survey.statistics import QUICK, Question, Survey
from regard.ops.terms import Terms
from regard.ops.triton_terms import LOG2E, Plan, make_plan, term_score

KNOWN = frozenset({*QUICK, "received", "max_score"})
PLACES = frozenset({"own", "previous", "sink", "near"})
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # read by Triton when it is imported


def refusal(q: Tensor, k: Tensor, terms: Terms) -> str | None:
    """Why the kernel cannot run on this; None when it can."""
    if not (q.is_cuda or INTERPRETED):
        return "Triton needs a CUDA device"
    if q.dtype != k.dtype or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the kernel needs float32, bfloat16 or float16, got {q.dtype} and {k.dtype}"
    if q.shape[-1] > 256:
        return f"the kernel needs feat of at most 256, got {q.shape[-1]}"
    plan = make_plan(four_axes(q), four_axes(k), terms)
    return plan if isinstance(plan, str) else None


def survey(q: Tensor, k: Tensor, lse: Tensor, terms: Terms, question: Question) -> Survey:
    """Two launches: the streaming pass, and a light one for shares at given places."""
    batch, ask = q.shape[:-2], question.ask
    q4, k4 = four_axes(q), four_axes(k)
    plan = make_plan(q4, k4, terms)
    assert isinstance(plan, Plan)
    call = launch_arguments(q4, k4, lse, terms, plan)
    found: dict[str, Tensor] = {}
    if ask - PLACES:
        found |= _stream(call, lse, plan, ask)
    if ask & PLACES:
        found |= _look_at_places(call, question)
    return Survey(
        **{name: found[name].view(*batch, -1) for name in ask if name != "max_score"},
        max_score=found["max_score"].view(batch) if "max_score" in ask else None,
    )


def launch_arguments(q: Tensor, k: Tensor, lse: Tensor, terms: Terms, plan: Plan) -> dict[str, Any]:
    """What every kernel here is given: q, k, lse with strides, sizes, and the plan."""
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    # a row that sees nothing gets weight 0 everywhere, without a branch
    lse = lse.float().masked_fill(lse == -torch.inf, 1e30).contiguous()
    return {
        "Q": q, "K": k, "LSE": lse,
        "q_b": q.stride(0), "q_h": q.stride(1), "q_i": q.stride(2),
        "k_b": k.stride(0), "k_h": k.stride(1), "k_j": k.stride(2),
        "heads": q.shape[1], "group": q.shape[1] // k.shape[1],
        "queries": q.shape[2], "keys": k.shape[2], "offset": terms.offset,
        "FEAT": q.shape[3], "WIDE": max(16, triton.next_power_of_2(q.shape[3])),
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "ieee",
    } | plan.arguments(q, terms)  # fmt: skip


def _stream(
    call: dict[str, Any], lse: Tensor, plan: Plan, ask: frozenset[str]
) -> dict[str, Tensor]:
    q, keys, queries = call["Q"], call["keys"], call["queries"]
    sequences = q.shape[0] * q.shape[1]
    wants_peak = bool(ask & {"peak", "peak_key", "max_score"})
    wants_reach = bool(ask & {"reach", "ahead"})
    both_sides = wants_reach and plan.right > 0
    sums = torch.zeros(3, sequences, queries, device=q.device, dtype=torch.float32)
    packed = torch.zeros(sequences, queries, device=q.device, dtype=torch.int64)
    received = torch.empty(sequences, keys, device=q.device, dtype=torch.float32)
    _survey_kernel[lambda meta: (triton.cdiv(keys, meta["BN"]), sequences)](
        **call, SUMS=sums, PEAK=packed, RECEIVED=received,
        size=triton.next_power_of_2(queries), step=sums.stride(0),
        ENTROPY="entropy" in ask, WANTS_PEAK=wants_peak, WANTS_REACH=wants_reach,
        BOTH_SIDES=both_sides, AHEAD=plan.right > 0,
    )  # fmt: skip
    found = {"entropy": sums[0], "ahead": sums[1], "received": received}
    if wants_reach:
        found["reach"] = sums[2] if both_sides else -sums[1]
    if wants_peak:
        found |= unpack_peak(packed)
        if "max_score" in ask:
            score = found["peak"].log() + lse.reshape(sequences, queries)
            found["max_score"] = score.amax(-1)
    return found


def unpack_peak(packed: Tensor) -> dict[str, Tensor]:
    """The peak and its key out of one sortable integer, 0 and -1 where none was seen."""
    peak = (packed >> 32).to(torch.int32).view(torch.float32)
    key = (0x7FFFFFFF - (packed & 0x7FFFFFFF)).masked_fill(packed == 0, -1)
    return {"peak": peak, "peak_key": key}


def _look_at_places(call: dict[str, Any], question: Question) -> dict[str, Tensor]:
    q, queries = call["Q"], call["queries"]
    sequences, names = q.shape[0] * q.shape[1], ("own", "previous", "near", "sink")
    shares = torch.zeros(4, sequences, queries, device=q.device, dtype=torch.float32)
    rows = 16 if INTERPRETED else 64
    _places_kernel[(triton.cdiv(queries, rows), sequences)](
        **call, SHARES=shares, step=shares.stride(0), first=question.first,
        radius=question.radius, BM=rows, BN=rows,
    )  # fmt: skip
    return dict(zip(names, shares, strict=True))


def configs() -> list[triton.Config]:
    """The tiles worth trying; the interpreter gets one small enough to cross every edge."""
    if INTERPRETED:
        return [triton.Config({"BM": 16, "BN": 32}, num_warps=4, num_stages=1)]
    return [
        triton.Config({"BM": m, "BN": n}, num_warps=w, num_stages=s)
        for m, n, w, s in (
            (64, 128, 4, 2), (64, 128, 4, 3), (128, 128, 8, 2), (128, 128, 8, 3),
            (64, 256, 8, 2), (128, 64, 4, 3), (64, 64, 4, 3),
        )
    ]  # fmt: skip


@triton.autotune(
    configs(),
    key=["size", "WIDE", "GENERAL", "AHEAD", "WANTS_PEAK", "ENTROPY", "WANTS_REACH"],
    reset_to_zero=["SUMS", "PEAK"],
    cache_results=not INTERPRETED,
)
@triton.jit
@no_type_check  # Triton has its own types
def _survey_kernel(
    Q, K, LSE, q_b, q_h, q_i, k_b, k_h, k_j, heads, group, queries, keys, offset,
    left, right, scale, softcap, SKIP, STOP, chunk, chunks_back, IDS, ids_b,
    MASK, mask_b, mask_h, mask_i, mask_j, SLOPES, TABLE, table_radius,
    BIAS, bias_b, bias_h, bias_i, bias_j, SUMS, PEAK, RECEIVED, size, step,
    FEAT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, GENERAL: tl.constexpr,
    CAPPED: tl.constexpr, PADDED: tl.constexpr, CHUNKED: tl.constexpr, DOCUMENTS: tl.constexpr,
    MASKED: tl.constexpr, ALIBI: tl.constexpr, TOEPLITZ: tl.constexpr, BIASED: tl.constexpr,
    ENTROPY: tl.constexpr, WANTS_PEAK: tl.constexpr, WANTS_REACH: tl.constexpr,
    BOTH_SIDES: tl.constexpr, AHEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    j0, bh = tl.program_id(0) * BN, tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    feat, column = tl.arange(0, WIDE), tl.arange(0, BN)
    j = j0 + column
    k = tl.load(
        K + b * k_b + (h // group) * k_h + j[:, None] * k_j + feat[None, :],
        mask=(j < keys)[:, None] & (feat < FEAT)[None, :], other=0.0,
    )  # fmt: skip
    # Rows are walked in five stretches. Only those that the mask's edge runs through, or that hold
    # the diagonal, pay for the mask: [lo, a) edge, [a, x) plain, [x, y) diagonal, [y, c) plain,
    # [c, hi) edge.
    lo = tl.maximum(j0 - right - offset, 0) // BM * BM
    hi = tl.minimum(queries, j0 + BN + left - offset)
    x = tl.maximum(tl.minimum(tl.maximum(j0 - offset, 0) // BM * BM, hi), lo)
    y = tl.maximum(tl.cdiv(tl.maximum(j0 + BN - offset, 0), BM) * BM, x)
    if GENERAL or j0 + BN > keys:
        a, c = x, y
    else:
        a = tl.cdiv(tl.maximum(j0 + BN - 1 - right - offset, 0), BM) * BM
        a = tl.minimum(tl.maximum(a, lo), x)
        c = (tl.maximum(j0 + left - offset + 1, 0)) // BM * BM
        c = tl.maximum(tl.minimum(c, hi // BM * BM + (hi % BM > 0) * BM), y)
    total = tl.zeros([BM, BN], tl.float32)
    for stretch in tl.static_range(5):
        if stretch == 0:
            start, stop = lo, a
        elif stretch == 1:
            start, stop = a, x
        elif stretch == 2:
            start, stop = x, tl.minimum(y, hi)
        elif stretch == 3:
            start, stop = y, tl.minimum(c, hi)
        else:
            start, stop = tl.maximum(c, y), hi
        if AHEAD or stretch > 1:
            for i0 in tl.range(start, stop, BM):
                row = i0 + tl.arange(0, BM)
                live = row < queries
                q = tl.load(
                    Q + b * q_b + h * q_h + row[:, None] * q_i + feat[None, :],
                    mask=live[:, None] & (feat < FEAT)[None, :], other=0.0,
                )  # fmt: skip
                lse = tl.load(LSE + bh * queries + row, mask=live, other=1e30) * LOG2E
                dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                i = row + offset
                if stretch == 1 or stretch == 3:
                    s = dot * (scale * LOG2E)
                else:
                    s = term_score(
                        dot, i[:, None], j[None, :], row[:, None],
                        live[:, None] & (j < keys)[None, :], b, h, left, right, scale, softcap,
                        SKIP, STOP, chunk, chunks_back, IDS, ids_b,
                        MASK, mask_b, mask_h, mask_i, mask_j, SLOPES, TABLE, table_radius,
                        BIAS, bias_b, bias_h, bias_i, bias_j,
                        CAPPED, PADDED, CHUNKED, DOCUMENTS, MASKED, ALIBI, TOEPLITZ, BIASED,
                    )  # fmt: skip
                log_w = s - lse[:, None]
                w = tl.exp2(log_w)
                total += w
                at = bh * queries + row
                if ENTROPY:
                    part = tl.sum(w * log_w, 1) * (-1.0 / LOG2E)
                    tl.atomic_add(SUMS + at, part, mask=live, sem="relaxed")
                if WANTS_REACH:
                    near = tl.sum(w * column.to(tl.float32)[None, :], 1)
                    ahead = near + (j0 - i).to(tl.float32) * tl.sum(w, 1)
                    tl.atomic_add(SUMS + step + at, ahead, mask=live, sem="relaxed")
                    if BOTH_SIDES:
                        if stretch == 2:
                            far = tl.abs(j[None, :] - i[:, None]).to(tl.float32)
                            ahead = tl.sum(w * far, 1)
                        tl.atomic_add(SUMS + 2 * step + at, tl.abs(ahead), mask=live, sem="relaxed")
                if WANTS_PEAK:
                    # the last bits of a weight give way to its column: one max finds both
                    bits = w.to(tl.int32, bitcast=True)
                    best = tl.max((bits & (0x7FFFFFFF - (BN - 1))) | (BN - 1 - column)[None, :], 1)
                    key = j0 + (BN - 1) - (best & (BN - 1))
                    value = (best & (0x7FFFFFFF - (BN - 1))).to(tl.int64)
                    packed = (value << 32) | (0x7FFFFFFF - key).to(tl.int64)
                    seen = live & (value > 0)
                    tl.atomic_max(PEAK + at, packed, mask=seen, sem="relaxed")
    tl.store(RECEIVED + bh * keys + j, tl.sum(total, 0), mask=j < keys)


@triton.jit
@no_type_check  # Triton has its own types
def _places_kernel(
    Q, K, LSE, q_b, q_h, q_i, k_b, k_h, k_j, heads, group, queries, keys, offset,
    left, right, scale, softcap, SKIP, STOP, chunk, chunks_back, IDS, ids_b,
    MASK, mask_b, mask_h, mask_i, mask_j, SLOPES, TABLE, table_radius,
    BIAS, bias_b, bias_h, bias_i, bias_j, SHARES, step, first, radius,
    FEAT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, GENERAL: tl.constexpr,
    CAPPED: tl.constexpr, PADDED: tl.constexpr, CHUNKED: tl.constexpr, DOCUMENTS: tl.constexpr,
    MASKED: tl.constexpr, ALIBI: tl.constexpr, TOEPLITZ: tl.constexpr, BIASED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    i0, bh = tl.program_id(0) * BM, tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    feat, row = tl.arange(0, WIDE), i0 + tl.arange(0, BM)
    live, i = row < queries, row + offset
    q = tl.load(
        Q + b * q_b + h * q_h + row[:, None] * q_i + feat[None, :],
        mask=live[:, None] & (feat < FEAT)[None, :], other=0.0,
    )  # fmt: skip
    lse = tl.load(LSE + bh * queries + row, mask=live, other=1e30) * LOG2E
    own = tl.zeros([BM], tl.float32)
    previous = tl.zeros([BM], tl.float32)
    near = tl.zeros([BM], tl.float32)
    sink = tl.zeros([BM], tl.float32)
    reach = tl.maximum(radius, 1)
    for part in tl.static_range(2):  # the first keys, then those around the diagonal
        if part == 0:
            start, stop = 0, tl.minimum(first, keys)
        else:
            start = tl.minimum(tl.maximum(i0 + offset - reach, 0), keys) // BN * BN
            stop = tl.minimum(i0 + BM + offset + radius, keys)
        for j0 in range(start, stop, BN):
            j = j0 + tl.arange(0, BN)
            k = tl.load(
                K + b * k_b + (h // group) * k_h + j[:, None] * k_j + feat[None, :],
                mask=(j < keys)[:, None] & (feat < FEAT)[None, :], other=0.0,
            )  # fmt: skip
            dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            s = term_score(
                dot, i[:, None], j[None, :], row[:, None],
                live[:, None] & (j < keys)[None, :], b, h, left, right, scale, softcap,
                SKIP, STOP, chunk, chunks_back, IDS, ids_b,
                MASK, mask_b, mask_h, mask_i, mask_j, SLOPES, TABLE, table_radius,
                BIAS, bias_b, bias_h, bias_i, bias_j,
                CAPPED, PADDED, CHUNKED, DOCUMENTS, MASKED, ALIBI, TOEPLITZ, BIASED,
            )  # fmt: skip
            w = tl.exp2(s - lse[:, None])
            ahead = j[None, :] - i[:, None]
            if part == 0:
                sink += tl.sum(tl.where(j[None, :] < first, w, 0.0), 1)
            else:
                own += tl.sum(tl.where(ahead == 0, w, 0.0), 1)
                previous += tl.sum(tl.where(ahead == -1, w, 0.0), 1)
                inside = (ahead <= radius) & (-ahead <= radius)
                near += tl.sum(tl.where(inside, w, 0.0), 1)
    at = SHARES + bh * queries + row
    tl.store(at, own, mask=live)
    tl.store(at + step, previous, mask=live)
    tl.store(at + 2 * step, near, mask=live)
    tl.store(at + 3 * step, sink, mask=live)
