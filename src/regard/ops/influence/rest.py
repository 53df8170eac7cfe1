"""Attention over some rows, with one key per row left out: what an output is without its main key.

Where one key holds nearly all of the weight, the rest is lost in the rounding of `out` and `lse`. Here
it is summed by itself, so that its log-sum-exp and its mean value have full precision however small its
share is.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.grid import cut
from regard.ops.survey.walk import cuts, tile_of
from regard.ops.terms import Terms, spread, widen

LOG2E = 1.4426950408889634


def attend_without(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms, rows: range, left_out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of `rows`, without the key that `left_out` names per row (-1: none).

    An online softmax over tiles of keys, in float32 or better. A row with no other key gets zeros, and
    -inf or its sink.
    """
    best = total = mixed = None
    for keys in cuts(terms.span(rows, k.shape[-2]), tile_of(q).wide):
        scores = terms.tile(q, k, rows, keys)
        if left_out is not None:
            inside = (left_out >= keys.start) & (left_out < keys.stop)
            scores[inside, left_out[inside] - keys.start] = -torch.inf
        values = widen(spread(cut(v, -2, keys), q)).to(scores.dtype)
        top = scores.amax(-1) if best is None else torch.maximum(best, scores.amax(-1))
        base = top.masked_fill(top == -torch.inf, 0)
        # by powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
        p = scores.sub_(base[..., None]).mul_(LOG2E).exp2_()
        if best is None or total is None or mixed is None:
            total, mixed = p.sum(-1), p @ values
        else:
            kept = torch.exp(best - base)
            total, mixed = total * kept + p.sum(-1), mixed * kept[..., None] + p @ values
        best = top
    if best is None or total is None or mixed is None:  # no key at all
        empty = widen(q[..., rows.start : rows.stop, 0])
        nothing = empty.new_zeros((*empty.shape, v.shape[-1]))
        return nothing, terms.with_sinks(torch.full_like(empty, -torch.inf))
    lse = terms.with_sinks(best + total.log())
    share = torch.exp(best - lse.masked_fill(lse == -torch.inf, 0))
    return mixed * share[..., None], lse


def weigh(score: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """log w and log (1 - w) of a key, from its score and the log-sum-exp of all others.

    >>> [round(float(x), 4) for x in weigh(torch.tensor(20.0), torch.tensor(0.0))]
    [-0.0, -20.0]
    """
    apart = (score - rest).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    return F.logsigmoid(apart), F.logsigmoid(-apart)


def swing(log_w: Tensor, log_rest: Tensor, shift: Tensor) -> Tensor:
    """w' - w when the score of a key moves by `shift`, without a difference of two near numbers.

    w' - w = w (1 - w) (r - 1) / (1 - w + w r),   r = exp(shift)

    >>> half = torch.tensor(0.5).log()
    >>> swing(half, half, torch.tensor(3.0).log())  # from 1 : 1 to 3 : 1
    tensor(0.2500)
    """
    # all in logs: r may overflow, and w or 1 - w underflow, where the swing does not
    new = torch.logaddexp(log_rest - shift.clamp(min=0), log_w + shift.clamp(max=0))
    return torch.exp(log_w + log_rest - new) * -torch.expm1(-shift.abs()) * shift.sign()
