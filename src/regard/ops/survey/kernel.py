"""The survey as Triton kernels, tuned for Hopper.

One program owns a block of keys and iterates over the queries that see them. Column sums stay in
registers until the end, and only a few numbers per row leave by atomics: a reduction across rows
costs a dozen shuffles per tile, one across columns almost none.
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
    MAX_WIDTH,
    KernelInputs,
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
from regard.ops.survey.statistics import Survey, SurveyOptions, statistics_with
from regard.ops.terms import Terms

SHARES, PEAKS, SUMS = (statistics_with(kernel=name) for name in ("shares", "peak", "sums"))


def prepare(q: Tensor, k: Tensor, terms: Terms) -> KernelTerms | str:
    """The terms as the kernel takes them, or why it cannot run on this."""
    if not (q.is_cuda or INTERPRETED):
        return "Triton needs a CUDA device"
    if q.dtype != k.dtype or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the kernel needs float32, bfloat16 or float16, got {q.dtype} and {k.dtype}"
    if q.shape[-1] > MAX_WIDTH:
        return f"the kernel needs head_dim of at most {MAX_WIDTH}, got {q.shape[-1]}"
    return make_kernel_terms(to_4d(q), to_4d(k), terms)


def survey(
    q: Tensor, k: Tensor, lse: Tensor, offset: int, terms: KernelTerms, options: SurveyOptions
) -> Survey:
    """Two launches: the streaming pass, and a light one for shares and peaks."""
    batch, names = q.shape[:-2], options.statistics
    arguments = launch_arguments(to_4d(q), to_4d(k), lse, offset, terms)
    values: dict[str, Tensor] = {"packed": lse}  # not read unless a peak is requested
    if names - SHARES:
        values |= _stream(arguments, names)
    if names & (SHARES | PEAKS):
        shares, peaks = bool(names & SHARES), bool(names & PEAKS)
        values |= _compute_shares(arguments, options, values["packed"], shares=shares, peaks=peaks)
    if "max_score" in names:
        values["max_score"] = (values["peak"].log() + lse.view_as(values["peak"])).amax(-1)
    return Survey(**{name: values[name].view(*batch, *values[name].shape[1:]) for name in names})


def _stream(arguments: dict[str, Any], names: frozenset[str]) -> dict[str, Tensor]:
    inputs: KernelInputs = arguments["inputs"]
    q, queries, keys = inputs.q, inputs.queries, inputs.keys
    sequences = q.shape[0] * q.shape[1]
    sums = torch.zeros(sequences, queries, 4, device=q.device, dtype=torch.float32)
    packed = sums  # not touched unless a peak is requested
    if names & PEAKS:
        packed = torch.zeros(sequences, queries, device=q.device, dtype=torch.int64)
    received = torch.empty(sequences, keys, device=q.device, dtype=torch.float32)
    tile = choose_tile(arguments["HEAD_DIM_PADDED"] * q.element_size())
    # Programs start in order of their ids. Neighbours of one sequence read the same queries and
    # find them in the cache. Under a causal mask the first keys, visible to most queries, make the
    # longest programs; started first, none of them runs alone at the end.
    allows_future, blocks = arguments["terms"].right > 0, -(-keys // tile["BN"])
    _survey_kernel[(blocks, sequences) if allows_future else (sequences, blocks)](
        **arguments, SUMS=sums, PEAK=packed, RECEIVED=received,
        ALLOWS_FUTURE=allows_future,
        WANTS_SUMS=bool(names & SUMS), WANTS_PEAK=bool(names & PEAKS), **tile,
    )  # fmt: skip
    entropy, before, after, _ = sums.unbind(-1)
    values = {"entropy": entropy, "received": received, "packed": packed}
    if "mean_distance" in names:
        values["mean_distance"] = before + after
    if "mean_offset" in names:
        values["mean_offset"] = after - before
    return values


def _compute_shares(
    arguments: dict[str, Any], options: SurveyOptions, packed: Tensor, *, shares: bool, peaks: bool
) -> dict[str, Tensor]:
    """The shares, and the peaks: which of the four keys with a peak's tag holds it."""
    q, queries = arguments["inputs"].q, arguments["inputs"].queries
    sequences = q.shape[0] * q.shape[1]
    values = torch.empty(5, sequences, queries, device=q.device, dtype=torch.float32)
    peak_key = torch.empty(sequences, queries, device=q.device, dtype=torch.int64)
    rows = 16 if INTERPRETED or arguments["HEAD_DIM_PADDED"] > 256 else 64
    _shares_kernel[(-(-queries // rows), sequences)](
        **arguments, SHARES=values, PEAK=packed, PEAK_KEY=peak_key, step=values.stride(0),
        first=options.first_keys, radius=options.radius, WANTS_PEAK=peaks, WANTS_SHARES=shares,
        BM=rows, BN=16,
    )  # fmt: skip
    names = ("self_share", "previous_share", "local_share", "first_share", "peak")
    return dict(zip(names, values, strict=True)) | {"peak_key": peak_key}


@triton.jit
@no_type_check  # Triton has other types
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
@no_type_check
def _survey_kernel(
    inputs, terms, SUMS, PEAK, RECEIVED,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, PRECISION: tl.constexpr,
    GENERAL: tl.constexpr, WANTS_SUMS: tl.constexpr, WANTS_PEAK: tl.constexpr,
    ALLOWS_FUTURE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    # A thread of the tensor core's result holds two rows eight apart, and in them every eighth pair
    # of columns. Sums along these (the reshapes to 2 x 8 rows and BN/8 x 8 columns below) stay
    # within a thread; only an eighth of a row crosses threads, once per tile.
    EIGHTHS: tl.constexpr = BN // 8
    block, bh = tl.program_id(1), tl.program_id(0).to(tl.int64)
    if ALLOWS_FUTURE:
        block, bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    j0, b, h = block * BN, bh // inputs.heads, bh % inputs.heads
    dims, j = tl.arange(0, HEAD_DIM_PADDED), j0 + tl.arange(0, BN)
    queries, keys = inputs.queries, inputs.keys
    q_head = inputs.q + b * inputs.q_b + h * inputs.q_h
    k_head = inputs.k + b * inputs.k_b + (h // inputs.group) * inputs.k_h
    k = load_rows(k_head, j, inputs.k_j, j < keys, dims, HEAD_DIM)
    lo, a, x, y, c, hi = row_segments(j0, inputs, terms, GENERAL, BM, BN)
    total = tl.zeros([BM // 16, 8, BN], tl.float32)
    for segment in tl.static_range(0 if ALLOWS_FUTURE else 2, 5):
        start, stop = segment_bounds(segment, lo, a, x, y, c, hi)
        row = start + tl.arange(0, BM)
        next_lse = tl.load(inputs.lse + bh * queries + row, mask=row < queries, other=1e30)
        for i0 in tl.range(start, stop, BM):
            row = i0 + tl.arange(0, BM)
            live = row < queries
            q = load_rows(q_head, row, inputs.q_i, live, dims, HEAD_DIM)
            lse = next_lse * LOG2E  # loaded one tile ahead: too small to be pipelined
            at = bh * queries + row
            next_lse = tl.load(inputs.lse + at + BM, mask=row + BM < queries, other=1e30)
            dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            i = row + inputs.offset
            if segment == 1 or segment == 3:
                s = dot * (terms.scale * LOG2E)
            else:
                inside = live[:, None] & (j < keys)[None, :]
                s = masked_score(dot, i[:, None], j[None, :], row[:, None], inside, b, h, terms)
            log_w = s - lse[:, None]
            w = tl.exp2(log_w)
            total += tl.sum(tl.reshape(w, [BM // 16, 2, 8, BN]), 1)
            if WANTS_SUMS:
                parts = tl.reshape(w * log_w, [BM, EIGHTHS // 4, 4, 8])
                e8 = tl.sum(tl.sum(parts, 2), 1) * (-1.0 / LOG2E)
                if segment == 2:
                    offset_j = (j[None, :] - i[:, None]).to(tl.float32)
                    before = tl.sum(w * tl.maximum(-offset_j, 0.0), 1)
                    if ALLOWS_FUTURE:
                        after = tl.sum(w * tl.maximum(offset_j, 0.0), 1)
                        atomic_add_rows(SUMS + at * 4 + 2, after, live)
                    sums = tl.join(tl.sum(e8, 1), before)
                else:
                    # Σ w (j - i) from the mass and moment of each eighth, four at a time: short
                    # chains of sums keep the adders busy
                    w4 = tl.reshape(w, [BM, EIGHTHS // 4, 4, 8])
                    nth = tl.reshape(tl.arange(0, EIGHTHS), [1, EIGHTHS // 4, 4, 1])
                    moment = tl.sum(tl.sum(w4 * nth.to(tl.float32), 2), 1) * 8.0
                    mass = tl.sum(tl.sum(w4, 2), 1)
                    away = (tl.arange(0, 8)[None, :] + (j0 - i)[:, None]).to(tl.float32)
                    e, d = tl.reduce((e8, moment + away * mass), 1, _add_pairs)
                    sums = tl.join(e, tl.abs(d))
                side: tl.constexpr = 2 if segment < 2 else 1
                where = at[:, None] * 4 + tl.arange(0, 2)[None, :] * side
                tl.atomic_add(SUMS + where, sums, mask=live[:, None], sem="relaxed")
            if WANTS_PEAK:
                # The largest of four keys stands for them; its last bits are replaced by a tag that
                # names the four, so one max finds value and place. _shares_kernel resolves which.
                # (The tag falls as the key grows: of equal weights the first key wins.)
                bits = tl.reshape(w.to(tl.int32, bitcast=True), [BM, EIGHTHS // 4, 4, 8])
                tag = tl.arange(0, EIGHTHS // 4)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
                best = (tl.max(bits, 2) & 0x7FFFFFC0) | (63 - tag)
                best = tl.max(tl.max(best, 1), 1)
                best = tl.join(best, best)
                best_tag = 63 - (best & 63)
                key = j0 + (best_tag // 8) * 32 + best_tag % 8
                value = (best & 0x7FFFFFC0).to(tl.int64)
                packed = (value << 32) | (0x7FFFFFFF - key).to(tl.int64)
                atomic_max_rows(PEAK + at, tl.where(value > 0, packed, 0), live)
    tl.store(RECEIVED + bh * keys + j, tl.sum(tl.sum(total, 0), 0), mask=j < keys)


@triton.jit
@no_type_check
def _shares_kernel(
    inputs, terms, SHARES, PEAK, PEAK_KEY, step, first, radius,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, PRECISION: tl.constexpr,
    GENERAL: tl.constexpr, WANTS_PEAK: tl.constexpr, WANTS_SHARES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    i0, bh = tl.program_id(0) * BM, tl.program_id(1).to(tl.int64)
    b, h = bh // inputs.heads, bh % inputs.heads
    dims, row = tl.arange(0, HEAD_DIM_PADDED), i0 + tl.arange(0, BM)
    keys, k_j, offset = inputs.keys, inputs.k_j, inputs.offset
    live, i, at = row < inputs.queries, row + offset, bh * inputs.queries + row
    q_head = inputs.q + b * inputs.q_b + h * inputs.q_h
    k_head = inputs.k + b * inputs.k_b + (h // inputs.group) * inputs.k_h
    q = load_rows(q_head, row, inputs.q_i, live, dims, HEAD_DIM)
    lse = tl.load(inputs.lse + at, mask=live, other=1e30) * LOG2E
    if WANTS_PEAK:
        packed = tl.load(PEAK + at, mask=live, other=0)
        base = (0x7FFFFFFF - (packed & 0x7FFFFFFF)).to(tl.int32)
        peak = tl.zeros([BM], tl.float32)
        peak_key = tl.full([BM], -1, tl.int64)
        for n in tl.static_range(4):
            key = base + 8 * n
            visible = live & (packed > 0) & (key < keys)
            # not `k` or `dot`: Triton keeps one type per name
            candidate = load_rows(k_head, key, k_j, visible, dims, HEAD_DIM)
            product = tl.sum(q.to(tl.float32) * candidate.to(tl.float32), 1)
            score = masked_score(product, i, key, row, visible, b, h, terms)
            weight = tl.exp2(score - lse)
            peak_key = tl.where(weight > peak, key.to(tl.int64), peak_key)
            peak = tl.maximum(weight, peak)
        tl.store(SHARES + 4 * step + at, peak, mask=live)
        tl.store(PEAK_KEY + at, peak_key, mask=live)
    if WANTS_SHARES:
        self_share = tl.zeros([BM], tl.float32)
        previous = tl.zeros([BM], tl.float32)
        local = tl.zeros([BM], tl.float32)
        first_share = tl.zeros([BM], tl.float32)
        for part in tl.static_range(2):  # the first keys, then those around the diagonal
            if part == 0:
                start, stop = 0, tl.minimum(first, keys)
            else:
                start = tl.maximum(i0 + offset - tl.maximum(radius, 1), 0) // BN * BN
                stop = tl.minimum(i0 + BM + offset + radius, keys)
            for j0 in range(start, stop, BN):
                j = j0 + tl.arange(0, BN)
                k = load_rows(k_head, j, k_j, j < keys, dims, HEAD_DIM)
                dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                inside = live[:, None] & (j < keys)[None, :]
                s = masked_score(dot, i[:, None], j[None, :], row[:, None], inside, b, h, terms)
                w = tl.exp2(s - lse[:, None])
                offset_j = j[None, :] - i[:, None]
                if part == 0:
                    first_share += tl.sum(tl.where(j[None, :] < first, w, 0.0), 1)
                else:
                    self_share += tl.sum(tl.where(offset_j == 0, w, 0.0), 1)
                    previous += tl.sum(tl.where(offset_j == -1, w, 0.0), 1)
                    is_local = (offset_j <= radius) & (-offset_j <= radius)
                    local += tl.sum(tl.where(is_local, w, 0.0), 1)
        tl.store(SHARES + at, self_share, mask=live)
        tl.store(SHARES + step + at, previous, mask=live)
        tl.store(SHARES + 2 * step + at, local, mask=live)
        tl.store(SHARES + 3 * step + at, first_share, mask=live)
