"""Attention by torch's flex_attention, compiled on CUDA: structured biases and softcap."""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.ops.biases import Bias
from regard.ops.grid import to_4d
from regard.ops.intercept import AttentionCall, AttentionResult
from regard.ops.masks import Mask


def refusal(call: AttentionCall) -> str | None:
    """Why flex_attention cannot compute this call; None if it can."""
    q, terms = call.q, call.terms
    if not q.is_cuda:
        return "flex_attention is fast only compiled, on CUDA"
    if terms.score is not None:
        return "flex_attention computes only the dot product"
    if call.dropout:
        return "flex_attention has no dropout"
    if q.dtype == torch.float64:
        return "flex_attention has no float64"
    if 0 in (*q.shape, *call.k.shape, *call.v.shape):
        return "flex_attention needs sizes of 1 or more"
    if needs_tiles(terms.bias) or needs_tiles(terms.mask):
        return "a dense mask or bias is not structured"
    return None


def attend(call: AttentionCall) -> AttentionResult:
    """softmax(scores) v and its log-sum-exp, with the terms compiled into the kernel."""
    batch, terms, has_one_axis = call.q.shape[:-2], call.terms, call.q.ndim == 3
    q, k, v = (to_4d(x) for x in (call.q, call.k, call.v))

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        # a single leading axis serves as batch and heads
        at = (h if has_one_axis else b, h, i + terms.offset, j)
        if terms.softcap is not None:
            score = terms.softcap * torch.tanh(score / terms.softcap)
        if terms.bias is not None:
            score = score + terms.bias.at(*at)
        if terms.mask is not None:
            score = torch.where(terms.mask.at(*at), score, -torch.inf)
        return score

    flex_attention, aux_request = _flex()
    out, aux = flex_attention(
        q, k, v, score_mod=score_mod, scale=terms.scale, enable_gqa=True, return_aux=aux_request
    )
    return terms.add_sinks(out.reshape(*batch, *out.shape[-2:]), aux.lse.reshape(*batch, -1))


@cache
def _flex() -> tuple[Any, Any]:
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention  # slow to import

    return torch.compile(flex_attention, dynamic=False), AuxRequest(lse=True)


def needs_tiles(term: Bias | Mask | None) -> bool:
    """Whether a mask or bias, or a part of it, cannot be evaluated at single positions.

    >>> dense = rg.ops.masks.DenseMask(torch.eye(2) > 0)
    >>> needs_tiles(rg.Causal()), needs_tiles(rg.Causal() & dense)
    (False, True)
    """
    if term is None:
        return False
    parts = [getattr(term, f.name) for f in fields(term)] if is_dataclass(term) else []
    has_no_at = type(term).at in (Mask.at, Bias.at)
    return has_no_at or any(needs_tiles(x) for x in parts if isinstance(x, (Mask, Bias)))
