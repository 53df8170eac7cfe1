"""The masks and biases that edits put on an attention: some keys hidden, scores times a factor."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.attend.tiled import bands
from regard.ops.biases import Bias
from regard.ops.door import Answer, Call
from regard.ops.grid import Grid, cut
from regard.ops.influence.rest import attend_without
from regard.ops.masks import Mask
from regard.ops.survey.walk import bands as walk_bands
from regard.ops.terms import Score, Terms, widen


@dataclass(frozen=True, eq=False)
class Shown(Mask):
    """All but some keys, hidden from some heads and some query positions; three short tables.

    >>> yes, no = torch.tensor([True]), torch.tensor([False, True])
    >>> Shown(no, yes, yes).dense(1, 2)
    tensor([[ True, False]])
    """

    keys: Bool[Tensor, " key"]
    heads: Bool[Tensor, " head"]
    queries: Bool[Tensor, " position"]

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ~(self.keys[j] & self.heads[h] & self.queries[i])


@dataclass(frozen=True, eq=False)
class AtPeak(Mask):
    """Only the keys of the largest score of each query, in some heads; ties all stay.

    `least` is that score less what rounding can be: two products of other sizes round differently.
    """

    q: Tensor
    k: Tensor
    terms: Terms
    least: Tensor  # (*batch, query)
    heads: Bool[Tensor, " head"]

    def tile(self, grid: Grid) -> Tensor:
        scores = self.terms.tile(self.q, self.k, grid.rows, grid.keys)
        return (scores >= cut(self.least, -1, grid.rows)[..., None]) | ~self.heads[grid.h]


def at_peak(call: Call, heads: Tensor) -> AtPeak:
    """The mask that leaves each query its best keys; none where a sink is better than all."""
    q, k, terms = call.q.detach(), call.k.detach(), call.terms
    if not k.shape[-2]:
        return AtPeak(q, k, terms, q.new_zeros(q.shape[:-1]), heads)
    per_row = q.shape[:-2].numel() * k.shape[-2]
    with torch.no_grad():
        best = torch.cat([terms.tile(q, k, r).amax(-1) for r in bands(q.shape[-2], per_row)], -1)
        longest = widen(k).norm(dim=-1).amax((-1, -2) if k.ndim > 2 else -1)
        longest = longest.view(*longest.shape, *(1,) * (best.ndim - longest.ndim))
        size = abs(terms.scale) * widen(q).norm(dim=-1) * longest + best.abs()
        least = best - 8 * torch.finfo(best.dtype).eps * size
        if terms.sinks is not None:
            beaten = terms.sinks.to(best.dtype)[:, None] > best
            least = least.masked_fill(beaten, torch.inf)
    return AtPeak(q, k, terms, least, heads)


@dataclass(frozen=True, eq=False)
class Times(Bias):
    """A bias times a factor a head; it keeps queries and scale, in case the bias asks for them.

    >>> slope = rg.ALiBi(torch.tensor([0.5]))
    >>> Times(slope, torch.tensor([3.0]), torch.zeros(1, 1), 1.0).at(*torch.tensor([0, 0, 3, 1]))
    tensor(-3.)
    """

    bias: Bias
    factors: Float[Tensor, " head"]
    q: Tensor
    scale: float

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.factors[h] * self.bias.at(b, h, i, j)

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        own = cut(self.q, -2, grid.rows).to(q.dtype)
        return self.factors[grid.h] * self.bias.tile(grid, own, self.scale)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.bias.tensors

    @property
    def asks_query(self) -> bool:
        return self.bias.asks_query


def sharpened(call: Call, heads: Sequence[int] | None, beta: float) -> Call:
    """The same call with every score of some heads times beta, sinks too; the mask stays."""
    q, terms, dtype = call.q, call.terms, widen(call.q).dtype
    chosen = head_table(heads, call)
    factors = torch.ones(len(chosen), device=q.device, dtype=dtype).masked_fill(chosen, beta)
    column = factors.view(-1, 1, 1) if q.ndim > 2 else factors[0]
    if terms.bias is not None:
        terms = replace(terms, bias=Times(terms.bias, factors, q, terms.scale))
    if terms.sinks is not None:
        terms = replace(terms, sinks=(terms.sinks * factors).to(terms.sinks.dtype))
    if terms.score is None and beta and bool(chosen.all()):
        cap = terms.softcap * beta if terms.softcap else None
        return replace(call, terms=replace(terms, scale=terms.scale * beta, softcap=cap))
    if terms.score is None and (terms.softcap is None or not beta):  # a score of 0 has no cap
        return replace(call, q=(q * column).to(q.dtype), terms=terms)
    score = _times_score(call.terms, column)  # the factor comes after the cap, so both go inside
    return replace(call, terms=replace(terms, softcap=None, score=score))


def _times_score(terms: Terms, column: Tensor) -> Score:
    def score(q: Tensor, k: Tensor) -> Tensor:
        s = terms.scale * (q @ k.mT) if terms.score is None else terms.score(q, k)
        if terms.softcap is not None:
            s = terms.softcap * torch.tanh(s / terms.softcap)
        return column.to(s.dtype) * s

    return score


def narrowed(call: Call, mask: Mask) -> Call:
    """The same call with one more mask."""
    old = call.terms.mask
    return replace(call, terms=replace(call.terms, mask=mask if old is None else old & mask))


def without_keys(call: Call, rows: range, keys: Sequence[int]) -> Answer:
    """What some rows take from all other keys, in float32 or better."""
    answers = []
    for band in walk_bands(call.q[..., rows.start : rows.stop, :], high=256):
        part = rows[band.start : band.stop]
        inputs = (call.q, call.k, call.v, call.terms)
        answers.append(attend_without(*inputs, part, hidden=keys))
    outs, lses = zip(*answers, strict=True)
    return torch.cat(outs, -2), torch.cat(lses, -1)


def head_table(heads: Sequence[int] | None, call: Call) -> Tensor:
    """Which heads are meant, as a table; all when not given."""
    count = call.q.shape[-3] if call.q.ndim > 2 else 1
    if heads is not None and max(heads) >= count:
        raise ShapeError(f"heads: needs less than the {count} heads there are, got {max(heads)}")
    return table(range(count) if heads is None else heads, count, call.q)


def head_column(heads: Sequence[int] | None, call: Call) -> Tensor:
    """The same table, to stand beside (*batch, head, n, d)."""
    found = head_table(heads, call)
    return found.view(-1, 1, 1) if call.q.ndim > 2 else found.view(1, 1)


def table(at: Iterable[int], count: int, like: Tensor) -> Tensor:
    """True at some of `count` places; those beyond are not there yet, as keys when generating.

    >>> table([0, 2, 5], 3, torch.zeros(1))
    tensor([ True, False,  True])
    """
    found = torch.zeros(count, dtype=torch.bool)
    found[[place for place in at if place < count]] = True
    return found.to(like.device)
