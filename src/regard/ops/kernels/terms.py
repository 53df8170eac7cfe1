"""The terms of a score as arguments of Triton kernels. Only kernels import this module."""

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
