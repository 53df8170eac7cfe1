"""Attention with one key per row left out.

Where one key holds nearly all of the weight, the rest is lost in the rounding of `out` and `lse`.
Here the rest is summed by itself, so its log-sum-exp and its output have full precision however
small its share is.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.grid import slice_axis
from regard.ops.terms import LOG2E, Terms, repeat_kv, upcast
from regard.ops.tiling import split_keys, tile_size


def attend_without(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    rows: range,
    excluded_per_row: Tensor | None = None,
    excluded_keys: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of `rows` without some keys: an online softmax, in float32 or better.

    `excluded_per_row`, (*batch, rows), is one key per row, -1 for none; `excluded_keys` are left
    out of every row. A row without other keys gets zeros, and -inf or its sink.
    """
    like = upcast(q[..., rows.start : rows.stop, :1])[..., 0]
    best, total = torch.full_like(like, -torch.inf), torch.zeros_like(like)
    out = like.new_zeros((*like.shape, v.shape[-1]))
    for keys in split_keys(terms.key_span(rows, k.shape[-2]), tile_size(q).keys):
        scores = terms.score_tile(q, k, rows, keys)
        if excluded_per_row is not None:
            inside = (excluded_per_row >= keys.start) & (excluded_per_row < keys.stop)
            scores[inside, excluded_per_row[inside] - keys.start] = -torch.inf
        if excluded := [key - keys.start for key in excluded_keys if key in keys]:
            scores = scores.index_fill(-1, torch.tensor(excluded, device=q.device), -torch.inf)
        top = torch.maximum(best, scores.detach().amax(-1))
        base = top.masked_fill(top == -torch.inf, 0)
        # powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
        p = scores - base[..., None] if scores.requires_grad else scores.sub_(base[..., None])
        p = p.mul_(LOG2E).exp2_()
        decay = torch.exp(best - base)
        total = total * decay + p.sum(-1)
        out = out * decay[..., None] + p @ upcast(repeat_kv(slice_axis(v, -2, keys), q)).to(p.dtype)
        best = top
    empty = best == -torch.inf
    lse = terms.with_sinks(torch.log(total.masked_fill(empty, 1)) + best)
    share = torch.exp(best - lse.masked_fill(empty, 0))
    return out * share[..., None], lse


def log_weight_and_complement(score: Tensor, rest_lse: Tensor) -> tuple[Tensor, Tensor]:
    """log w and log (1 - w) of a key, from its score and the log-sum-exp of the others.

    >>> both = log_weight_and_complement(torch.tensor(20.0), torch.tensor(0.0))
    >>> [round(float(x), 4) for x in both]
    [-0.0, -20.0]
    """
    log_odds = (score - rest_lse).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    return F.logsigmoid(log_odds), F.logsigmoid(-log_odds)


def weight_change(log_w: Tensor, log_rest: Tensor, shift: Tensor) -> Tensor:
    """w' - w when the score of a key changes by `shift`, without cancellation.

    w' - w = w (1 - w) (r - 1) / (1 - w + w r),   r = exp(shift)

    >>> half = torch.tensor(0.5).log()
    >>> weight_change(half, half, torch.tensor(3.0).log())  # from 1 : 1 to 3 : 1
    tensor(0.2500)
    """
    # in logs: r may overflow, and w or 1 - w underflow, where the change does not
    new = torch.logaddexp(log_rest - shift.clamp(min=0), log_w + shift.clamp(max=0))
    return torch.exp(log_w + log_rest - new) * -torch.expm1(-shift.abs()) * shift.sign()
