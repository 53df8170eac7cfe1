"""Rectangles of an attention map: the indices at which masks and biases are evaluated."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import ShapeError


@dataclass(frozen=True)
class Grid:
    """A rectangle of the map: a range of rows (queries) and of keys, for every batch and head.

    `offset` is the position of query 0 among the keys: 0 if both are the same sequence, the number
    of cached keys when decoding. Masks and biases see positions, not rows.
    """

    batch: tuple[int, ...]  # all leading axes of q, heads last
    rows: range
    keys: range
    offset: int
    device: torch.device

    @property
    def b(self) -> Tensor:
        """Index of the sequence: the leading axes without the heads."""
        sizes = self.batch[:-1] or self.batch
        index = torch.arange(torch.Size(sizes).numel(), device=self.device).view(*sizes, 1, 1)
        return index if len(self.batch) < 2 else index.unsqueeze(-3)

    @property
    def h(self) -> Tensor:
        """Index of the head: the last leading axis (a single one serves as both)."""
        sizes = self.batch[-1:]
        return torch.arange(*sizes or (1,), device=self.device).view(*sizes, 1, 1)

    @property
    def i(self) -> Tensor:
        """Position of each query, as a column."""
        at = torch.arange(self.rows.start, self.rows.stop, self.rows.step, device=self.device)
        return (at + self.offset)[:, None]

    @property
    def j(self) -> Tensor:
        """Position of each key, as a row."""
        return torch.arange(self.keys.start, self.keys.stop, self.keys.step, device=self.device)

    @property
    def query_positions(self) -> range:
        """Positions of the queries."""
        rows = self.rows
        return range(rows.start + self.offset, rows.stop + self.offset, rows.step)


def slice_axis(x: Tensor, axis: int, span: range) -> Tensor:
    """A range of x along one axis, as a view.

    >>> slice_axis(torch.arange(5), 0, range(1, 5, 2))
    tensor([1, 3])
    """
    index = [slice(None)] * x.ndim
    index[axis] = slice(span.start, span.stop, span.step)
    return x[tuple(index)]


def slice_dense(x: Tensor, grid: Grid, name: str) -> Tensor:
    """The tile of a tensor given for the whole map; an axis of size 1 broadcasts."""
    queries, keys = x.shape[-2:]
    if (queries > 1 and queries < grid.rows.stop) or (keys > 1 and keys < grid.keys.stop):
        raise ShapeError(
            f"{name}: needs at least {grid.rows.stop} queries by {grid.keys.stop} keys, "
            f"got {queries} by {keys}"
        )
    x = slice_axis(x, -2, grid.rows) if queries > 1 else x
    return slice_axis(x, -1, grid.keys) if keys > 1 else x


def slice_head(x: Tensor, head: int) -> Tensor:
    """One head of a tensor given for the whole map; a tensor for all heads stays."""
    return x[..., head : head + 1, :, :] if x.ndim > 2 and x.shape[-3] > 1 else x


def to_4d(x: Tensor) -> Tensor:
    """Reshape to (batch, head, n, d) for kernels; a single leading axis is taken as heads.

    >>> to_4d(torch.zeros(2, 3, 4, 5, 6)).shape
    torch.Size([6, 4, 5, 6])
    """
    if x.ndim == 4:
        return x
    return x.reshape((1,) * (4 - x.ndim) + x.shape) if x.ndim < 4 else x.flatten(0, -4)
