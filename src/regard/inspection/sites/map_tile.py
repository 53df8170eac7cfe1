"""Tiles of a zoomable attention map, and their bytes: a fixed header and float16 values."""

import math
import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import FileError

TileReduce = Literal["mean", "max"]
REDUCES: tuple[TileReduce, ...] = ("mean", "max")
VIEWS: tuple[Literal["map", "band"], ...] = ("map", "band")
MAGIC = b"RGTL"
HEADER = struct.Struct("<4sBBBBhHHHIIII")  # 32 bytes, see MapTile.to_bytes
MIN_EXPONENT = -120  # the scale factor 2^120 is a float32; smaller maxima lose precision


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
            level=level,
            row=row,
            column=column,
            reduce=REDUCES[reduce],
            view=VIEWS[flags >> 1 & 1],
            complete=bool(flags & 1),
            version=version,
        )


class StoredCells(NamedTuple):
    """Mean and maximum per cell, as float16 with one exponent each."""

    mean: Tensor
    max: Tensor
    exponents: tuple[int, int]

    @classmethod
    def encode(cls, values: Float[Tensor, "2 row column"]) -> "StoredCells":
        """Store means and maxima."""
        (mean, mean_exponent), (top, top_exponent) = encode_half(values[0]), encode_half(values[1])
        return cls(mean, top, (mean_exponent, top_exponent))

    def decode(self) -> Float[Tensor, "2 row column"]:
        """The means and maxima, in float32."""
        return torch.stack(
            [
                decode_half(self.mean, self.exponents[0]),
                decode_half(self.max, self.exponents[1]),
            ]
        )


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
    """The values of `encode_half`, in float32.

    >>> decode_half(*encode_half(torch.tensor([0.75])))
    tensor([0.7500])
    """
    return half.float() * 2.0**exponent
