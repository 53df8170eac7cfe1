"""The light second kernel of the survey: shares, and the key of each peak."""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.kernels.terms import INTERPRETED, LOG2E, masked_score
from regard.ops.kernels.tiles import load_rows
from regard.ops.survey.weight_tile import SurveyOptions


def compute_shares(
    arguments: dict[str, Any], options: SurveyOptions, packed: Tensor, *, shares: bool, peaks: bool
) -> dict[str, Tensor]:
    """The shares, and the peaks: which of the four keys with a peak's tag holds it."""
    q, queries = arguments["inputs"].q, arguments["inputs"].queries
    sequences = q.shape[0] * q.shape[1]
    values = torch.empty(5, sequences, queries, device=q.device, dtype=torch.float32)
    peak_key = torch.empty(sequences, queries, device=q.device, dtype=torch.int64)
    rows = 16 if INTERPRETED else 64
    _shares_kernel[(triton.cdiv(queries, rows), sequences)](
        **arguments, SHARES=values, PEAK=packed, PEAK_KEY=peak_key, step=values.stride(0),
        first=options.first_keys, radius=options.radius, WANTS_PEAK=peaks, WANTS_SHARES=shares,
        BM=rows, BN=16,
    )  # fmt: skip
    names = ("self_share", "previous_share", "local_share", "first_share", "peak")
    return dict(zip(names, values, strict=True)) | {"peak_key": peak_key}


@triton.jit
@no_type_check  # Triton has its own types
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
    own_q = inputs.q + b * inputs.q_b + h * inputs.q_h
    own_k = inputs.k + b * inputs.k_b + (h // inputs.group) * inputs.k_h
    q = load_rows(own_q, row, inputs.q_i, live, dims, HEAD_DIM)
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
            candidate = load_rows(own_k, key, k_j, visible, dims, HEAD_DIM)
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
                k = load_rows(own_k, j, k_j, j < keys, dims, HEAD_DIM)
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
