"""The terms of a score as arguments of Triton kernels. Only kernels import this module."""

import os
from dataclasses import dataclass, field
from typing import Any, no_type_check

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


@dataclass
class KernelTerms:
    """Mask and bias in the parts that kernels know: a band, key ranges, tables, matrices.

    Anything but a band sends every tile through the general path (GENERAL).
    """

    left: int = UNBOUNDED  # the most a key may precede its query
    right: int = UNBOUNDED  # the most it may follow it
    flags: dict[str, bool] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def arguments(self, q: Tensor, terms: Terms) -> dict[str, Any]:
        """Keyword arguments of the kernels; q is a placeholder for tensors that are not needed."""
        tensors = ("LEFT_PADDING", "LENGTHS", "IDS", "MASK", "SLOPES", "TABLE", "BIAS")
        numbers = ("chunk", "chunks_back", "ids_b", "table_radius")
        strides = [f"{name}_{axis}" for name in ("mask", "bias") for axis in "bhij"]
        flags = ("PADDED", "CHUNKED", "DOCUMENTS", "MASKED", "ALIBI", "TOEPLITZ", "BIASED")
        return (
            dict.fromkeys(tensors, q)
            | dict.fromkeys([*numbers, *strides], 0)
            | self.values
            | {name: self.flags.get(name, False) for name in flags}
            | {
                "left": self.left,
                "right": self.right,
                "scale": terms.scale,
                "softcap": terms.softcap or 1.0,
                "CAPPED": terms.softcap is not None,
                "GENERAL": bool(self.flags) or terms.softcap is not None,
            }
        )


def make_kernel_terms(q: Tensor, k: Tensor, terms: Terms) -> KernelTerms | str:
    """The kernel arguments for these terms, or the reason why the kernels cannot compute them."""
    if terms.score is not None:
        return "the kernel computes only the dot product"
    kernel_terms, shape = KernelTerms(), (*q.shape[-4:-1], k.shape[-2])
    if terms.mask is not None and (reason := _add_mask(kernel_terms, terms.mask, q, shape)):
        return reason
    if terms.bias is not None and (reason := _add_bias(kernel_terms, terms.bias, q, shape)):
        return reason
    return kernel_terms


def _add_mask(
    kernel_terms: KernelTerms, mask: Mask, q: Tensor, shape: tuple[int, ...]
) -> str | None:
    match mask:
        case masks.Both(a, b):
            return _add_mask(kernel_terms, a, q, shape) or _add_mask(kernel_terms, b, q, shape)
        case masks.Causal():
            kernel_terms.right = min(kernel_terms.right, 0)
        case masks.Local(radius):
            kernel_terms.left, kernel_terms.right = (
                min(kernel_terms.left, radius),
                min(kernel_terms.right, radius),
            )
        case masks.Padding(lengths, left_padding) if "PADDED" not in kernel_terms.flags:
            stop = lengths.reshape(-1).to(q.device, torch.int32)
            start = (
                torch.zeros_like(stop)
                if left_padding is None
                else left_padding.reshape(-1).to(stop)
            )
            kernel_terms.values |= {
                "LEFT_PADDING": start.contiguous(),
                "LENGTHS": stop.contiguous(),
            }
            kernel_terms.flags["PADDED"] = True
        case masks.Chunked(size, left) if "CHUNKED" not in kernel_terms.flags:
            kernel_terms.values |= {
                "chunk": size,
                "chunks_back": UNBOUNDED if left is None else left,
            }
            kernel_terms.flags["CHUNKED"] = True
        case masks.Documents(ids) if "DOCUMENTS" not in kernel_terms.flags:
            ids = ids.to(q.device, torch.int32).contiguous()
            kernel_terms.values |= {"IDS": ids, "ids_b": ids.stride(0)}
            kernel_terms.flags["DOCUMENTS"] = True
        case masks.DenseMask(allowed) if "MASKED" not in kernel_terms.flags:
            kernel_terms.values |= _matrix("mask", allowed.to(q.device).view(torch.int8), shape)
            kernel_terms.flags["MASKED"] = True
        case _:
            return f"the kernel cannot compute this use of {type(mask).__name__}"
    return None


def _add_bias(
    kernel_terms: KernelTerms, bias: Bias, q: Tensor, shape: tuple[int, ...]
) -> str | None:
    match bias:
        case biases.SumBias(a, b):
            return _add_bias(kernel_terms, a, q, shape) or _add_bias(kernel_terms, b, q, shape)
        case biases.ALiBi(slopes) if "ALIBI" not in kernel_terms.flags:
            kernel_terms.values["SLOPES"] = slopes.to(q.device, torch.float32).contiguous()
            kernel_terms.flags["ALIBI"] = True
        case biases.Toeplitz(table) if "TOEPLITZ" not in kernel_terms.flags:
            _add_table(kernel_terms, table, q)
        case biases.Buckets(table, _, max_distance) if "TOEPLITZ" not in kernel_terms.flags:
            # beyond max_distance all distances share a bucket, so a clipped table holds them all
            offsets = torch.arange(-max_distance, max_distance + 1, device=table.device)
            _add_table(kernel_terms, table[bias.bucket(offsets)].T, q)
        case biases.DenseBias(values) if "BIASED" not in kernel_terms.flags:
            kernel_terms.values |= _matrix("bias", values.to(q.device, torch.float32), shape)
            kernel_terms.flags["BIASED"] = True
        case _:
            return f"the kernel cannot compute this use of {type(bias).__name__}"
    return None


def _add_table(kernel_terms: KernelTerms, table: Tensor, q: Tensor) -> None:
    kernel_terms.values["TABLE"] = table.to(q.device, torch.float32).contiguous()
    kernel_terms.values["table_radius"] = table.shape[-1] // 2
    kernel_terms.flags["TOEPLITZ"] = True


def _matrix(name: str, x: Tensor, shape: tuple[int, ...]) -> dict[str, Any]:
    """A tensor for the whole map with its strides, 0 along broadcast axes."""
    x = x.expand(*shape[:-2], *(max(a, b) for a, b in zip(x.shape[-2:], shape[-2:], strict=True)))
    return {name.upper(): x} | dict(
        zip((f"{name}_{axis}" for axis in "bhij"), x.stride(), strict=True)
    )


@triton.jit
@no_type_check  # Triton has its own types
def masked_score(
    dot, i, j, row, live, b, h, left, right, scale, softcap,
    LEFT_PADDING, LENGTHS, chunk, chunks_back, IDS, ids_b, MASK, mask_b, mask_h, mask_i, mask_j,
    SLOPES, TABLE, table_radius, BIAS, bias_b, bias_h, bias_i, bias_j,
    CAPPED: tl.constexpr, PADDED: tl.constexpr, CHUNKED: tl.constexpr, DOCUMENTS: tl.constexpr,
    MASKED: tl.constexpr, ALIBI: tl.constexpr, TOEPLITZ: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """The score in units of log 2, LOWEST_SCORE where masked; i and j are positions."""
    s = dot * scale
    if CAPPED:
        s = softcap * (1.0 - 2.0 / (tl.exp2(s * (2.0 * LOG2E / softcap)) + 1.0))
    if ALIBI:
        s -= tl.load(SLOPES + h) * tl.abs(i - j).to(tl.float32)
    if TOEPLITZ:
        ahead = tl.minimum(tl.maximum(j - i, -table_radius), table_radius) + table_radius
        s += tl.load(TABLE + h * (2 * table_radius + 1) + ahead)
    if BIASED:
        at = b * bias_b + h * bias_h + row.to(tl.int64) * bias_i + j * bias_j
        s += tl.load(BIAS + at, mask=live, other=0.0)
    ok = live & (j - i <= right) & (i - j <= left)
    if PADDED:
        ok = ok & (j >= tl.load(LEFT_PADDING + b)) & (j < tl.load(LENGTHS + b))
    if CHUNKED:
        back = i // chunk - j // chunk
        ok = ok & (back >= 0) & (back <= chunks_back)
    if DOCUMENTS:
        mine = tl.load(IDS + b * ids_b + i, mask=live, other=0)
        ok = ok & (mine == tl.load(IDS + b * ids_b + j, mask=live, other=1))
    if MASKED:
        at = b * mask_b + h * mask_h + row.to(tl.int64) * mask_i + j * mask_j
        ok = ok & (tl.load(MASK + at, mask=live, other=0) != 0)
    return tl.where(ok, s * LOG2E, LOWEST_SCORE)
