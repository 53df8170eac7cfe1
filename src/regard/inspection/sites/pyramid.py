"""Deep zoom over one head's attention map: tiles at every power-of-two scale."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.sites.head_map import HeadMap
from regard.inspection.sites.map_cells import (
    Cells,
    MarginTotals,
    cell_sizes,
    pool_band,
    pool_cells,
    pool_rectangle,
)
from regard.inspection.sites.map_preview import MapPreview
from regard.inspection.sites.map_tile import (
    REDUCES,
    MapTile,
    StoredCells,
    TileReduce,
)
from regard.inspection.sites.site import Site
from regard.ops.indices import as_int, resolve_index

MIN_BASE_LEVEL = 5  # a tile of level 4 covers 4096 × 4096 weights: 20 ms on two cores
MAX_ON_DEMAND = 1 << 24  # weights of a map that is never stored
MAX_BASE_CELLS = 1 << 24  # mean and max in float16: 64 MiB, and a third of it for coarser levels
STEP_WEIGHTS = 1 << 24  # between two checks for cancellation


@dataclass(frozen=True, kw_only=True, eq=False)
class MapMargins:
    """Means per cell of the rows' entropy and of the keys' received mass, at one level.

    >>> site = rg.make_site(*torch.zeros(2, 4, 2))
    >>> rg.inspection.MapPyramid(site, head=0).margins(0).received
    tensor([1., 1., 1., 1.])
    """

    entropy: Float[Tensor, " row"]
    received: Float[Tensor, " column"]
    complete: bool
    version: int


class _BaseTile(NamedTuple):
    """A tile of the base level to be computed in the background pass."""

    row: int
    column: int
    rows: range
    keys: range  # those visible to its rows: a measure of its cost


class MapPyramid:
    """Deep zoom over one head's attention map, of any length, without an n × n tensor.

    cell(L, a, b) = mean or max of w_ij,   a·2^L ≤ i < (a+1)·2^L,   b·2^L ≤ j < (b+1)·2^L

    A cell at the edge of the map covers fewer weights, and hidden weights count as 0, as in
    `Site.window(pool=…)`; a cell that is hidden entirely is NaN. Tiles below `base_level` are
    computed on demand. Coarser ones come from a background pass, `advance`; until it has reached a
    tile, the tile is a preview from every n-th row. One thread may run `advance` while others
    read tiles. A map of at most 2^24 weights is computed on demand at every level.

    Args:
        site: The recorded attention.
        head: Its head.
        batch: The sequence of the batch.
        tile: Rows and columns of a tile, a power of two.
        base_level: First level that is stored; by default 5, or more where the stored cells would
            exceed 2^24.

    >>> pyramid = MapPyramid(rg.make_site(*torch.zeros(2, 600, 2), mask=rg.Causal()), head=0)
    >>> pyramid.levels, pyramid.level_shape(2)
    (3, (150, 150))
    >>> pyramid.tile(2, 0, 0).values[0, :2]  # w_ij of rows 0 to 3: 1, 1/2, 1/3, 1/4
    tensor([0.2500,    nan])
    """

    def __init__(
        self,
        site: Site,
        head: int,
        batch: int = 0,
        *,
        tile: int = 256,
        base_level: int | None = None,
    ):
        self.tile_size = as_int("tile", tile)
        if self.tile_size < 2 or self.tile_size & (self.tile_size - 1):
            raise ShapeError(f"tile: needs a power of two, 2 or more, got {tile}; try 256")
        self.map = HeadMap(site, head, batch)
        self.queries, self.keys = self.map.queries, self.map.keys
        if not self.queries * self.keys:
            raise ShapeError(f"site: needs queries and keys, got {self.queries} by {self.keys}")
        longest = -(-max(self.queries, self.keys) // self.tile_size)
        self.levels = (longest - 1).bit_length() + 1
        self.base_level = (
            self._choose_base() if base_level is None else as_int("base_level", base_level)
        )
        if not self._lowest_base() <= self.base_level <= self.levels:
            raise ShapeError(
                f"base_level: needs {self._lowest_base()} to {self.levels}, got {base_level}"
            )
        self._pass_level = min(self.base_level, self.levels - 1)
        self._todo = list(self._base_tiles())
        self._todo_at = {(unit.row, unit.column) for unit in self._todo}
        self._lock = threading.Lock()
        self._stored: dict[tuple[int, int], list[StoredCells]] = {}
        self._preview: MapPreview | None = None
        self._margins = MarginTotals(torch.zeros(self.queries), torch.zeros(self.keys))

    # ---- geometry

    def level_shape(self, level: int) -> tuple[int, int]:
        """Rows and columns of cells at a level.

        >>> MapPyramid(rg.make_site(*torch.zeros(2, 600, 2)), head=0).level_shape(1)
        (300, 300)
        """
        size = 1 << resolve_index("level", level, self.levels)
        return -(-self.queries // size), -(-self.keys // size)

    def band_shape(self, level: int) -> tuple[int, int]:
        """Rows and columns of cells of the band: queries, and distances from 0.

        >>> MapPyramid(rg.make_site(*torch.zeros(2, 600, 2)), head=0).band_shape(1)
        (300, 300)
        """
        size = 1 << resolve_index("level", level, min(self.levels, MIN_BASE_LEVEL))
        return -(-self.queries // size), -(-(self.queries + self.map.terms.offset) // size)

    def _lowest_base(self) -> int:
        """A tile of the base level is pooled at most to a single cell."""
        return max(0, self.levels - self.tile_size.bit_length())

    def _choose_base(self) -> int:
        if self.queries * self.keys <= MAX_ON_DEMAND:
            return self.levels
        level = max(MIN_BASE_LEVEL, self._lowest_base())
        while -(-self.queries // (1 << level)) * -(-self.keys // (1 << level)) > MAX_BASE_CELLS:
            level += 1
        return min(level, self.levels)

    def _base_tiles(self) -> Iterator[_BaseTile]:
        size = self.tile_size << self._pass_level
        for top in range(0, self.queries, size):
            rows = range(top, min(top + size, self.queries))
            span = self.map.key_span(rows)
            for left in range(span.start // size * size, span.stop, size):
                keys = range(max(left, span.start), min(left + size, span.stop))
                yield _BaseTile(top // size, left // size, rows, keys)

    def _span(self, level: int, tile: int, count: int) -> range:
        """The queries or keys, of `count`, below a row or column of tiles."""
        size = self.tile_size << level
        return range(tile * size, min((tile + 1) * size, count))

    # ---- tiles

    def tile(self, level: int, row: int, column: int, reduce: TileReduce = "mean") -> MapTile:
        """One tile: row and column count tiles, not cells.

        >>> pyramid = MapPyramid(rg.make_site(*torch.zeros(2, 600, 2)), head=0)
        >>> pyramid.tile(1, 1, 0, reduce="max").values.shape
        torch.Size([44, 256])
        """
        level = resolve_index("level", level, self.levels)
        row, column, index = self._check(self.level_shape(level), row, column, reduce)
        at = {"level": level, "row": row, "column": column, "reduce": reduce}
        if level >= self.base_level:
            values, complete, version = self._stored_tile(level, row, column)
            return MapTile(values=values[index], complete=complete, version=version, **at)
        rows, keys = self._span(level, row, self.queries), self._span(level, column, self.keys)
        size = 1 << level
        cells = pool_rectangle(self.map, rows, keys, (size, size))
        counts = cell_sizes(rows, size)[:, None] * cell_sizes(keys, size)
        return MapTile(values=cells.mean_and_max(counts.to(self.map.device))[index], **at)

    def band(self, level: int, row: int, column: int, reduce: TileReduce = "mean") -> MapTile:
        """One tile of the band along the diagonal: rows are queries, columns distances i - j.

        cell(L, a, b) = mean or max of w_i,i-d,   a·2^L ≤ i < (a+1)·2^L,   b·2^L ≤ d < (b+1)·2^L

        Means are over the keys that exist; a cell without visible keys is NaN. Levels 0 to 4.

        >>> pyramid = MapPyramid(rg.make_site(*torch.zeros(2, 3, 2), mask=rg.Causal()), head=0)
        >>> pyramid.band(0, 0, 0).values
        tensor([[1.0000,    nan,    nan],
                [0.5000, 0.5000,    nan],
                [0.3333, 0.3333, 0.3333]])
        """
        shape = self.band_shape(level)
        row, column, index = self._check(shape, row, column, reduce)
        rows = self._span(level, row, self.queries)
        distances = self._span(level, column, self.queries + self.map.terms.offset)
        cells, counts = pool_band(self.map, rows, distances, 1 << level)
        values = cells.mean_and_max(counts)[index]
        return MapTile(
            values=values, level=level, row=row, column=column, reduce=reduce, view="band"
        )

    def margins(self, level: int) -> MapMargins:
        """Row entropy and received mass, averaged per cell of a level.

        >>> site = rg.make_site(*torch.zeros(2, 4, 2), mask=rg.Causal())
        >>> MapPyramid(site, head=0).margins(0).entropy
        tensor([0.0000, 0.6931, 1.0986, 1.3863])
        """
        size = 1 << resolve_index("level", level, self.levels)
        preview = self._ensure_preview()
        entropy, received, done = preview.entropy, preview.received, 0
        if preview.stride > 1:  # else the preview has every row
            with self._lock:
                done = len(self._stored)
                entropy = entropy.clone()
                for rows in self._finished_rows():
                    entropy[rows] = self._margins.entropy[rows]
                if done == len(self._todo):
                    received = self._margins.received.clone()
        return MapMargins(
            entropy=_cell_means(entropy, size),
            received=_cell_means(received, size),
            complete=preview.stride == 1 or done == len(self._todo),
            version=done,
        )

    def _finished_rows(self) -> Iterator[slice]:
        """The queries whose tiles of the base level are all stored."""
        waiting = {unit.row for unit in self._todo if (unit.row, unit.column) not in self._stored}
        for row in range(-(-self.queries // (self.tile_size << self._pass_level))):
            if row not in waiting:
                rows = self._span(self._pass_level, row, self.queries)
                yield slice(rows.start, rows.stop)

    def _check(
        self, shape: tuple[int, int], row: int, column: int, reduce: str
    ) -> tuple[int, int, int]:
        """The indices of a tile, and of its reduction, checked."""
        rows, columns = (-(-cells // self.tile_size) for cells in shape)
        if reduce not in REDUCES:
            raise ShapeError(f"reduce: needs mean or max, got {reduce!r}")
        row, column = resolve_index("row", row, rows), resolve_index("column", column, columns)
        return row, column, REDUCES.index(reduce)

    def _stored_tile(self, level: int, row: int, column: int) -> tuple[Tensor, bool, int]:
        """Mean and max of a tile from stored patches, and a preview where they are missing."""
        step = level - self._pass_level
        side = self.tile_size >> step  # cells per patch
        inside = [
            (r, c)
            for r in range(row << step, (row + 1) << step)
            for c in range(column << step, (column + 1) << step)
            if (r, c) in self._todo_at
        ]
        with self._lock:
            patches = {at: self._stored[at][step] for at in inside if at in self._stored}
        shape = self.level_shape(level)
        rows, columns = (
            range(i * self.tile_size, min((i + 1) * self.tile_size, count))
            for i, count in zip((row, column), shape, strict=True)
        )
        complete = len(patches) == len(inside)
        if complete:
            values = torch.full((2, len(rows), len(columns)), torch.nan)
        else:
            values = self._ensure_preview().cells(level, rows, columns)
        for (r, c), patch in patches.items():
            top, left = (r - (row << step)) * side, (c - (column << step)) * side
            new = patch.decode()
            values[:, top : top + new.shape[1], left : left + new.shape[2]] = new
        return values, complete, len(patches)

    # ---- the background pass

    def advance(self, cancelled: Callable[[], bool] = lambda: False) -> Iterator[float]:
        """Compute the stored levels and the margins, yielding progress from 0 to 1.

        Between two yields lie at most about 2^24 weights; `cancelled` is asked there, and a later
        call continues after the tiles that are stored.

        >>> pyramid = MapPyramid(rg.make_site(*torch.zeros(2, 600, 2)), head=0, base_level=1)
        >>> pyramid.tile(2, 0, 0).complete, [*pyramid.advance()][-1], pyramid.tile(2, 0, 0).complete
        (False, 1.0, True)
        """
        if cancelled():
            return
        self._ensure_preview()
        yield 0.0
        total, done = sum(len(unit.rows) * len(unit.keys) for unit in self._todo), 0
        for unit in self._todo:
            if (unit.row, unit.column) not in self._stored:
                for part in self._compute(unit):
                    if part < 1:
                        yield (done + part * len(unit.rows) * len(unit.keys)) / total
                    if cancelled():
                        return
            done += len(unit.rows) * len(unit.keys)
            yield done / total

    def _compute(self, unit: _BaseTile) -> Iterator[float]:
        """Compute one tile of the base level in bands of rows, and publish it when whole."""
        size = 1 << self._pass_level
        keys, device = self._span(self._pass_level, unit.column, self.keys), self.map.device
        margins = MarginTotals(*(torch.zeros(len(x), device=device) for x in (unit.rows, keys)))
        height = max(1, STEP_WEIGHTS // (len(keys) * size)) * size
        parts = []
        for first in range(0, len(unit.rows), height):
            rows = unit.rows[first : first + height]
            own = MarginTotals(margins.entropy[first : first + height], margins.received)
            parts.append(pool_rectangle(self.map, rows, keys, (size, size), own))
            if first + height < len(unit.rows):
                yield (first + height) / len(unit.rows)
        cells = Cells(*(torch.cat(x).cpu() for x in zip(*parts, strict=True)))
        self._publish(unit, keys, cells, MarginTotals(*(x.cpu() for x in margins)))
        yield 1.0

    def _publish(self, unit: _BaseTile, keys: range, cells: Cells, margins: MarginTotals) -> None:
        patches = []
        for level in range(self._pass_level, self.levels):
            size = 1 << level
            counts = cell_sizes(unit.rows, size)[:, None] * cell_sizes(keys, size)
            patches.append(StoredCells.encode(cells.mean_and_max(counts)))
            cells = pool_cells(cells, 2, 2)
        with self._lock:
            if (unit.row, unit.column) not in self._stored:  # two threads may run `advance`
                self._margins.entropy[unit.rows.start : unit.rows.stop] += margins.entropy
                self._margins.received[keys.start : keys.stop] += margins.received
                self._stored[unit.row, unit.column] = patches

    def _ensure_preview(self) -> MapPreview:
        with self._lock:
            if self._preview is None:
                self._preview = MapPreview(self.map, self._pass_level)
            return self._preview


def _cell_means(x: Tensor, size: int) -> Tensor:
    """Means of `size` neighbours; the last may have fewer."""
    total = pool_cells(Cells(x[None], x[None]), 1, size).total[0]
    return total / cell_sizes(range(len(x)), size)
