"""One head's attention map as log2 weights, and pooled cells of it and of its diagonal band."""

from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.inspection.sites.site import Site, select_head
from regard.ops.biases import DenseBias, SumBias
from regard.ops.grid import slice_axis
from regard.ops.indices import resolve_index
from regard.ops.masks import Both, DenseMask, Documents, Either, Padding
from regard.ops.terms import LOG2E, LOWEST_SCORE, finite_lse, upcast
from regard.ops.tiling import split_keys

Term = TypeVar("Term")
CPU_BLOCK = (1024, 1024)  # rows and keys: the two tensors of a block take 4 MB each
GPU_BLOCK = (4096, 8192)  # few, large launches
BAND_ROWS = 512  # rows per block of the band, whose rectangle is wider by as many keys


class HeadMap:
    """The weights of one head for one sequence, as log2 w = (s - lse) · log2 e of any rectangle.

    >>> head_map = HeadMap(rg.make_site(*torch.zeros(2, 4, 2)), head=0)
    >>> head_map.log2_weights(range(1), range(4))
    tensor([[-2., -2., -2., -2.]])
    """

    def __init__(self, site: Site, head: int, batch: int = 0):
        site.require_tensors()
        head = resolve_index("head", head, site.heads)
        batch = resolve_index("batch", batch, site.batch)
        self.queries, self.keys, self.device = site.queries, site.keys, site.q.device
        terms = select_head(site.terms, head)
        self.is_custom = terms is None  # defined for all sequences and heads together
        if terms is None:
            q, k, lse, self.terms, self.index = site.q, site.k, site.lse, site.terms, (batch, head)
        else:
            kv_head, one = head // (site.heads // site.k.shape[1]), slice(batch, batch + 1)
            q, lse = site.q[one, head, None], site.lse[one, head, None]
            k = site.k[one, kv_head, None]
            mask = select_sequence(terms.mask, batch)
            self.terms = replace(terms, mask=mask, bias=select_sequence(terms.bias, batch))
            self.index = (0, 0)
        self.q, self.k, self.lse = q.detach(), k.detach(), finite_lse(upcast(lse.detach()))
        self.maps = q.shape[:2].numel()  # computed at a time: one, unless terms are custom
        terms = self.terms
        self.is_plain = not (self.is_custom or terms.score or terms.bias or terms.softcap)
        if not self.is_plain:
            return
        # one product gives log2 w itself: the last feature is -lse · 1
        dtype = torch.promote_types(upcast(self.q[:0]).dtype, self.lse.dtype)
        q, k = (upcast(x[0, 0]).to(dtype) for x in (self.q, self.k))
        q = torch.cat([q * self.terms.scale, -self.lse[0, 0, :, None]], -1) * LOG2E
        # aligned rows, for the fast products of a GPU
        missing = -q.shape[-1] % 8 if q.is_cuda else 0
        self.q_and_lse = F.pad(q, (0, missing))
        self.k_and_ones = F.pad(F.pad(k, (0, 1), value=1.0), (0, missing))

    def key_span(self, rows: range) -> range:
        """The smallest known range that holds every key visible to these rows."""
        return self.terms.key_span(rows, self.keys)

    def is_full(self, rows: range, keys: range) -> bool:
        """Whether the mask is known to hide nothing in a rectangle."""
        offset, mask = self.terms.offset, self.terms.mask
        return mask is None or mask.is_full(range(rows.start + offset, rows.stop + offset), keys)

    def log2_weights(self, rows: range, keys: range) -> Tensor:
        """log2 w of a rectangle, -inf where hidden; `rows` may have a step."""
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            if self.is_plain:
                x = slice_axis(self.q_and_lse, 0, rows) @ slice_axis(self.k_and_ones, 0, keys).mT
                if self.terms.mask is not None and not self.is_full(rows, keys):
                    hidden = ~self.terms.mask.tile(self.terms.grid(self.q, self.k, rows, keys))
                    x[None, None].masked_fill_(hidden, -torch.inf)
                return x
            if self.is_custom and rows.step > 1:  # custom terms need not know of steps
                return torch.cat([self.log2_weights(range(i, i + 1), keys) for i in rows])
            scores = self.terms.score_tile(self.q, self.k, rows, keys)[self.index]
            return (scores - slice_axis(self.lse[self.index], 0, rows)[:, None]) * LOG2E


def select_sequence(term: Term, batch: int) -> Term:
    """The mask or bias of one sequence of the batch, as a batch of one.

    >>> select_sequence(rg.Padding(torch.tensor([2, 5])) & rg.Causal(), 1)
    Both(a=Padding(lengths=tensor([5]), left_padding=None), b=Causal())
    """
    one = slice(batch, batch + 1)
    match term:
        case Both() | Either() | SumBias():
            return replace(term, a=select_sequence(term.a, batch), b=select_sequence(term.b, batch))
        case Padding():
            left = term.left_padding
            left = None if left is None else left.reshape(-1)[one]
            return replace(term, lengths=term.lengths.reshape(-1)[one], left_padding=left)
        case Documents():
            return replace(term, ids=term.ids[one])
        case DenseMask():
            return replace(term, allowed=_select_dense(term.allowed, one))
        case DenseBias():
            return replace(term, values=_select_dense(term.values, one))
    return term  # a function of head and positions alone


def _select_dense(x: Tensor, one: slice) -> Tensor:
    return x[one] if x.ndim > 3 and x.shape[0] > 1 else x


class PooledCells(NamedTuple):
    """Pooled weights: the sum and log2 of the maximum per cell, -inf if every weight is hidden."""

    total: Tensor
    top: Tensor

    def mean_and_max(self, counts: Tensor) -> Tensor:
        """Mean over `counts` weights, and maximum, (2, row, column); NaN in hidden cells."""
        values = torch.stack([self.total / counts, self.top.exp2()])
        return values.masked_fill_(self.top == -torch.inf, torch.nan).float().cpu()


class MarginTotals(NamedTuple):
    """Entropy of each query and received mass of each key, over the blocks added so far."""

    entropy: Tensor
    received: Tensor


def pool_cells(cells: PooledCells, high: int, wide: int) -> PooledCells:
    """Pool high × wide cells into one; the last ones may be smaller.

    >>> pool_cells(PooledCells(torch.ones(3, 2), torch.zeros(3, 2)), 2, 2).total
    tensor([[4.],
            [2.]])
    """
    total, top = cells
    rows, columns = total.shape
    missing = (0, -columns % wide, 0, -rows % high)
    if any(missing):
        total, top = F.pad(total, missing), F.pad(top, missing, value=-torch.inf)
    if high > 1:  # rows first: along them the sums run over contiguous memory
        total, top = total.unflatten(0, (-1, high)).sum(1), top.unflatten(0, (-1, high)).amax(1)
    if wide > 1:
        total, top = total.unflatten(1, (-1, wide)).sum(2), top.unflatten(1, (-1, wide)).amax(2)
    return PooledCells(total, top)


def pool_rectangle(
    head_map: HeadMap,
    rows: range,
    keys: range,
    cell: tuple[int, int],
    margins: MarginTotals | None = None,
) -> PooledCells:
    """Pool a rectangle of the map into cells; tiles outside the mask's span are skipped.

    Args:
        head_map: The map.
        rows: The queries; with a step, a cell holds `cell[0]` of the queries taken.
        keys: The keys; the first is a multiple of `cell[1]`.
        cell: Rows and keys per cell; the last cells may be smaller.
        margins: Totals of these rows and keys, to which the rectangle is added.

    >>> head_map = HeadMap(rg.make_site(*torch.zeros(2, 4, 2), mask=rg.Causal()), head=0)
    >>> pool_rectangle(head_map, range(4), range(4), (2, 2)).total
    tensor([[2.0000, 0.0000],
            [1.1667, 0.8333]])
    """
    high, wide = cell
    size = -(-len(rows) // high), -(-len(keys) // wide)
    cells = _hidden_cells(head_map, size)
    block_rows, block_keys = GPU_BLOCK if head_map.device.type == "cuda" else CPU_BLOCK
    block_rows = max(1, block_rows // (high * head_map.maps)) * high
    block_keys = max(1, block_keys // wide) * wide
    for first in range(0, len(rows), block_rows):
        block = rows[first : first + block_rows]
        block = range(block.start, block[-1] + 1, block.step)  # not beyond the map
        span = head_map.key_span(block)
        start, stop = max(span.start // wide * wide, keys.start), min(span.stop, keys.stop)
        for part in split_keys(range(start, stop), block_keys):
            left = part.start - keys.start
            inside = margins and MarginTotals(
                margins.entropy[first : first + len(block)],
                margins.received[left : left + len(part)],
            )
            pooled = _pool_block(head_map, block, part, cell, inside)
            i, j = first // high, left // wide
            for whole, new in zip(cells, pooled, strict=True):
                whole[i : i + len(new), j : j + new.shape[1]] = new
    return cells


def _hidden_cells(head_map: HeadMap, size: tuple[int, int]) -> PooledCells:
    total = torch.zeros(size, device=head_map.device, dtype=head_map.lse.dtype)
    return PooledCells(total, torch.full_like(total, -torch.inf))


def _pool_block(
    head_map: HeadMap, rows: range, keys: range, cell: tuple[int, int], margins: MarginTotals | None
) -> PooledCells:
    x = head_map.log2_weights(rows, keys)
    w = x.exp2()  # on a CPU exp of what underflows, or of -inf, is forty times slower
    cells = pool_cells(PooledCells(w, x), *cell)
    if margins is not None:
        if cell == (1, 1):  # the cells are x and w themselves
            x, w = x.clone(), w.clone()
        margins.received.add_(w.sum(0))
        if not (head_map.is_plain and head_map.is_full(rows, keys)):
            x.clamp_(min=LOWEST_SCORE)  # 0 · log 0 = 0
        margins.entropy.sub_(w.mul_(x).sum(1) / LOG2E)
    return cells


def pool_band(
    head_map: HeadMap, rows: range, distances: range, size: int
) -> tuple[PooledCells, Tensor]:
    """Pool size × size weights of queries by distances, i - j, and count those that exist.

    >>> head_map = HeadMap(rg.make_site(*torch.zeros(2, 3, 2), mask=rg.Causal()), head=0)
    >>> pool_band(head_map, range(3), range(2), 1)[0].total  # w_ii and w_i,i-1
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000],
            [0.3333, 0.3333]])
    """
    parts = []
    height = max(1, BAND_ROWS // (size * head_map.maps)) * size
    for first in range(rows.start, rows.stop, height):
        block = range(first, min(first + height, rows.stop))
        x = _band_block(head_map, block, distances)
        counts = _count_band_keys(head_map, block, distances, size)
        parts.append((*pool_cells(PooledCells(x.exp2(), x), size, size), counts))
    total, top, counts = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return PooledCells(total, top), counts


def _band_keys(head_map: HeadMap, rows: range, distances: range) -> range:
    """The keys of a band, from the last distance of the first row to the first of the last row."""
    first = rows.start + head_map.terms.offset - distances.stop + 1
    return range(first, first + len(rows) + len(distances) - 1)


def _band_block(head_map: HeadMap, rows: range, distances: range) -> Tensor:
    """log2 w of rows by distances, -inf where hidden or without a key."""
    keys, span = _band_keys(head_map, rows, distances), head_map.key_span(rows)
    visible = range(max(keys.start, span.start), min(keys.stop, span.stop))
    if visible == keys:
        rectangle = head_map.log2_weights(rows, keys)
    else:
        rectangle = _hidden_cells(head_map, (len(rows), len(keys))).top
        if visible:
            at = slice(visible.start - keys.start, visible.stop - keys.start)
            rectangle[:, at] = head_map.log2_weights(rows, visible)
    # one step right per row: the diagonals become columns, the largest distance first
    return rectangle.as_strided((len(rows), len(distances)), (len(keys) + 1, 1)).flip(1)


def _count_band_keys(head_map: HeadMap, rows: range, distances: range, size: int) -> Tensor:
    """The number of keys that exist in each cell of a band."""
    keys = _band_keys(head_map, rows, distances)
    if keys.start >= 0 and keys.stop <= head_map.keys:
        return (cell_sizes(rows, size)[:, None] * cell_sizes(distances, size)).to(head_map.device)
    j = torch.arange(keys.start, keys.stop, device=head_map.device)
    exists = ((j >= 0) & (j < head_map.keys)).float()
    exists = exists.as_strided((len(rows), len(distances)), (1, 1)).flip(1)
    return pool_cells(PooledCells(exists, exists), size, size).total


def cell_sizes(span: range, size: int) -> Tensor:
    """How many of a range fall into each cell of `size`; the last may have fewer.

    >>> cell_sizes(range(4, 9), 2)
    tensor([2, 2, 1])
    """
    counts = torch.full((-(-len(span) // size),), size)
    counts[-1] -= -len(span) % size
    return counts
