"""Attention as the equation says, with the whole map in memory: the truth the other forms meet."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.ops.autocast import without_autocast
from regard.ops.grid import slice_axis
from regard.ops.intercept import AttentionCall, AttentionResult
from regard.ops.terms import Terms, make_terms, repeat_kv


def attend(call: AttentionCall) -> AttentionResult:
    """out = softmax(scores) v and lse = log Σ exp(scores), over all rows at once."""
    return attend_rows(call, range(call.q.shape[-2]), range(call.k.shape[-2]))


def attend_rows(call: AttentionCall, rows: range, keys: range) -> AttentionResult:
    """The same for some rows, over the keys that they can see."""
    w, lse = softmax_with_lse(call.terms.score_tile(call.q, call.k, rows, keys), call.terms)
    w = F.dropout(w, call.dropout)
    v = repeat_kv(slice_axis(call.v, -2, keys), call.q)
    return (w @ v.to(w.dtype)).to(call.v.dtype), lse


def softmax_with_lse(scores: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """Weights w = exp(scores - lse), and lse; a row that sees nothing gets 0 and -inf."""
    if not scores.shape[-1]:
        lse = scores.new_full(scores.shape[:-1], -torch.inf)
        return scores, terms.with_sinks(lse)
    empty = (scores == -torch.inf).all(-1)
    # such rows are opened before and shut after, so that no 0 · inf reaches the gradient
    lse = scores.masked_fill(empty[..., None], 0).logsumexp(-1).masked_fill(empty, -torch.inf)
    lse = terms.with_sinks(lse)
    return torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0)[..., None]), lse


@without_autocast
def attention_weights(
    q: Float[Tensor, "*batch query head_dim"], k: Float[Tensor, "*keys_batch key other"], **terms
) -> Float[Tensor, "*batch query key"]:
    """The whole map, for short inputs; takes mask, bias, scale … as `attend` does.

    w_ij = exp(s_ij - lse_i); each row sums to one, less what the sinks took

    >>> attention_weights(torch.zeros(1, 2), torch.zeros(4, 2))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    made = make_terms(q, k, **terms)
    return softmax_with_lse(made.score_tile(q, k), made)[0]
