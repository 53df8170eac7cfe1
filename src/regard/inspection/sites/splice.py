"""Joins the calls of one attention into one site: the whole map of a generated text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import LookError
from regard.inspection.sites.site import Site
from regard.ops.biases import Bias
from regard.ops.grid import Grid
from regard.ops.masks import Causal, Mask
from regard.ops.terms import Terms


def join_calls(calls: Sequence[Site]) -> Site:
    """One site with the queries of all calls, in order, over the keys of all calls.

    Each call must continue the previous one: it has the previous keys and new ones or, with a
    sliding window, the last of them; in cross-attention, the same keys every time.
    """
    if len(calls) == 1:
        return calls[0]
    for site in calls:
        site.require_tensors()
    k, v, starts = calls[0].k, calls[0].v, [0]
    for site in calls[1:]:
        old = _count_shared_keys(k, v, site)
        starts.append(k.shape[2] - old)
        k, v = (torch.cat([x, y[:, :, old:]], 2) for x, y in ((k, site.k), (v, site.v)))
    rows = {x: torch.cat([getattr(site, x) for site in calls], 2) for x in ("q", "out", "lse")}
    tokens = [site.query_tokens for site in calls if site.query_tokens is not None]
    joined = [[token for part in parts for token in part] for parts in zip(*tokens, strict=True)]
    return replace(
        calls[0], call=0, k=k, v=v, **rows, terms=_join_terms(calls, starts),
        query_tokens=joined if len(tokens) == len(calls) else None,
        key_tokens=calls[-1].key_tokens if starts[-1] == 0 else None,
    )  # fmt: skip


def _count_shared_keys(k: Tensor, v: Tensor, site: Site) -> int:
    """How many of the keys of this call belong to earlier calls."""
    count = k.shape[2]
    for old in (site.keys - site.queries, site.keys):
        if k.shape[0] == site.batch and 0 < old <= count:
            pairs = ((k, site.k), (v, site.v))
            if all(torch.equal(x[:, :, count - old :], y[:, :, :old]) for x, y in pairs):
                return old
    raise LookError(
        f"{site.name}: needs calls that continue each other, got call {site.call} "
        f"with other keys; try sight[{site.name!r}, {site.call}] by itself"
    )


def _join_terms(calls: Sequence[Site], starts: list[int]) -> Terms:
    """The terms of all rows: one causal or empty mask if that is equivalent, else spliced ones."""
    spans, row = [], 0
    for site, start in zip(calls, starts, strict=True):
        spans.append(_Span(row, site.queries, start, site.keys, site.terms))
        row += site.queries
    first = calls[0].terms
    if all(span.is_causal and span.follows(first.offset) for span in spans):
        mask = Causal()
    elif all(s.terms.mask is None and (s.start, s.keys) == (0, spans[-1].keys) for s in spans):
        mask = None
    else:
        mask = SplicedMask(tuple(spans))
    bias = None if first.bias is None else SplicedBias(tuple(spans))
    return replace(first, mask=mask, bias=bias)


@dataclass(frozen=True, eq=False)
class _Span:
    """The rows of one call, and where its keys start among all keys."""

    row: int
    rows: int
    start: int
    keys: int
    terms: Terms

    @property
    def is_causal(self) -> bool:
        """Whether its mask equals Causal(); an unmasked single query at the end does."""
        last = self.rows == 1 and self.terms.offset == self.keys - 1
        return self.start == 0 and (self.terms.mask == Causal() or (not self.terms.mask and last))

    def follows(self, offset: int) -> bool:
        """Whether its first query has the position that its row in the joined site implies."""
        return self.terms.offset + self.start == self.row + offset


def _splice(spans: Sequence[_Span], grid: Grid, tile_of: Callable[[_Span, Grid], Tensor]) -> Tensor:
    """A tile made of the tiles of the calls that it covers, each in the indices of its call."""
    pieces = []
    for span in spans:
        first, last = grid.rows.start - span.row, grid.rows.stop - span.row
        rows = range(max(first, 0), min(last, span.rows))
        if not rows:
            continue
        start = min(max(grid.keys.start - span.start, 0), span.keys)
        keys = range(start, max(start, min(grid.keys.stop - span.start, span.keys)))
        left = min(max(span.start - grid.keys.start, 0), len(grid.keys))
        tile = tile_of(span, Grid(grid.batch, rows, keys, span.terms.offset, grid.device))
        tile = tile.expand(*tile.shape[:-2], len(rows), len(keys))
        # other keys: False in a mask, 0 in a bias
        pieces.append(F.pad(tile, (left, len(grid.keys) - left - len(keys))))
    front = torch.broadcast_shapes(*(x.shape[:-2] for x in pieces))
    return torch.cat([x.expand(*front, *x.shape[-2:]) for x in pieces], -2)


@dataclass(frozen=True, eq=False)
class SplicedMask(Mask):
    """Each row has the mask of its call; keys that the call did not have are masked."""

    spans: tuple[_Span, ...]

    def tile(self, grid: Grid) -> Tensor:
        def mask_of(span: _Span, part: Grid) -> Tensor:
            if span.terms.mask is None:
                return torch.ones(1, 1, dtype=torch.bool, device=grid.device)
            return span.terms.mask.tile(part)

        return _splice(self.spans, grid, mask_of)


@dataclass(frozen=True, eq=False)
class SplicedBias(Bias):
    """Each row has the bias of its call."""

    spans: tuple[_Span, ...]

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        def bias_of(span: _Span, part: Grid) -> Tensor:
            if span.terms.bias is None:
                return q.new_zeros(1, 1)
            start = span.row + part.rows.start - grid.rows.start
            rows = q[..., start : start + len(part.rows), :]
            return span.terms.bias.tile(part, rows, scale).to(q.dtype)

        return _splice(self.spans, grid, bias_of)

    @property
    def depends_on_query(self) -> bool:
        return any(s.terms.bias is not None and s.terms.bias.depends_on_query for s in self.spans)
