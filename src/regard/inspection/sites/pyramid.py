"""Deep zoom over one head's attention map: tiles at every power-of-two scale."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError, check_choice
from regard.inspection.sites import map_cells
from regard.inspection.sites.map_tile import (
    REDUCES,
    BasePass,
    MapPreview,
    MapTile,
    TileReduce,
    decode_half,
)
from regard.inspection.sites.site import Site
from regard.ops.indices import as_int, resolve_index

MIN_BASE_LEVEL = 5  # a tile of level 4 covers 4096 × 4096 weights: 20 ms on two cores
MAX_ON_DEMAND = 1 << 24  # weights of a map that is never stored
MAX_BASE_CELLS = 1 << 24  # mean and max in float16: 64 MiB, and a third of it for coarser levels


@dataclass(frozen=True, kw_only=True, eq=False)
class MapMargins:
    """Means per cell of the rows' entropy and of the keys' received mass, at one level."""

    entropy: Float[Tensor, " row"]
    received: Float[Tensor, " column"]
    complete: bool
    version: int


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
        self.map = map_cells.HeadMap(site, head, batch)
        self.queries, self.keys = self.map.queries, self.map.keys
        if not self.queries * self.keys:
            raise ShapeError(f"site: needs queries and keys, got {self.queries} by {self.keys}")
        longest = -(-max(self.queries, self.keys) // self.tile_size)
        self.levels = (longest - 1).bit_length() + 1
        # a tile of the base level is pooled at most to a single cell
        lowest = max(0, self.levels - self.tile_size.bit_length())
        if base_level is None:
            base_level = self._choose_base(lowest)
        self.base_level = as_int("base_level", base_level)
        if not lowest <= self.base_level <= self.levels:
            raise ShapeError(f"base_level: needs {lowest} to {self.levels}, got {base_level}")
        level = min(self.base_level, self.levels - 1)  # a short map is only passed for its margins
        self._pass = BasePass(self.map, level, self.levels, self.tile_size)
        self._preview: MapPreview | None = None
        self._preview_lock = threading.Lock()

    # ---- geometry

    def level_shape(self, level: int) -> tuple[int, int]:
        """Rows and columns of cells at a level.

        >>> MapPyramid(rg.make_site(*torch.zeros(2, 600, 2)), head=0).level_shape(1)
        (300, 300)
        """
        size = 1 << resolve_index("level", level, self.levels)
        return -(-self.queries // size), -(-self.keys // size)

    def band_shape(self, level: int) -> tuple[int, int]:
        """Rows and columns of cells of the band: queries, and distances from 0."""
        size = 1 << resolve_index("level", level, min(self.levels, MIN_BASE_LEVEL))
        return -(-self.queries // size), -(-(self.queries + self.map.terms.offset) // size)

    def _choose_base(self, lowest: int) -> int:
        if self.queries * self.keys <= MAX_ON_DEMAND:
            return self.levels
        level = max(MIN_BASE_LEVEL, lowest)
        while -(-self.queries // (1 << level)) * -(-self.keys // (1 << level)) > MAX_BASE_CELLS:
            level += 1
        return min(level, self.levels)

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
        cells = map_cells.pool_rectangle(self.map, rows, keys, (size, size))
        counts = map_cells.cell_sizes(rows, size)[:, None] * map_cells.cell_sizes(keys, size)
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
        row, column, index = self._check(self.band_shape(level), row, column, reduce)
        level = resolve_index("level", level, min(self.levels, MIN_BASE_LEVEL))
        rows = self._span(level, row, self.queries)
        distances = self._span(level, column, self.queries + self.map.terms.offset)
        cells, counts = map_cells.pool_band(self.map, rows, distances, 1 << level)
        at = {"level": level, "row": row, "column": column, "reduce": reduce}
        return MapTile(values=cells.mean_and_max(counts)[index], view="band", **at)

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
            entropy, received, done = self._pass.read_margins(entropy, received)
        return MapMargins(
            entropy=_cell_means(entropy, size),
            received=_cell_means(received, size),
            complete=preview.stride == 1 or done == len(self._pass.tiles),
            version=done,
        )

    def _check(
        self, shape: tuple[int, int], row: int, column: int, reduce: str
    ) -> tuple[int, int, int]:
        """The indices of a tile, and of its reduction, checked."""
        rows, columns = (-(-cells // self.tile_size) for cells in shape)
        check_choice("reduce", reduce, REDUCES, ShapeError)
        row, column = resolve_index("row", row, rows), resolve_index("column", column, columns)
        return row, column, REDUCES.index(reduce)

    def _stored_tile(self, level: int, row: int, column: int) -> tuple[Tensor, bool, int]:
        """Mean and max of a tile from stored cells, and a preview where they are missing."""
        stored, complete = self._pass.read(level, row, column)
        rows, columns = (
            range(i * self.tile_size, min((i + 1) * self.tile_size, count))
            for i, count in zip((row, column), self.level_shape(level), strict=True)
        )
        if complete:
            values = torch.full((2, len(rows), len(columns)), torch.nan)
        else:
            values = self._ensure_preview().cells(level, rows, columns)
        for (top, left), cells in stored.items():
            new = torch.stack([decode_half(*x) for x in cells])
            values[:, top : top + new.shape[1], left : left + new.shape[2]] = new
        return values, complete, len(stored)

    # ---- the background pass

    def advance(self, cancelled: Callable[[], bool] = lambda: False) -> Iterator[float]:
        """Compute the stored levels and the margins, yielding progress from 0 to 1.

        Between two yields lie at most about 2^24 weights; `cancelled` is called there, and a later
        call continues after the tiles that are stored.

        >>> pyramid = MapPyramid(rg.make_site(*torch.zeros(2, 600, 2)), head=0, base_level=1)
        >>> pyramid.tile(2, 0, 0).complete, [*pyramid.advance()][-1], pyramid.tile(2, 0, 0).complete
        (False, 1.0, True)
        """
        if not cancelled():
            self._ensure_preview()
            yield 0.0
            yield from self._pass.advance(cancelled)

    def _ensure_preview(self) -> MapPreview:
        with self._preview_lock:
            if self._preview is None:
                self._preview = MapPreview(self.map, self._pass.level)
            return self._preview


def _cell_means(x: Tensor, size: int) -> Tensor:
    """Means of `size` neighbours; the last may have fewer."""
    total = map_cells.pool_cells(map_cells.PooledCells(x[None], x[None]), 1, size).total[0]
    return total / map_cells.cell_sizes(range(len(x)), size)
