"""A quick approximation of one head's map from every n-th row."""

import torch
from torch import Tensor

from regard.inspection.sites.head_map import HeadMap
from regard.inspection.sites.map_cells import (
    MarginTotals,
    PooledCells,
    cell_sizes,
    pool_cells,
    pool_rectangle,
)

PREVIEW_WEIGHTS = 1 << 26  # 0.1 s on two cores
MIN_PREVIEW_ROWS = 64


class MapPreview:
    """Cells of a map from every `stride`-th row, exact along the keys.

    The mean of a cell is an estimate, its maximum a lower bound. A cell is NaN if the rows
    taken see none of its keys.

    >>> preview = MapPreview(HeadMap(rg.make_site(*torch.zeros(2, 4, 2)), head=0), level=1)
    >>> preview.stride, preview.cells(1, range(2), range(1))[0]
    (1, tensor([[0.2500],
            [0.2500]]))
    """

    def __init__(self, head_map: HeadMap, level: int):
        self.level, self.queries, self.keys = level, head_map.queries, head_map.keys
        rows = max(MIN_PREVIEW_ROWS, PREVIEW_WEIGHTS // self.keys)
        self.stride = 1 << (-(-self.queries // rows) - 1).bit_length()
        # from the middle of each stride, as a row stands for those around it
        taken = range(min(self.stride // 2, self.queries - 1), self.queries, self.stride)
        margins = MarginTotals(
            torch.zeros(len(taken), device=head_map.device),
            torch.zeros(self.keys, device=head_map.device),
        )
        cells = pool_rectangle(head_map, taken, range(self.keys), (1, 1 << level), margins)
        self._cells, self._rows = PooledCells(*(x.cpu() for x in cells)), len(taken)
        self.entropy = margins.entropy.cpu()[self._sample(range(self.queries), 1)]
        self.received = margins.received.cpu() * (self.queries / len(taken))

    def cells(self, level: int, rows: range, columns: range) -> Tensor:
        """Mean and max of a rectangle of cells of a level, (2, row, column)."""
        size, step = 1 << level, 1 << (level - self.level)
        group = max(1, size // self.stride)  # rows taken per cell
        samples = self._sample(range(rows.start * group, rows.stop * group), max(1, size // group))
        left, right = columns.start * step, columns.stop * step
        part = PooledCells(*(x[samples, left:right] for x in self._cells))
        keys = range(columns.start * size, min(columns.stop * size, self.keys))
        return pool_cells(part, group, step).mean_and_max(group * cell_sizes(keys, size))

    def _sample(self, rows: range, size: int) -> Tensor:
        """The row taken that is in, or nearest to, each of `rows`, counted in units of `size`."""
        at = torch.arange(rows.start, rows.stop) * size // self.stride
        return at.clamp(max=self._rows - 1)
