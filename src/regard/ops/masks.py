"""Which keys a query may see: small objects that know their own structure and combine with & and |.

A mask is asked at positions, never stored as n by n: `at(b, h, i, j)` says whether query position i
of sequence b, head h, may see key position j. Indices broadcast, so the same line of math serves
one cell, a tile and the whole map.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.grid import Grid, slice_dense


class Mask:
    """Base of all masks. Subclasses write `at`, and `span` and `covers` where they know more.

    >>> class Even(Mask):
    ...     def at(self, b, h, i, j):
    ...         return j % 2 == 0
    >>> (Even() & Causal()).dense(3, 3).int()
    tensor([[1, 0, 0],
            [1, 0, 0],
            [1, 0, 1]], dtype=torch.int32)
    """

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Whether query position i may see key position j; True where it may."""
        raise NotImplementedError

    def tile(self, grid: Grid) -> Tensor:
        """`at` over a rectangle, broadcastable to (*batch, rows, keys)."""
        return self.at(grid.b, grid.h, grid.i, grid.j)

    def key_span(self, positions: range, keys: int) -> range:
        """Keys outside this range are surely hidden from all query positions in `places`."""
        return range(keys)

    def is_full(self, positions: range, keys: range) -> bool:
        """Whether surely every query position in `places` may see every key in `keys`."""
        return False

    @property
    def allows_future(self) -> bool:
        """Whether a query may see a key after it; False only where surely none does."""
        return True

    def sequence_starts(self, sequences: int) -> Int[Tensor, " sequence"] | None:
        """The first real key of each sequence; None where all begin at 0."""
        return None

    def check(self, sequences: int, queries: int, keys: int) -> None:
        """Raise a ShapeError if this mask was made for other sizes."""

    def dense(self, queries: int, keys: int, offset: int = 0) -> Tensor:
        """The mask of one sequence as a matrix, to print or compare.

        >>> Causal().dense(2, 3, offset=1)
        tensor([[ True,  True, False],
                [ True,  True,  True]])
        """
        grid = Grid((), range(queries), range(keys), offset, torch.device("cpu"))
        return self.tile(grid).expand(queries, keys)

    def __and__(self, other: "Mask") -> "Mask":
        return Both(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return Either(self, other)


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees itself and what came before: j ≤ i.

    >>> Causal().dense(3, 3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    def key_span(self, positions: range, keys: int) -> range:
        return range(min(keys, positions.stop)) if positions else range(0)

    def is_full(self, positions: range, keys: range) -> bool:
        return keys.stop - 1 <= positions.start

    @property
    def allows_future(self) -> bool:
        return False


@dataclass(frozen=True)
class Local(Mask):
    """A query sees what is at most `radius` away: |i - j| ≤ radius.

    >>> (Causal() & Local(1)).dense(3, 3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [False,  True,  True]])
    """

    radius: int

    def __post_init__(self) -> None:
        if self.radius < 0:
            raise ShapeError(f"radius: needs 0 or more, got {self.radius}")

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= self.radius

    def key_span(self, positions: range, keys: int) -> range:
        if not positions:
            return range(0)
        return range(max(0, positions.start - self.radius), min(keys, positions.stop + self.radius))

    def is_full(self, positions: range, keys: range) -> bool:
        last = max(positions.start, positions.stop - 1)
        return last - self.radius <= keys.start and keys.stop - 1 <= positions.start + self.radius


@dataclass(frozen=True)
class Chunked(Mask):
    """For streaming: a query sees its own chunk whole and `left` chunks before it (None: all).

    >>> Chunked(2, left_chunks=0).dense(4, 4).int()
    tensor([[1, 1, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 1, 1],
            [0, 0, 1, 1]], dtype=torch.int32)
    """

    size: int
    left_chunks: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ShapeError(f"size: needs 1 or more, got {self.size}")
        if self.left_chunks is not None and self.left_chunks < 0:
            raise ShapeError(
                f"left_chunks: needs 0 or more, got {self.left_chunks}; try None for all chunks"
            )

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        back = i // self.size - j // self.size
        return back >= 0 if self.left_chunks is None else (back >= 0) & (back <= self.left_chunks)

    def key_span(self, positions: range, keys: int) -> range:
        if not positions:
            return range(0)
        first, last = positions.start // self.size, (positions.stop - 1) // self.size
        start = 0 if self.left_chunks is None else max(0, first - self.left_chunks) * self.size
        return range(start, min(keys, (last + 1) * self.size))

    def is_full(self, positions: range, keys: range) -> bool:
        if not positions or not keys:
            return True
        first, last = positions.start // self.size, (positions.stop - 1) // self.size
        start = 0 if self.left_chunks is None else (last - self.left_chunks) * self.size
        return start <= keys.start and keys.stop <= (first + 1) * self.size


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Sequences of different lengths: keys from `skip` (0 if not given) up to `lengths` are real.

    `lengths` has one number a sequence; `skip` likewise, for padding on the left.

    >>> Padding(torch.tensor(2)).dense(1, 3)
    tensor([[ True,  True, False]])
    """

    lengths: Int[Tensor, "*batch"]
    left_padding: Int[Tensor, "*batch"] | None = None

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        real = j < self.lengths.reshape(-1)[b]
        if self.left_padding is not None:
            real = real & (j >= self.left_padding.reshape(-1)[b])
        return real

    def sequence_starts(self, sequences: int) -> Int[Tensor, " sequence"] | None:
        return None if self.left_padding is None else self.left_padding.reshape(-1)

    def check(self, sequences: int, queries: int, keys: int) -> None:
        if self.lengths.numel() != sequences:
            raise ShapeError(
                f"lengths: needs one for each of {sequences} sequences, got {self.lengths.numel()}"
            )
        if self.left_padding is not None and self.left_padding.numel() != sequences:
            raise ShapeError(
                f"left_padding: needs one for each of {sequences} sequences, got {self.left_padding.numel()}"
            )


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Several documents packed in one row: a query sees keys of its own document.

    >>> Documents(torch.tensor([[0, 0, 1]])).dense(3, 3).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """

    ids: Int[Tensor, "batch time"]

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.ids[b, i] == self.ids[b, j]

    def check(self, sequences: int, queries: int, keys: int) -> None:
        if self.ids.shape[0] != sequences or self.ids.shape[1] < max(queries, keys):
            raise ShapeError(
                f"ids: needs {sequences} sequences of at least {max(queries, keys)} positions, "
                f"got {tuple(self.ids.shape)}"
            )


@dataclass(frozen=True, eq=False)
class DenseMask(Mask):
    """Any pattern, given as a matrix: True where a query may see a key.

    >>> (DenseMask(torch.tensor([[True, False], [True, True]])) & Local(0)).dense(2, 2)
    tensor([[ True, False],
            [False,  True]])
    """

    allowed: Bool[Tensor, "... query key"]

    def tile(self, grid: Grid) -> Tensor:
        return slice_dense(self.allowed, grid, "mask")

    def sequence_starts(self, sequences: int) -> Int[Tensor, " sequence"] | None:
        queries, keys = self.allowed.shape[-2:]
        if queries != keys or keys < 2:  # a step of a generation need not see the first key
            return None
        seen = self.allowed.any(-2)
        seen = seen.any(-2).reshape(-1, keys) if seen.ndim > 2 else seen.reshape(-1, keys)
        if len(seen) not in (1, sequences):  # one pattern per head, not per sequence
            seen = seen.any(0, keepdim=True)
        return seen.int().argmax(-1).expand(sequences)


@dataclass(frozen=True)
class Both(Mask):
    """What two masks both allow; written `a & b`.

    >>> (Causal() & Local(0)).dense(2, 2)
    tensor([[ True, False],
            [False,  True]])
    """

    a: Mask
    b: Mask

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.a.at(b, h, i, j) & self.b.at(b, h, i, j)

    def tile(self, grid: Grid) -> Tensor:
        return self.a.tile(grid) & self.b.tile(grid)

    def key_span(self, positions: range, keys: int) -> range:
        one, two = self.a.key_span(positions, keys), self.b.key_span(positions, keys)
        start = max(one.start, two.start)
        return range(start, max(start, min(one.stop, two.stop)))

    def is_full(self, positions: range, keys: range) -> bool:
        return self.a.is_full(positions, keys) and self.b.is_full(positions, keys)

    @property
    def allows_future(self) -> bool:
        return self.a.allows_future and self.b.allows_future

    def sequence_starts(self, sequences: int) -> Int[Tensor, " sequence"] | None:
        one, two = self.a.sequence_starts(sequences), self.b.sequence_starts(sequences)
        return two if one is None else one if two is None else torch.maximum(one, two)

    def check(self, sequences: int, queries: int, keys: int) -> None:
        self.a.check(sequences, queries, keys)
        self.b.check(sequences, queries, keys)


@dataclass(frozen=True)
class Either(Mask):
    """What at least one of two masks allows; written `a | b`.

    >>> (Local(0) | DenseMask(torch.tensor([[True, False, False]]))).dense(3, 3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """

    a: Mask
    b: Mask

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.a.at(b, h, i, j) | self.b.at(b, h, i, j)

    def tile(self, grid: Grid) -> Tensor:
        return self.a.tile(grid) | self.b.tile(grid)

    def key_span(self, positions: range, keys: int) -> range:
        one, two = self.a.key_span(positions, keys), self.b.key_span(positions, keys)
        if not one or not two:
            return one or two
        return range(min(one.start, two.start), max(one.stop, two.stop))

    def is_full(self, positions: range, keys: range) -> bool:
        return self.a.is_full(positions, keys) or self.b.is_full(positions, keys)

    @property
    def allows_future(self) -> bool:
        return self.a.allows_future or self.b.allows_future

    def sequence_starts(self, sequences: int) -> Int[Tensor, " sequence"] | None:
        one, two = self.a.sequence_starts(sequences), self.b.sequence_starts(sequences)
        return None if one is None or two is None else torch.minimum(one, two)

    def check(self, sequences: int, queries: int, keys: int) -> None:
        self.a.check(sequences, queries, keys)
        self.b.check(sequences, queries, keys)
