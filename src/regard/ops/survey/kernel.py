"""The survey as Triton kernels, written for Hopper.

One program owns a block of keys and walks over the queries that see them. So the sums down a column
stay in registers until the end, and only the few numbers of each row leave by atomics: a reduction
across rows costs a dozen shuffles a tile, one across columns almost none.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.grid import to_4d
from regard.ops.kernels.terms import (
    INTERPRETED,
    LOG2E,
    KernelTerms,
    make_kernel_terms,
    masked_score,
)
from regard.ops.survey.shares_kernel import SHARE_STATISTICS, compute_shares
from regard.ops.survey.statistics import ROW_STATISTICS, Survey, SurveyOptions
from regard.ops.terms import Terms

KERNEL_STATISTICS = frozenset({*ROW_STATISTICS, "received", "max_score"})


def refusal(q: Tensor, k: Tensor, terms: Terms) -> str | None:
    """Why the kernel cannot run on this; None when it can."""
    if not (q.is_cuda or INTERPRETED):
        return "Triton needs a CUDA device"
    if q.dtype != k.dtype or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the kernel needs float32, bfloat16 or float16, got {q.dtype} and {k.dtype}"
    if q.shape[-1] > 256:
        return f"the kernel needs head_dim of at most 256, got {q.shape[-1]}"
    plan = make_kernel_terms(to_4d(q), to_4d(k), terms)
    return plan if isinstance(plan, str) else None


def survey(q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions) -> Survey:
    """Two launches: the streaming pass, and a light one for shares and peaks at given places."""
    batch, ask = q.shape[:-2], options.statistics
    q4, k4 = to_4d(q), to_4d(k)
    plan = make_kernel_terms(q4, k4, terms)
    assert isinstance(plan, KernelTerms)
    call = launch_arguments(q4, k4, lse, terms, plan)
    found: dict[str, Tensor] = {"packed": lse}  # not read unless a peak was asked for
    if ask - SHARE_STATISTICS:
        found |= _stream(call, plan, ask)
    if ask & (SHARE_STATISTICS | {"peak", "peak_key", "max_score"}):
        found |= compute_shares(call, options, found["packed"])
    if "max_score" in ask:
        found["max_score"] = (found["peak"].log() + lse.view_as(found["peak"])).amax(-1)
    return Survey(**{name: found[name].view(*batch, *found[name].shape[1:]) for name in ask})


def launch_arguments(
    q: Tensor, k: Tensor, lse: Tensor, terms: Terms, kernel_terms: KernelTerms
) -> dict[str, Any]:
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
        "HEAD_DIM": q.shape[3], "HEAD_DIM_PADDED": max(16, triton.next_power_of_2(q.shape[3])),
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "ieee",
    } | kernel_terms.arguments(q, terms)  # fmt: skip


def _stream(call: dict[str, Any], plan: KernelTerms, ask: frozenset[str]) -> dict[str, Tensor]:
    q, keys, queries = call["Q"], call["keys"], call["queries"]
    sequences = q.shape[0] * q.shape[1]
    sums = torch.zeros(sequences, queries, 4, device=q.device, dtype=torch.float32)
    packed = torch.zeros(sequences, queries, device=q.device, dtype=torch.int64)
    received = torch.empty(sequences, keys, device=q.device, dtype=torch.float32)
    tile = choose_tile(call["HEAD_DIM_PADDED"] * q.element_size())
    # Programs start in the order of their numbers. Those of one sequence read the same queries, and
    # side by side they find them in the cache; but under a causal mask the first keys, which most
    # queries see, are the longest programs, and begun first none of them is left alone at the end.
    ahead, blocks = plan.right > 0, triton.cdiv(keys, tile["BN"])
    _survey_kernel[(blocks, sequences) if ahead else (sequences, blocks)](
        **call, SUMS=sums, PEAK=packed, RECEIVED=received,
        AHEAD=ahead,
        WANTS_SUMS=bool(ask & {"entropy", "mean_distance", "mean_offset"}),
        WANTS_PEAK=bool(ask & {"peak", "peak_key", "max_score"}), **tile,
    )  # fmt: skip
    entropy, back, fore, _ = sums.unbind(-1)
    found = {"entropy": entropy, "received": received, "packed": packed}
    if "mean_distance" in ask:
        found["mean_distance"] = back + fore
    if "mean_offset" in ask:
        found["mean_offset"] = fore - back
    return found


def choose_tile(bytes_per_row: int, operands: int = 1) -> dict[str, int]:
    """Rows, keys, warps and stages: of those tried on an H200 the best for this width.

    A row of q (of q and out together, when there are two operands) takes `bytes_a_row`; 64 rows and
    128 keys, three stages deep, while two programs fit on a multiprocessor.
    """
    if INTERPRETED:  # small enough to cross every edge
        return {"BM": 16, "BN": 32, "num_warps": 4, "num_stages": 1}
    wide = bytes_per_row <= (256 if operands == 1 else 128 * operands)
    tile = {"BM": 64, "BN": 128 if wide else 64, "num_warps": 4, "num_stages": 3 if wide else 2}
    if bytes_per_row > 512 * operands:
        tile |= {"BN": 32, "num_stages": 1}
    return tile


@triton.jit
@no_type_check  # Triton has its own types
def row_segments(
    j0,
    left,
    right,
    offset,
    queries,
    keys,
    GENERAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Where rows that see keys j0 … j0 + BN begin and end, in five stretches.

    Only those that the mask's edge runs through, or that hold the diagonal, pay for the mask:
    [lo, a) edge, [a, x) plain, [x, y) diagonal, [y, c) plain, [c, hi) edge.
    """
    lo = tl.maximum(j0 - right - offset, 0) // BM * BM
    hi = tl.minimum(queries, tl.maximum(j0 + BN + left - offset, 0))
    x = tl.maximum(tl.minimum(tl.maximum(j0 - offset, 0) // BM * BM, hi), lo)
    y = tl.maximum(tl.cdiv(tl.maximum(j0 + BN - offset, 0), BM) * BM, x)
    a, c = x, y
    if not GENERAL:  # noqa: SIM102, one is known when compiling, the other when running
        if j0 + BN <= keys:
            a = tl.cdiv(tl.maximum(j0 + BN - 1 - right - offset, 0), BM) * BM
            a = tl.minimum(tl.maximum(a, lo), x)
            c = tl.maximum(j0 + left - offset + 1, 0) // BM * BM
            c = tl.maximum(tl.minimum(c, tl.cdiv(hi, BM) * BM), y)
    return lo, a, x, tl.minimum(y, hi), tl.minimum(c, hi), hi


@triton.jit
@no_type_check
def segment_bounds(segment: tl.constexpr, lo, a, x, y, c, hi):
    """Where one of the five begins and ends."""
    if segment == 0:
        start, stop = lo, a
    elif segment == 1:
        start, stop = a, x
    elif segment == 2:
        start, stop = x, y
    elif segment == 3:
        start, stop = y, c
    else:
        start, stop = tl.maximum(c, y), hi
    return start, stop


# Atomics of BM x 2 numbers on 2 · BM threads are issued by the warp that made them; BM numbers
# would first go through shared memory and two barriers, which cost more than they. A lone number
# is sent as the first of a pair.


@triton.jit
@no_type_check
def atomic_add_rows(where, x, live):
    """Add x, one number a row."""
    first = tl.arange(0, 2)[None, :] == 0
    tl.atomic_add(
        where[:, None] + tl.zeros([1, 2], tl.int32),
        tl.join(x, x),
        mask=live[:, None] & first,
        sem="relaxed",
    )


@triton.jit
@no_type_check
def atomic_max_rows(where, x, live):
    """Keep the larger, one number a row, of x in pairs."""
    first = tl.arange(0, 2)[None, :] == 0
    tl.atomic_max(
        where[:, None] + tl.zeros([1, 2], tl.int32),
        x,
        mask=live[:, None] & first,
        sem="relaxed",
    )


@triton.jit
@no_type_check
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
@no_type_check
def _survey_kernel(
    Q, K, LSE, q_b, q_h, q_i, k_b, k_h, k_j, heads, group, queries, keys, offset,
    left, right, scale, softcap, LEFT_PADDING, LENGTHS, chunk, chunks_back, IDS, ids_b,
    MASK, mask_b, mask_h, mask_i, mask_j, SLOPES, TABLE, table_radius,
    BIAS, bias_b, bias_h, bias_i, bias_j, SUMS, PEAK, RECEIVED,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, PRECISION: tl.constexpr, GENERAL: tl.constexpr,
    CAPPED: tl.constexpr, PADDED: tl.constexpr, CHUNKED: tl.constexpr, DOCUMENTS: tl.constexpr,
    MASKED: tl.constexpr, ALIBI: tl.constexpr, TOEPLITZ: tl.constexpr, BIASED: tl.constexpr,
    WANTS_SUMS: tl.constexpr, WANTS_PEAK: tl.constexpr, AHEAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    # A thread of the tensor core's result holds two rows eight apart, and in them every eighth pair
    # of columns. Sums along these (the reshapes to 2 x 8 rows and BN/8 x 8 columns below) stay
    # within a thread; what crosses threads is an eighth of a row, once a tile.
    EIGHTHS: tl.constexpr = BN // 8
    block, bh = tl.program_id(1), tl.program_id(0).to(tl.int64)
    if AHEAD:
        block, bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    j0, b, h = block * BN, bh // heads, bh % heads
    dims, j = tl.arange(0, HEAD_DIM_PADDED), j0 + tl.arange(0, BN)
    k = tl.load(
        K + b * k_b + (h // group) * k_h + j[:, None] * k_j + dims[None, :],
        mask=(j < keys)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0,
    )  # fmt: skip
    lo, a, x, y, c, hi = row_segments(j0, left, right, offset, queries, keys, GENERAL, BM, BN)
    total = tl.zeros([BM // 16, 8, BN], tl.float32)
    for stretch in tl.static_range(0 if AHEAD else 2, 5):
        start, stop = segment_bounds(stretch, lo, a, x, y, c, hi)
        row = start + tl.arange(0, BM)
        next_lse = tl.load(LSE + bh * queries + row, mask=row < queries, other=1e30)
        for i0 in tl.range(start, stop, BM):
            row = i0 + tl.arange(0, BM)
            live = row < queries
            q = tl.load(
                Q + b * q_b + h * q_h + row[:, None] * q_i + dims[None, :],
                mask=live[:, None] & (dims < HEAD_DIM)[None, :], other=0.0,
            )  # fmt: skip
            lse = next_lse * LOG2E  # read a tile ahead: it is too small to be pipelined
            at = bh * queries + row
            next_lse = tl.load(LSE + at + BM, mask=row + BM < queries, other=1e30)
            dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            i = row + offset
            if stretch == 1 or stretch == 3:
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
            log_w = s - lse[:, None]
            w = tl.exp2(log_w)
            total += tl.sum(tl.reshape(w, [BM // 16, 2, 8, BN]), 1)
            if WANTS_SUMS:
                parts = tl.reshape(w * log_w, [BM, EIGHTHS // 4, 4, 8])
                e8 = tl.sum(tl.sum(parts, 2), 1) * (-1.0 / LOG2E)
                if stretch == 2:
                    ahead = (j[None, :] - i[:, None]).to(tl.float32)
                    back = tl.sum(w * tl.maximum(-ahead, 0.0), 1)
                    if AHEAD:
                        fore = tl.sum(w * tl.maximum(ahead, 0.0), 1)
                        atomic_add_rows(SUMS + at * 4 + 2, fore, live)
                    sums = tl.join(tl.sum(e8, 1), back)
                else:
                    # Σ w (j - i) from the mass and the moment of each eighth, four at a time: short
                    # chains of sums keep the adders busy
                    w4 = tl.reshape(w, [BM, EIGHTHS // 4, 4, 8])
                    nth = tl.reshape(tl.arange(0, EIGHTHS), [1, EIGHTHS // 4, 4, 1])
                    moment = tl.sum(tl.sum(w4 * nth.to(tl.float32), 2), 1) * 8.0
                    mass = tl.sum(tl.sum(w4, 2), 1)
                    away = (tl.arange(0, 8)[None, :] + (j0 - i)[:, None]).to(tl.float32)
                    e, d = tl.reduce((e8, moment + away * mass), 1, _add_pairs)
                    sums = tl.join(e, tl.abs(d))
                side: tl.constexpr = 2 if stretch < 2 else 1
                where = at[:, None] * 4 + tl.arange(0, 2)[None, :] * side
                tl.atomic_add(SUMS + where, sums, mask=live[:, None], sem="relaxed")
            if WANTS_PEAK:
                # The largest of four keys stands for them, its last bits giving way to a tag that
                # says which four: one max then finds value and place. _places_kernel tells which.
                # (The tag falls as the key grows, so that of equal weights the first key wins.)
                bits = tl.reshape(w.to(tl.int32, bitcast=True), [BM, EIGHTHS // 4, 4, 8])
                tag = tl.arange(0, EIGHTHS // 4)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
                best = (tl.max(bits, 2) & 0x7FFFFFC0) | (63 - tag)
                best = tl.max(tl.max(best, 1), 1)
                best = tl.join(best, best)
                tag_found = 63 - (best & 63)
                key = j0 + (tag_found // 8) * 32 + tag_found % 8
                value = (best & 0x7FFFFFC0).to(tl.int64)
                packed = (value << 32) | (0x7FFFFFFF - key).to(tl.int64)
                atomic_max_rows(PEAK + at, tl.where(value > 0, packed, 0), live)
    tl.store(RECEIVED + bh * keys + j, tl.sum(tl.sum(total, 0), 0), mask=j < keys)
