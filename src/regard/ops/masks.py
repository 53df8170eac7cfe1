"""Attention masks: which keys a query may attend to. Masks combine with & and |.

A mask is a condition on positions, not an n × n tensor: `at(b, h, i, j)` is True where query
position i may attend to key position j, in sequence b and head h. Indices broadcast, so the same
expression serves one cell, a tile and the whole map.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.grid import Grid, slice_dense, slice_head
from regard.ops.term_registry import TERMS, register_term

Starts = Int[Tensor, "sequence key"] | None


class Mask:
    """Base class of masks.

    A subclass defines `at`, and `key_span` and `is_full` where its structure is known: streaming
    ops skip tiles outside the span, and skip masking in full tiles.

    >>> class Even(Mask):
    ...     def at(self, b, h, i, j):
    ...         return j % 2 == 0
    >>> (Even() & Causal()).dense(3, 3).int().tolist()
    [[1, 0, 0], [1, 0, 0], [1, 0, 1]]
    """

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Whether query position i may attend to key position j."""
        raise NotImplementedError

    def tile(self, grid: Grid) -> Tensor:
        """`at` over a rectangle of the map, broadcastable to (*batch, rows, keys)."""
        return self.at(grid.b, grid.h, grid.i, grid.j)

    def key_span(self, positions: range, keys: int) -> range:
        """A range of keys that holds every key visible to the query positions.

        0 ≤ start ≤ stop ≤ keys, even for positions beyond the keys: it is used as a slice.
        """
        return range(keys)

    def is_full(self, positions: range, keys: range) -> bool:
        """Whether every key in `keys` is visible to every query position; False if unknown."""
        return False

    @property
    def allows_future(self) -> bool:
        """Whether a query may attend to a later key; True if unknown."""
        return True

    def sequence_starts(self, sequences: int, keys: int) -> Starts:
        """The first key of the sequence or packed document of each key; None if all start at 0."""
        return None

    def check(self, sequences: int, queries: int, keys: int) -> None:
        """Raise a ShapeError if the mask does not fit these sizes."""

    @property
    def parts(self) -> "list[Mask]":
        """The masks whose intersection it is."""
        return [self]

    def head_view(self, head: int) -> "Mask | None":
        """The mask of one head; None if an unregistered mask may differ from head to head."""
        return self if type(self) in TERMS else None

    def dense(self, queries: int, keys: int, offset: int = 0) -> Tensor:
        """The mask of one sequence as a matrix.

        >>> Causal().dense(2, 3, offset=1).int().tolist()
        [[1, 1, 0], [1, 1, 1]]
        """
        grid = Grid((), range(queries), range(keys), offset, torch.device("cpu"))
        return self.tile(grid).expand(queries, keys)

    def __and__(self, other: "Mask") -> "Mask":
        return Both(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return Either(self, other)


@register_term("mask")
@dataclass(frozen=True)
class Causal(Mask):
    """Causal mask: j ≤ i.

    >>> Causal().dense(3, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
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


@register_term("mask")
@dataclass(frozen=True)
class Local(Mask):
    """Sliding window: |i - j| ≤ radius.

    >>> (Causal() & Local(1)).dense(3, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
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
        return _clip(positions.start - self.radius, positions.stop + self.radius, keys)

    def is_full(self, positions: range, keys: range) -> bool:
        last = max(positions.start, positions.stop - 1)
        return last - self.radius <= keys.start and keys.stop - 1 <= positions.start + self.radius


@register_term("mask")
@dataclass(frozen=True)
class Chunked(Mask):
    """Chunked attention for streaming: its chunk and `left_chunks` before it (None: all).

    >>> Chunked(2, left_chunks=0).dense(4, 4).int().tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
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
        start = 0 if self.left_chunks is None else (first - self.left_chunks) * self.size
        return _clip(start, (last + 1) * self.size, keys)

    def is_full(self, positions: range, keys: range) -> bool:
        if not positions or not keys:
            return True
        first, last = positions.start // self.size, (positions.stop - 1) // self.size
        start = 0 if self.left_chunks is None else (last - self.left_chunks) * self.size
        return start <= keys.start and keys.stop <= (first + 1) * self.size


@register_term("mask")
@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Padding mask: left_padding ≤ j < length, one length (and left padding) per sequence.

    >>> Padding(torch.tensor(2)).dense(1, 3)
    tensor([[ True,  True, False]])
    """

    lengths: Int[Tensor, "*batch"]
    left_padding: Int[Tensor, "*batch"] | None = None

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        valid = j < self.lengths.reshape(-1)[b]
        if self.left_padding is not None:
            valid = valid & (j >= self.left_padding.reshape(-1)[b])
        return valid

    def sequence_starts(self, sequences: int, keys: int) -> Starts:
        if self.left_padding is None:
            return None
        return self.left_padding.reshape(-1, 1).expand(sequences, keys)

    def check(self, sequences: int, queries: int, keys: int) -> None:
        for name, x in (("lengths", self.lengths), ("left_padding", self.left_padding)):
            if x is not None and x.numel() != sequences:
                raise ShapeError(
                    f"{name}: needs one for each of {sequences} sequences, got {x.numel()}"
                )


@register_term("mask")
@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Packed documents: a query attends to keys with its document id.

    >>> Documents(torch.tensor([[0, 0, 1]])).dense(3, 3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """

    ids: Int[Tensor, "batch time"]

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.ids[b, i] == self.ids[b, j]

    def sequence_starts(self, sequences: int, keys: int) -> Starts:
        ids = self.ids[:, :keys]
        begins = ids.diff(dim=-1, prepend=ids[:, :1] - 1) != 0
        return torch.where(begins, torch.arange(keys, device=ids.device), 0).cummax(-1).values

    def check(self, sequences: int, queries: int, keys: int) -> None:
        if self.ids.shape[0] != sequences or self.ids.shape[1] < max(queries, keys):
            raise ShapeError(
                f"ids: needs {sequences} sequences of at least {max(queries, keys)} positions, "
                f"got {tuple(self.ids.shape)}"
            )


@register_term("mask")
@dataclass(frozen=True, eq=False)
class DenseMask(Mask):
    """Any pattern as a boolean matrix, True where a query may attend to a key.

    >>> (DenseMask(torch.tensor([[True, False], [True, True]])) & Local(0)).dense(2, 2).tolist()
    [[True, False], [False, True]]
    """

    allowed: Bool[Tensor, "... query key"]

    def tile(self, grid: Grid) -> Tensor:
        return slice_dense(self.allowed, grid, "mask")

    def head_view(self, head: int) -> Mask:
        return type(self)(slice_head(self.allowed, head))

    def sequence_starts(self, sequences: int, keys: int) -> Starts:
        if keys < 2 or self.allowed.shape[-2:] != (keys, keys):
            return None  # a decoding step need not see the first key
        pairs = self.allowed.any(-3) if self.allowed.ndim > 3 else self.allowed
        pairs = pairs.reshape(-1, keys, keys)
        if len(pairs) not in (1, sequences):  # one pattern per head, not per sequence
            pairs = pairs.any(0, keepdim=True)
        return _block_starts(pairs).expand(sequences, keys)


@register_term("mask")
class ChosenKeys(DenseMask):
    """The keys that an indexer chose for each query (sparse attention), True where chosen.

    >>> (Causal() & ChosenKeys(torch.eye(2) > 0)).dense(2, 2).tolist()
    [[True, False], [False, True]]
    """


def _block_starts(pairs: Bool[Tensor, "sequence key key"]) -> Int[Tensor, "sequence key"]:
    """Where the diagonal block of each key begins: no query attends from one block to another."""
    keys = pairs.shape[-1]
    j = torch.arange(keys, device=pairs.device)
    visible = pairs.any(-1)
    low = pairs.byte().argmax(-1).masked_fill(~visible, keys)
    high = keys - 1 - pairs.byte().flip(-1).argmax(-1)
    # padding may attend to anything, as in XLNet; no other query attends to it
    high = high.masked_fill(~visible | ~(pairs & (j != j[:, None])).any(-2), -1)
    later, earlier = low.flip(-1).cummin(-1).values.flip(-1), high.cummax(-1).values.roll(1, -1)
    begins = (later >= j) & ((earlier < j) | (j == 0))
    return torch.where(begins, j, 0).cummax(-1).values


@dataclass(frozen=True)
class _Pair(Mask):
    """Two masks, combined by & or |."""

    a: Mask
    b: Mask

    combine: ClassVar[Callable[[Any, Any], Any]]

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.combine(self.a.at(b, h, i, j), self.b.at(b, h, i, j))

    def tile(self, grid: Grid) -> Tensor:
        return self.combine(self.a.tile(grid), self.b.tile(grid))

    def is_full(self, positions: range, keys: range) -> bool:
        return self.combine(self.a.is_full(positions, keys), self.b.is_full(positions, keys))

    @property
    def allows_future(self) -> bool:
        return self.combine(self.a.allows_future, self.b.allows_future)

    def check(self, sequences: int, queries: int, keys: int) -> None:
        self.a.check(sequences, queries, keys)
        self.b.check(sequences, queries, keys)

    def head_view(self, head: int) -> Mask | None:
        a, b = self.a.head_view(head), self.b.head_view(head)
        return None if a is None or b is None else type(self)(a, b)


@register_term("mask")
@dataclass(frozen=True)
class Both(_Pair):
    """Intersection of two masks, `a & b`.

    >>> (Causal() & Local(0)).dense(2, 2).tolist()
    [[True, False], [False, True]]
    """

    combine = operator.and_

    @property
    def parts(self) -> list[Mask]:
        return self.a.parts + self.b.parts

    def key_span(self, positions: range, keys: int) -> range:
        a, b = self.a.key_span(positions, keys), self.b.key_span(positions, keys)
        return _clip(max(a.start, b.start), min(a.stop, b.stop), keys)

    def sequence_starts(self, sequences: int, keys: int) -> Starts:
        a, b = (x.sequence_starts(sequences, keys) for x in (self.a, self.b))
        return b if a is None else a if b is None else torch.maximum(a, b)


@register_term("mask")
@dataclass(frozen=True)
class Either(_Pair):
    """Union of two masks, `a | b`.

    >>> (Local(0) | DenseMask(torch.tensor([[True, False, False]]))).dense(3, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """

    combine = operator.or_

    def key_span(self, positions: range, keys: int) -> range:
        a, b = self.a.key_span(positions, keys), self.b.key_span(positions, keys)
        if not a or not b:
            return a or b
        return range(min(a.start, b.start), max(a.stop, b.stop))

    def sequence_starts(self, sequences: int, keys: int) -> Starts:
        a, b = (x.sequence_starts(sequences, keys) for x in (self.a, self.b))
        return None if a is None or b is None else torch.minimum(a, b)


def length_mask(lengths: Int[Tensor, "*batch"], time: int) -> Bool[Tensor, "*batch time"]:
    """Which positions of padded sequences are valid: t < length.

    >>> length_mask(torch.tensor([1, 2]), 3).int().tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    return torch.arange(time, device=lengths.device) < lengths[..., None]


def _clip(start: int, stop: int, keys: int) -> range:
    """start … stop within the keys; empty where they do not meet."""
    start = min(max(0, start), keys)
    return range(start, max(start, min(stop, keys)))
