"""The closed forms: what one change of a key does to an output, for a tile of the map."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regard.ops.grid import cut
from regard.ops.influence.rest import LOG2E, attend_without, swing, weigh
from regard.ops.terms import Terms, spread, widen

Deed = Literal["remove", "slope", "scale"]

# More than half, by more than a rounded lse can be off: at most one key of a row is above it.
DOMINANT = 0.5005
# |h - v|² below this part of 2 |h|² has lost digits in h² + v² - 2 h · v: computed by differences.
NEAR = 4e-3
FAINT = 1e-6  # weights for which this does not matter


@dataclass(frozen=True)
class Seen:
    """One attention that ran: what went in, what came out, on which terms."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    terms: Terms

    @property
    def rounded(self) -> bool:
        """Whether output or log-sum-exp were rounded to half precision: they are recomputed."""
        return widen(self.out) is not self.out or widen(self.lse) is not self.lse


class Band:
    """Some rows of an attention: their outputs and log-sum-exps, and the dominant key of each.

    A key of weight above one half is left out of the tiles and answered by `of_dominant`, from the
    attention without it: 1 - w and h - v cannot be had from a rounded `lse` and `out`.
    """

    def __init__(self, seen: Seen, rows: range):
        self.seen, self.rows = seen, rows
        if seen.rounded:
            self.out, self.lse = attend_without(seen.q, seen.k, seen.v, seen.terms, rows)
        else:
            self.out, self.lse = cut(seen.out, -2, rows), cut(seen.lse, -1, rows)
        self.base = self.lse.masked_fill(self.lse == -torch.inf, 0)[..., None]
        self.key = torch.full_like(self.lse, -1, dtype=torch.long)
        self.score, self.shift = (
            torch.zeros_like(self.lse, dtype=widen(seen.q).dtype) for _ in range(2)
        )

    def effects(self, keys: range, deed: Deed, alpha: float) -> Tensor:
        """The length of the change of each output for each key in `keys`, 0 for dominant ones.

        With w the weight, h the output and v the value:
        remove   w / (1 - w) · |h - v|, the others take over its share
        slope    w · |v - h|, per unit of score
        scale    |w' - w| / (1 - w) · |v - h|, w' the weight once the key is alpha times as long
        """
        seen = self.seen
        scores = seen.terms.tile(seen.q, seen.k, self.rows, keys)
        shift = self._shift(scores, keys, alpha) if deed == "scale" else None
        x = scores - self.base
        dominant = x.amax(-1) > math.log(DOMINANT)
        if dominant.any():
            found = x[dominant].argmax(-1)
            self.key[dominant] = found + keys.start
            self.score[dominant] = scores[dominant, found]
            x[dominant, found] = -torch.inf
            if shift is not None:
                self.shift[dominant] = shift[dominant, found]
        # by powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
        w = torch.exp2(x * LOG2E)
        far = self._distance(keys, w)
        match deed:
            case "slope":
                return far.mul_(w)
            case "remove":
                return far.mul_(w).div_(1 - w)
            case _:
                assert shift is not None
                log_rest = torch.log1p(-w)
                return far.mul_((swing(x, log_rest, shift) / (1 - w)).abs())

    def of_dominant(self, deed: Deed) -> Tensor | None:
        """The effect of each row's dominant key on its output, 0 in rows without; None if all are.

        Only rows from the first to the last with such a key are recomputed.
        """
        has = (self.key >= 0).flatten(0, -2).any(0) if self.key.ndim > 1 else self.key >= 0
        if not has.any():
            return None
        first, last = has.nonzero()[[0, -1], 0].tolist()
        part, seen = slice(first, last + 1), self.seen
        rows, key = self.rows[part], self.key[..., part]
        out, lse = attend_without(seen.q, seen.k, seen.v, seen.terms, rows, key)
        e = torch.zeros_like(self.score)
        e[..., part] = dominant_effect(
            seen, key, self.score[..., part], self.shift[..., part], out, lse, deed
        )
        return e

    def _shift(self, scores: Tensor, keys: range, alpha: float) -> Tensor:
        """How far each score moves when its key is alpha times as long."""
        seen = self.seen
        longer = seen.terms.tile(seen.q, alpha * widen(seen.k), self.rows, keys)
        return (longer - scores).nan_to_num(nan=0.0)  # masked before and after

    def _distance(self, keys: range, w: Tensor) -> Tensor:
        """|h_i - v_j| for all pairs, through one product; of near pairs by their differences."""
        h, v = widen(self.out), widen(spread(cut(self.seen.v, -2, keys), self.seen.q))
        length = h.square().sum(-1)[..., None]
        square = (h @ v.mT).mul_(-2).add_(length).add_(v.square().sum(-1)[..., None, :])
        near = square < 2 * NEAR * length
        if near.any():
            near &= w > FAINT
            for part in near.nonzero().split(max(1, (1 << 22) // h.shape[-1])):
                *batch, i, j = part.unbind(-1)
                square[(*batch, i, j)] = (h[(*batch, i)] - v[(*batch, j)]).square().sum(-1)
        return square.clamp_(min=0).sqrt_()


def dominant_effect(
    seen: Seen, key: Tensor, score: Tensor, shift: Tensor, out: Tensor, lse: Tensor, deed: Deed
) -> Tensor:
    """The effect of the key named per row (-1: 0), from `out` and `lse` of the row without it.

    h - v = (1 - w) (out - v), so with w and 1 - w from the two log-sum-exps nothing cancels:
    remove w · |out - v|,  slope w (1 - w) · |out - v|,  scale |w' - w| · |out - v|

    A key that is all a query may see has out = 0 and w = 1: removed, it takes the whole output.
    """
    has = key >= 0
    log_w, log_rest = weigh(score, lse)
    at = key.clamp(min=0)[..., None].expand_as(out)
    far = (widen(spread(seen.v, seen.q)).gather(-2, at) - out).norm(dim=-1)
    match deed:
        case "remove":
            size = log_w.exp()
        case "slope":
            size = (log_w + log_rest).exp()
        case _:
            size = swing(log_w, log_rest, shift).abs()
    return torch.where(has, size * far, 0)
