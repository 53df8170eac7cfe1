"""Pooled cells of one head's map and of its diagonal band, streamed in blocks."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.inspection.sites.head_map import HeadMap
from regard.ops.terms import LOG2E, LOWEST_SCORE
from regard.ops.tiling import split_keys

CPU_BLOCK = (1024, 1024)  # rows and keys: the two tensors of a block take 4 MB each
GPU_BLOCK = (4096, 8192)  # few, large launches
BAND_ROWS = 512  # rows per block of the band, whose rectangle is wider by as many keys


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
    head_map: HeadMap,
    rows: range,
    keys: range,
    cell: tuple[int, int],
    margins: MarginTotals | None,
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
