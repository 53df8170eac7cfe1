"""The closed forms: what one change of a key does to an output, for a tile of the map."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regard.ops.grid import cut
from regard.ops.terms import Terms, spread, widen

Deed = Literal["remove", "slope", "scale"]


@dataclass(frozen=True)
class Seen:
    """One attention that ran: what went in, what came out, on which terms."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    terms: Terms


def effect(seen: Seen, rows: range, keys: range, deed: Deed, alpha: float) -> Tensor:
    """The length of the change of each output in `rows` for each key in `keys`.

    With w the weight, h the output and v the value:
    remove   w / (1 - w) · |h - v|, the others take over its share
    slope    w · |v - h|, per unit of score
    scale    |w' - w| / (1 - w) · |v - h|, w' the weight once the key is alpha times as long

    A key that is all a query sees (to rounding) leaves zeros when removed: the change is |h|.
    """
    scores = seen.terms.tile(seen.q, seen.k, rows, keys)
    lse = seen.lse[..., rows.start : rows.stop]
    x = scores - lse.masked_fill(lse == -torch.inf, 0)[..., None]
    far = _distance(seen, rows, keys)
    if deed == "slope":
        return x.exp() * far
    rest = -torch.expm1(x)  # 1 - w, exact also when w is nearly 1
    # one to rounding is one: what the others hold cannot be told from nothing
    alone = rest <= 32 * torch.finfo(x.dtype).eps * (1 + lse.abs()[..., None])
    if deed == "remove":
        moved = x.exp() / rest.masked_fill(alone, 1) * far
        length = widen(cut(seen.out, -2, rows)).norm(dim=-1)[..., None]
        return torch.where(alone, length.expand_as(moved), moved)
    return _gain(seen, rows, keys, x, alpha) / rest.masked_fill(alone, 1) * far


def _gain(seen: Seen, rows: range, keys: range, x: Tensor, alpha: float) -> Tensor:
    """|w' - w|: its score moves from s to s', so w' = w r / (1 - w + w r) with r = exp(s' - s)."""
    longer = seen.terms.tile(seen.q, alpha * seen.k, rows, keys)
    shift = longer - seen.terms.tile(seen.q, seen.k, rows, keys)
    shift = shift.nan_to_num(nan=0.0)  # masked before and after
    # in logs: r may overflow where the weight simply becomes one
    log_rest = torch.log(-torch.expm1(x.clamp(max=0)))
    log_new = x + shift
    new = torch.exp(log_new - torch.logaddexp(log_rest, log_new))
    return (new.nan_to_num(nan=0.0) - x.exp()).abs()


def _distance(seen: Seen, rows: range, keys: range) -> Tensor:
    """|h_i - v_j| for all pairs, through one product."""
    h = widen(cut(seen.out, -2, rows))
    v = widen(spread(cut(seen.v, -2, keys), seen.q))
    square = h.square().sum(-1)[..., None] + v.square().sum(-1)[..., None, :] - 2 * h @ v.mT
    return square.clamp(min=0).sqrt()
