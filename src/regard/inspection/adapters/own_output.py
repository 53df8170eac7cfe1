"""Attention that a model computes itself, as one call at `ops.intercept`."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.ops.attend.op import compute_attention
from regard.ops.autocast import is_autocast
from regard.ops.intercept import AttentionCall, AttentionResult, dispatch
from regard.ops.terms import make_terms


def dispatch_own(call: AttentionCall, own: Tensor, lse: Tensor) -> Tensor:
    """The model's own output to the last bit, in every row; recomputed if an edit changes the call.

    Queries without visible keys (lse = -inf) have no weights; models return something for them too,
    such as the mean of all values. It stays under edits of the call.
    """
    visible = (lse > -torch.inf)[..., None]
    if not visible.all():
        call = replace(call, empty_out=own.masked_fill(visible, 0))

    def compute(edited: AttentionCall) -> AttentionResult:
        return (own, lse) if edited is call else compute_attention(edited)

    return dispatch(call, compute)[0]


def attend_as(
    own: Tensor, q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, **terms: Any
) -> Tensor:
    """As `attend` with these terms, whose output the model computed itself."""
    call = AttentionCall(q, k, v, make_terms(q, k, **terms), dropout)
    with torch.autocast(q.device.type, enabled=False) if is_autocast(q) else nullcontext():
        _, lse = compute_attention(replace(call, dropout=0.0))
        return dispatch_own(call, own, lse).to(own.dtype)
