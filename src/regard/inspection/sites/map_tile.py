"""Tiles of a zoomable attention map: their bytes, the background pass, and a quick preview."""

import math
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import FileError
from regard.inspection.sites.map_cells import (
    HeadMap,
    MarginTotals,
    PooledCells,
    cell_sizes,
    pool_cells,
    pool_rectangle,
)

TileReduce = Literal["mean", "max"]
REDUCES: tuple[TileReduce, ...] = ("mean", "max")
VIEWS: tuple[Literal["map", "band"], ...] = ("map", "band")
MAGIC = b"RGTL"
HEADER = struct.Struct("<4sBBBBhHHHIIII")  # 32 bytes, see MapTile.to_bytes
MIN_EXPONENT = -120  # the scale factor 2^120 is a float32; smaller maxima lose precision
STEP_WEIGHTS = 1 << 24  # between two checks for cancellation
PREVIEW_WEIGHTS = 1 << 26  # 0.1 s on two cores
MIN_PREVIEW_ROWS = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class MapTile:
    """Cells of one tile: mean or maximum weight per cell, NaN where the mask hides every weight.

    `complete` tiles never change. Others are a preview, and `version` grows with each change.

    >>> tile = rg.inspection.MapPyramid(rg.make_site(*torch.zeros(2, 4, 2)), head=0).tile(0, 0, 0)
    >>> tile.values[0], tile.complete
    (tensor([0.2500, 0.2500, 0.2500, 0.2500]), True)
    """

    values: Float[Tensor, "row column"]
    level: int
    row: int
    column: int
    reduce: TileReduce = "mean"
    view: Literal["map", "band"] = "map"
    complete: bool = True
    version: int = 0

    def to_bytes(self) -> bytes:
        """A header of 32 bytes, then the values row by row, as little-endian float16.

        The header, little-endian: "RGTL"; bytes format (1), level, reduce (0 mean, 1 max), flags
        (1 complete, 2 band); int16 exponent; uint16 rows, columns, 0; uint32 tile row, tile column,
        version, 0. A value is float16 · 2^exponent. The exponent puts the tile's maximum between
        2^14 and 2^15, so values down to 2^-28 of it have a relative error of at most 2^-11.

        >>> tile = MapTile(values=torch.full((1, 2), 1e-7), level=9, row=0, column=0)
        >>> len(tile.to_bytes()), MapTile.from_bytes(tile.to_bytes()).values[0, 0]
        (36, tensor(1.0000e-07))
        """
        half, exponent = encode_half(self.values)
        flags = self.complete | (self.view == "band") << 1
        rows, columns = self.values.shape
        header = HEADER.pack(
            MAGIC, 1, self.level, REDUCES.index(self.reduce), flags, exponent,
            rows, columns, 0, self.row, self.column, self.version, 0,
        )  # fmt: skip
        return header + half.numpy().astype("<f2").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "MapTile":
        """Read what `to_bytes` wrote.

        >>> tile = MapTile(values=torch.tensor([[0.5, torch.nan]]), level=0, row=2, column=3)
        >>> MapTile.from_bytes(tile.to_bytes()).values
        tensor([[0.5000,    nan]])
        """
        if len(data) < HEADER.size or data[:5] != MAGIC + b"\1":
            raise FileError(f"data: needs a tile of format 1, got {data[:5]!r}")
        fields = HEADER.unpack_from(data)
        level, reduce, flags, exponent, rows, columns, _, row, column, version, _ = fields[2:]
        half = np.frombuffer(data, "<f2", offset=HEADER.size).reshape(rows, columns)
        return cls(
            values=decode_half(torch.from_numpy(half.astype(np.float16)), exponent),
            level=level, row=row, column=column, reduce=REDUCES[reduce],
            view=VIEWS[flags >> 1 & 1], complete=bool(flags & 1), version=version,
        )  # fmt: skip


StoredCells = list[tuple[Tensor, int]]  # means and maxima, by `encode_half`


def encode_half(values: Tensor) -> tuple[Tensor, int]:
    """Non-negative values as float16 and the exponent of their scale, value = half · 2^exponent.

    >>> encode_half(torch.tensor([1.0, 0.5]))
    (tensor([16384.,  8192.], dtype=torch.float16), -14)
    """
    largest = float(values.nan_to_num(0.0).max()) if values.numel() else 0.0
    if largest == 0:
        return values.half(), 0
    exponent = max(MIN_EXPONENT, math.frexp(largest)[1] - 15)
    return (values * 2.0**-exponent).half(), exponent


def decode_half(half: Tensor, exponent: int) -> Tensor:
    """The values of `encode_half`, in float32."""
    return half.float() * 2.0**exponent


class BaseTile(NamedTuple):
    """A tile of the base level with visible keys."""

    row: int
    column: int
    rows: range
    keys: range
    cost: int  # weights within the mask's span


class BasePass:
    """Cells of levels from `level` up, in float16, computed one tile of `level` at a time.

    A tile is published when whole, with its cells of every coarser level: coarse tiles are
    then pieced together, and each cell is rounded once. Any thread may read.

    >>> head_map = HeadMap(rg.make_site(*torch.zeros(2, 4, 2), mask=rg.Causal()), head=0)
    >>> base = BasePass(head_map, level=1, levels=2, tile=2)
    >>> [*base.advance(lambda: False)]
    [1.0, 1.0]
    >>> decode_half(*base.read(1, 0, 0)[0][0, 0][1])  # maxima
    tensor([[1.0000,    nan],
            [0.3333, 0.3333]])
    """

    def __init__(self, head_map: HeadMap, level: int, levels: int, tile: int):
        self.map, self.level, self.levels, self.tile = head_map, level, levels, tile
        self.tiles = {(unit.row, unit.column): unit for unit in self._split()}
        self.total = sum(unit.cost for unit in self.tiles.values())
        self.stored: dict[tuple[int, int], list[StoredCells]] = {}
        self.lock = threading.Lock()
        self.margins = MarginTotals(torch.zeros(head_map.queries), torch.zeros(head_map.keys))

    def _split(self) -> Iterator[BaseTile]:
        size, queries, keys = self.tile << self.level, self.map.queries, self.map.keys
        for top in range(0, queries, size):
            rows = range(top, min(top + size, queries))
            span = self.map.key_span(rows)
            for left in range(span.start // size * size, span.stop, size):
                visible = min(left + size, span.stop) - max(left, span.start)
                columns = range(left, min(left + size, keys))
                yield BaseTile(top // size, left // size, rows, columns, len(rows) * visible)

    def read(
        self, level: int, row: int, column: int
    ) -> tuple[dict[tuple[int, int], StoredCells], bool]:
        """The stored cells of a tile by the first cell's row and column, and whether all are."""
        step = level - self.level
        side = self.tile >> step
        inside = {
            (i * side, j * side): at
            for i in range(1 << step)
            for j in range(1 << step)
            if (at := ((row << step) + i, (column << step) + j)) in self.tiles
        }
        with self.lock:
            stored = {k: self.stored[at][step] for k, at in inside.items() if at in self.stored}
        return stored, len(stored) == len(inside)

    def read_margins(self, entropy: Tensor, received: Tensor) -> tuple[Tensor, Tensor, int]:
        """The entropy and received mass, with estimates where unfinished, and the tiles done."""
        with self.lock:
            waiting = [unit.rows for at, unit in self.tiles.items() if at not in self.stored]
            exact, done = self.margins.entropy.clone(), len(self.stored)
            received = received if waiting else self.margins.received.clone()
        for rows in waiting:
            exact[rows.start : rows.stop] = entropy[rows.start : rows.stop]
        return exact, received, done

    def advance(self, cancelled: Callable[[], bool]) -> Iterator[float]:
        """Compute what is missing, and yield the progress after each step."""
        done = 0
        for at, unit in self.tiles.items():
            if at not in self.stored:
                for share in self._compute(unit):
                    yield (done + share * unit.cost) / self.total
                    if cancelled():
                        return
            done += unit.cost
        yield 1.0

    def _compute(self, unit: BaseTile) -> Iterator[float]:
        """Compute one tile in bands of rows, yield the share done, and publish it at the end."""
        size, (_, _, rows, keys, _) = 1 << self.level, unit
        margins = MarginTotals(*(torch.zeros(len(x), device=self.map.device) for x in (rows, keys)))
        height = max(1, STEP_WEIGHTS // (len(keys) * size)) * size
        parts = []
        for first in range(0, len(rows), height):
            band = rows[first : first + height]
            part = MarginTotals(margins.entropy[first : first + height], margins.received)
            parts.append(pool_rectangle(self.map, band, keys, (size, size), part))
            if band.stop == rows.stop:
                cells = (torch.cat(pieces).cpu() for pieces in zip(*parts, strict=True))
                self._publish(unit, PooledCells(*cells), margins)
            yield (band.stop - rows.start) / len(rows)

    def _publish(self, unit: BaseTile, cells: PooledCells, margins: MarginTotals) -> None:
        row, column, rows, keys, _ = unit
        stored = []
        for level in range(self.level, self.levels):
            counts = cell_sizes(rows, 1 << level)[:, None] * cell_sizes(keys, 1 << level)
            stored.append([encode_half(x) for x in cells.mean_and_max(counts)])
            cells = pool_cells(cells, 2, 2)
        entropy, received = (x.cpu() for x in margins)
        with self.lock:
            if (row, column) not in self.stored:  # two threads may run the pass
                self.margins.entropy[rows.start : rows.stop] += entropy
                self.margins.received[keys.start : keys.stop] += received
                self.stored[row, column] = stored


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
        sizes = len(taken), self.keys
        margins = MarginTotals(*(torch.zeros(n, device=head_map.device) for n in sizes))
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
