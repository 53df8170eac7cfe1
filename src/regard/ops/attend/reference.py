"""Attention by its equation: with the whole map in memory, and in bands of rows."""

from functools import partial
from typing import Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.ops.autocast import without_autocast
from regard.ops.grid import slice_axis
from regard.ops.intercept import AttentionCall, AttentionResult
from regard.ops.terms import TermOptions, Terms, make_terms, repeat_kv, weights_from_scores
from regard.ops.tiling import row_bands


def attend(call: AttentionCall) -> AttentionResult:
    """out = softmax(scores) v and lse = log Σ exp(scores), all rows at once."""
    return attend_rows(call, range(call.q.shape[-2]), range(call.k.shape[-2]))


def attend_rows(call: AttentionCall, rows: range, keys: range) -> AttentionResult:
    """`attend` for a range of rows; `keys` must hold all keys visible to them."""
    w, lse = softmax_with_lse(call.terms.score_tile(call.q, call.k, rows, keys), call.terms)
    w = F.dropout(w, call.dropout)
    v = repeat_kv(slice_axis(call.v, -2, keys), call.q)
    return (w @ v.to(w.dtype)).to(call.v.dtype), lse


def attend_in_bands(call: AttentionCall) -> AttentionResult:
    """`attend` in memory linear in the sequence length; the backward pass recomputes each band."""
    keys, needs_grad = call.k.shape[-2], torch.is_grad_enabled()
    results = []
    for rows in row_bands(call.q.shape[-2], call.q.shape[:-2].numel() * keys):
        compute = partial(attend_rows, call, rows, call.terms.key_span(rows, keys))
        results.append(checkpoint(compute, use_reentrant=False) if needs_grad else compute())
    outs, lses = zip(*results, strict=True)
    return torch.cat(outs, -2), torch.cat(lses, -1)


def softmax_with_lse(scores: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """Weights w = exp(scores - lse), and lse; 0 and -inf in a row without visible keys."""
    if not scores.shape[-1]:
        lse = scores.new_full(scores.shape[:-1], -torch.inf)
        return scores, terms.with_sinks(lse)
    empty = (scores == -torch.inf).all(-1)
    # filled before and masked after, so that no 0 · inf reaches the gradient
    lse = scores.masked_fill(empty[..., None], 0).logsumexp(-1).masked_fill(empty, -torch.inf)
    lse = terms.with_sinks(lse)
    return weights_from_scores(scores, lse), lse


@without_autocast
def attention_weights(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    **terms: Unpack[TermOptions],
) -> Float[Tensor, "*batch query key"]:
    """The whole attention map, for short inputs; `TermOptions` lists the keyword arguments.

    w_ij = exp(s_ij - lse_i); each row sums to one, less the share of the sinks

    >>> attention_weights(torch.zeros(1, 2), torch.zeros(4, 2))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    checked = make_terms(q, k, **terms)
    return softmax_with_lse(checked.score_tile(q, k), checked)[0]
