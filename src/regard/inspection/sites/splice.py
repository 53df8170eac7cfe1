"""Several calls of one attention as one: the whole map of a text that was generated in steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import LookError
from regard.inspection.sites.site import Site, Tokens
from regard.ops.biases import Bias
from regard.ops.grid import Grid
from regard.ops.masks import Causal, Mask
from regard.ops.terms import Terms


def join_calls(calls: Sequence[Site]) -> Site:
    """One site whose queries are those of all calls, in order, over all keys there ever were.

    Each call must go on where the one before stopped: its keys are those before and its own, or,
    for a window, the last of them; across two sequences the same keys every time.
    """
    if len(calls) == 1:
        return calls[0]
    for site in calls:
        site.require_tensors()
    k, v, starts = calls[0].k, calls[0].v, [0]
    for site in calls[1:]:
        old = _shared(k, v, site)
        starts.append(k.shape[2] - old)
        k, v = (torch.cat([x, y[:, :, old:]], 2) for x, y in ((k, site.k), (v, site.v)))
    return replace(
        calls[0],
        call=0,
        q=torch.cat([site.q for site in calls], 2),
        k=k,
        v=v,
        out=torch.cat([site.out for site in calls], 2),
        lse=torch.cat([site.lse for site in calls], 2),
        terms=_terms(calls, starts),
        query_tokens=_chain([site.query_tokens for site in calls]),
        key_tokens=calls[-1].key_tokens if starts[-1] == 0 else None,
    )


def _shared(k: Tensor, v: Tensor, site: Site) -> int:
    """How many of the keys of this call were there before."""
    had = k.shape[2]
    for old in (site.keys - site.queries, site.keys):
        if k.shape[0] == site.batch and 0 < old <= had:
            pairs = ((k, site.k), (v, site.v))
            if all(torch.equal(x[:, :, had - old :], y[:, :, :old]) for x, y in pairs):
                return old
    raise LookError(
        f"{site.name}: needs calls that go on where the one before stopped, got call {site.call} "
        f"with other keys; try sight[{site.name!r}, {site.call}] by itself"
    )


def _terms(calls: Sequence[Site], starts: list[int]) -> Terms:
    """The terms of all rows: one mask where positions say it all, else each row has its call's."""
    spans, row = [], 0
    for site, start in zip(calls, starts, strict=True):
        spans.append(_Span(row, site.queries, start, site.keys, site.terms))
        row += site.queries
    first, parts = calls[0].terms, tuple(spans)
    if all(span.causal and span.follows(first.offset) for span in spans):
        mask = Causal()
    elif all(s.terms.mask is None and (s.start, s.keys) == (0, spans[-1].keys) for s in spans):
        mask = None
    else:
        mask = SplicedMask(parts)
    return replace(first, mask=mask, bias=None if first.bias is None else SplicedBias(parts))


def _chain(tokens: Sequence[Tokens | None]) -> Tokens | None:
    known = [some for some in tokens if some is not None]
    if len(known) < len(tokens):
        return None
    return [[token for part in parts for token in part] for parts in zip(*known, strict=True)]


@dataclass(frozen=True, eq=False)
class _Span:
    """The rows of one call, and where its keys stand among all."""

    row: int
    rows: int
    start: int
    keys: int
    terms: Terms

    @property
    def causal(self) -> bool:
        """Whether it sees what Causal shows; a lone query at the end that sees all does."""
        last = self.rows == 1 and self.terms.offset == self.keys - 1
        return self.start == 0 and (self.terms.mask == Causal() or (not self.terms.mask and last))

    def follows(self, offset: int) -> bool:
        """Whether its first query stands where the joined rows say."""
        return self.terms.offset + self.start == self.row + offset


def _cuts(spans: Sequence[_Span], grid: Grid) -> Iterator[tuple[_Span, Grid, tuple[int, int]]]:
    """The parts of a rectangle that belong to each call, in its own indices, and what to pad."""
    for span in spans:
        rows = range(
            max(grid.rows.start, span.row) - span.row,
            min(grid.rows.stop, span.row + span.rows) - span.row,
        )
        if not rows:
            continue
        start = min(max(grid.keys.start - span.start, 0), span.keys)
        keys = range(start, max(start, min(grid.keys.stop - span.start, span.keys)))
        left = min(max(span.start - grid.keys.start, 0), len(grid.keys))
        part = Grid(grid.batch, rows, keys, span.terms.offset, grid.device)
        yield span, part, (left, len(grid.keys) - left - len(keys))


def _stack(pieces: Sequence[Tensor]) -> Tensor:
    """Rows over rows, each broadcast to the axes of all."""
    front = torch.broadcast_shapes(*(x.shape[:-2] for x in pieces))
    return torch.cat([x.expand(*front, *x.shape[-2:]) for x in pieces], -2)


def _whole(tile: Tensor, grid: Grid, pad: tuple[int, int]) -> Tensor:
    tile = tile.expand(*tile.shape[:-2], len(grid.rows), len(grid.keys))
    return F.pad(tile, pad)  # with False, or nothing added


@dataclass(frozen=True, eq=False)
class SplicedMask(Mask):
    """Each call's own mask for its rows; keys that it did not have are hidden."""

    spans: tuple[_Span, ...]

    def tile(self, grid: Grid) -> Tensor:
        pieces = []
        for span, part, pad in _cuts(self.spans, grid):
            mask = span.terms.mask
            allowed = torch.ones(1, 1, dtype=torch.bool, device=grid.device)
            pieces.append(_whole(allowed if mask is None else mask.tile(part), part, pad))
        return _stack(pieces)


@dataclass(frozen=True, eq=False)
class SplicedBias(Bias):
    """Each call's own bias for its rows."""

    spans: tuple[_Span, ...]

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        pieces, done = [], 0
        for span, part, pad in _cuts(self.spans, grid):
            rows = q[..., done : done + len(part.rows), :]
            done += len(part.rows)
            bias = span.terms.bias
            added = q.new_zeros(1, 1) if bias is None else bias.tile(part, rows, scale)
            pieces.append(_whole(added.to(q.dtype), part, pad))
        return _stack(pieces)

    @property
    def depends_on_query(self) -> bool:
        return any(s.terms.bias is not None and s.terms.bias.depends_on_query for s in self.spans)
