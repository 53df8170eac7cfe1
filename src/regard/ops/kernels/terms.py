"""The terms of a score as arguments of Triton kernels, and their tiles; only kernels import it."""

import os
from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops import biases, masks
from regard.ops import terms as score_terms
from regard.ops.biases import Bias
from regard.ops.masks import Mask
from regard.ops.terms import Terms

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # read by Triton when it is imported
UNBOUNDED = 1 << 30  # stands for no limit
LOWEST_SCORE: tl.constexpr = tl.constexpr(score_terms.LOWEST_SCORE)
LOG2E: tl.constexpr = tl.constexpr(score_terms.LOG2E)


class KernelTerms(NamedTuple):
    """Mask and bias in the parts that kernels know; a part that is None is not compiled.

    Kernels take it as one argument; Triton specialises each field as if it was given by itself.
    Strides (of batch, head, query and key; 0 along broadcast axes) are separate fields: Triton
    3.6 loses the constants of a tuple within a tuple.
    """

    scale: float
    softcap: float | None = None
    left: int = UNBOUNDED  # the most a key may precede its query
    right: int = UNBOUNDED  # the most it may follow it
    lengths: Tensor | None = None
    left_padding: Tensor | None = None
    chunk: int | None = None
    chunks_back: int = 0
    ids: Tensor | None = None  # (batch, time)
    ids_b: int = 0
    allowed: Tensor | None = None  # of the whole map
    allowed_b: int = 0
    allowed_h: int = 0
    allowed_i: int = 0
    allowed_j: int = 0
    slopes: Tensor | None = None
    table: Tensor | None = None  # (head, distance)
    table_radius: int = 0
    bias: Tensor | None = None  # of the whole map
    bias_b: int = 0
    bias_h: int = 0
    bias_i: int = 0
    bias_j: int = 0

    @property
    def is_band(self) -> bool:
        """Whether the mask is a band and nothing else changes the scores: then tiles are plain."""
        return all(getattr(self, name) is None for name in OPTIONAL_TERMS)


OPTIONAL_TERMS = [name for name, x in KernelTerms._field_defaults.items() if x is None]


def make_kernel_terms(q: Tensor, k: Tensor, terms: Terms) -> KernelTerms | str:
    """The terms as kernels take them, or the reason why the kernels cannot compute them."""
    if terms.score is not None:
        return "the kernel computes only the dot product"
    shape = (*q.shape[-4:-1], k.shape[-2])
    left, right, values = UNBOUNDED, UNBOUNDED, {}
    for part in (x for term in (terms.mask, terms.bias) if term for x in term.parts):
        match part:
            case masks.Causal():
                right = min(right, 0)
            case masks.Local(radius):
                left, right = min(left, radius), min(right, radius)
            case _:
                new = _part_values(part, q.device, shape)
                if new is None or new.keys() & values.keys():  # only bands combine
                    return f"the kernel cannot compute this use of {type(part).__name__}"
                values |= new
    return KernelTerms(terms.scale, terms.softcap, left, right, **values)


def _part_values(
    part: Mask | Bias, device: torch.device, shape: tuple[int, ...]
) -> dict[str, Any] | None:
    """The fields of a mask or bias; None if kernels have none for it."""
    match part:
        case masks.Padding(lengths, left_padding):
            stop = lengths.reshape(-1).to(device, torch.int32)
            start = None if left_padding is None else left_padding.reshape(-1).to(stop).contiguous()
            return {"lengths": stop.contiguous(), "left_padding": start}
        case masks.Chunked(size, left):
            return {"chunk": size, "chunks_back": UNBOUNDED if left is None else left}
        case masks.Documents(ids):
            ids = ids.to(device, torch.int32).contiguous()
            return {"ids": ids, "ids_b": ids.stride(0)}
        case masks.DenseMask(allowed):
            return _map_values("allowed", allowed.to(device).view(torch.int8), shape)
        case biases.ALiBi(slopes):
            return {"slopes": slopes.to(device, torch.float32).contiguous()}
        case biases.Toeplitz(table):
            return _table_values(table, device)
        case biases.Buckets(table, _, max_distance):
            # beyond max_distance all distances share a bucket, so a clipped table holds them all
            offsets = torch.arange(-max_distance, max_distance + 1, device=table.device)
            return _table_values(table[part.bucket(offsets)].T, device)
        case biases.DenseBias(values):
            return _map_values("bias", values.to(device, torch.float32), shape)
    return None


def _table_values(table: Tensor, device: torch.device) -> dict[str, Any]:
    radius = table.shape[-1] // 2
    return {"table": table.to(device, torch.float32).contiguous(), "table_radius": radius}


def _map_values(name: str, x: Tensor, shape: tuple[int, ...]) -> dict[str, Any]:
    """A tensor of the whole map and its strides."""
    x = x.expand(*shape[:-2], *(max(a, b) for a, b in zip(x.shape[-2:], shape[-2:], strict=True)))
    return {name: x} | {f"{name}_{axis}": n for axis, n in zip("bhij", x.stride(), strict=True)}


@triton.jit
@no_type_check  # Triton has other types
def masked_score(dot, i, j, row, live, b, h, terms):
    """The score in units of log 2, LOWEST_SCORE where masked; i and j are positions."""
    s = dot * terms.scale
    if terms.softcap is not None:
        s = terms.softcap * (1.0 - 2.0 / (tl.exp2(s * (2.0 * LOG2E / terms.softcap)) + 1.0))
    if terms.slopes is not None:
        s -= tl.load(terms.slopes + h) * tl.abs(i - j).to(tl.float32)
    if terms.table is not None:
        radius = terms.table_radius
        ahead = tl.minimum(tl.maximum(j - i, -radius), radius) + radius
        s += tl.load(terms.table + h * (2 * radius + 1) + ahead)
    if terms.bias is not None:
        cells = b * terms.bias_b + h * terms.bias_h + row.to(tl.int64) * terms.bias_i
        s += tl.load(terms.bias + cells + j * terms.bias_j, mask=live, other=0)
    ok = live & (j - i <= terms.right) & (i - j <= terms.left)
    if terms.lengths is not None:
        ok = ok & (j < tl.load(terms.lengths + b))
    if terms.left_padding is not None:
        ok = ok & (j >= tl.load(terms.left_padding + b))
    if terms.chunk is not None:
        back = i // terms.chunk - j // terms.chunk
        ok = ok & (back >= 0) & (back <= terms.chunks_back)
    if terms.ids is not None:
        ids = terms.ids + b * terms.ids_b
        ok = ok & (tl.load(ids + i, mask=live, other=0) == tl.load(ids + j, mask=live, other=1))
    if terms.allowed is not None:
        at = b * terms.allowed_b + h * terms.allowed_h + row.to(tl.int64) * terms.allowed_i
        ok = ok & (tl.load(terms.allowed + at + j * terms.allowed_j, mask=live, other=0) != 0)
    return tl.where(ok, s * LOG2E, LOWEST_SCORE)


class KernelInputs(NamedTuple):
    """q, k and lse with strides and sizes, as kernels take them: one argument."""

    q: Tensor
    k: Tensor
    lse: Tensor
    q_b: int
    q_h: int
    q_i: int
    k_b: int
    k_h: int
    k_j: int
    heads: int
    group: int  # heads of q per head of k
    queries: int
    keys: int
    offset: int


def launch_arguments(
    q: Tensor, k: Tensor, lse: Tensor, offset: int, terms: KernelTerms
) -> dict[str, Any]:
    """The arguments of every kernel: inputs and terms, and what is known at compile time."""
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    # rows without visible keys get weight 0 without a branch; one launch, not two of masked_fill
    lse = lse.float().nan_to_num(torch.nan, torch.inf, 1e30).contiguous()
    (q_b, q_h, q_i, _), (k_b, k_h, k_j, _) = q.stride(), k.stride()
    (_, heads, queries, _), (_, kv_heads, keys, _) = q.shape, k.shape
    group = heads // kv_heads
    return {
        "inputs": KernelInputs(
            q, k, lse, q_b, q_h, q_i, k_b, k_h, k_j, heads, group, queries, keys, offset
        ),
        "terms": terms,
        "HEAD_DIM": q.shape[3],
        "HEAD_DIM_PADDED": max(16, 1 << (q.shape[3] - 1).bit_length()),  # Triton's takes longer
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "ieee",
        "GENERAL": not terms.is_band,
    }


MAX_WIDTH = 512  # of a head's keys or values: wider tiles do not fit into shared memory


def choose_tile(bytes_per_row: int, operands: int = 1) -> dict[str, int]:
    """Rows (BM), keys (BN), warps and stages: the fastest of those timed on an H200.

    A row of q (of q and out together, with two operands) takes `bytes_per_row`. 64 rows and 128
    keys, three stages deep, as long as two programs fit on a multiprocessor.
    """
    if INTERPRETED:  # small, so that tests cross every edge
        return {"BM": 16, "BN": 32, "num_warps": 4, "num_stages": 1}
    wide = bytes_per_row <= (256 if operands == 1 else 128 * operands)
    tile = {"BM": 64, "BN": 128 if wide else 64, "num_warps": 4, "num_stages": 3 if wide else 2}
    if bytes_per_row > 512 * operands:
        tile |= {"BN": 32, "num_stages": 1}
    if bytes_per_row > 1024 * operands:  # float32 of more than 256 features
        tile |= {"BM": 32 // operands}
    return tile


@triton.jit
@no_type_check  # Triton has other types
def load_rows(pointer, at, stride, live, dims, DIM: tl.constexpr):
    """Rows `at` of a matrix, zeros where not live and beyond DIM."""
    mask = live[:, None] & (dims < DIM)[None, :]
    return tl.load(pointer + at[:, None] * stride + dims[None, :], mask=mask, other=0.0)


@triton.jit
@no_type_check
def row_segments(
    j0, inputs, terms, GENERAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Bounds of the rows that see keys j0 … j0 + BN, in five segments.

    [lo, a) mask edge, [a, x) plain, [x, y) diagonal, [y, c) plain, [c, hi) mask edge. Only the
    edges and the diagonal pay for masking.
    """
    left, right, offset = terms.left, terms.right, inputs.offset
    lo = tl.maximum(j0 - right - offset, 0) // BM * BM
    hi = tl.minimum(inputs.queries, tl.maximum(j0 + BN + left - offset, 0))
    x = tl.maximum(tl.minimum(tl.maximum(j0 - offset, 0) // BM * BM, hi), lo)
    y = tl.maximum(tl.cdiv(tl.maximum(j0 + BN - offset, 0), BM) * BM, x)
    a, c = x, y
    if not GENERAL:  # noqa: SIM102, one is known at compile time, the other at run time
        if j0 + BN <= inputs.keys:
            a = tl.cdiv(tl.maximum(j0 + BN - 1 - right - offset, 0), BM) * BM
            a = tl.minimum(tl.maximum(a, lo), x)
            c = tl.maximum(j0 + left - offset + 1, 0) // BM * BM
            c = tl.maximum(tl.minimum(c, tl.cdiv(hi, BM) * BM), y)
    return lo, a, x, tl.minimum(y, hi), tl.minimum(c, hi), hi


@triton.jit
@no_type_check
def segment_bounds(segment: tl.constexpr, lo, a, x, y, c, hi):
    """Start and stop of one of the five segments."""
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


# Atomics of BM x 2 numbers on 2 · BM threads are issued by the warp that computed them; BM numbers
# would first go through shared memory and two barriers, which cost more. So a single number is
# sent as the first of a pair.


@triton.jit
@no_type_check
def atomic_add_rows(where, x, live):
    """Atomically add x, one number per row."""
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
    """Atomic maximum, one number per row; x holds pairs."""
    first = tl.arange(0, 2)[None, :] == 0
    tl.atomic_max(
        where[:, None] + tl.zeros([1, 2], tl.int32), x, mask=live[:, None] & first, sem="relaxed"
    )
