"""What is added to a score because of where query and key stand; biases add up with +.

Like masks, biases are asked at positions and never stored as n by n.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.grid import Grid, slice_dense


class Bias:
    """Base of all biases. Subclasses write `at`.

    >>> class Later(Bias):
    ...     def at(self, b, h, i, j):
    ...         return 1.0 * j
    >>> two = Later() + Later()
    >>> two.at(*torch.tensor([0, 0, 5, 3]))
    tensor(6.)
    """

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """What is added to the score of query position i and key position j."""
        raise NotImplementedError

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        """`at` over a rectangle; q holds its rows, for the bias that asks the query itself."""
        return self.at(grid.b, grid.h, grid.i, grid.j)

    def check(self, heads: int, head_dim: int) -> None:
        """Raise a ShapeError if this bias was made for other sizes."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What may be learned in it."""
        return ()

    @property
    def depends_on_query(self) -> bool:
        """Whether it depends on the query, so that q gets a gradient through it."""
        return False

    def __add__(self, other: "Bias") -> "Bias":
        return SumBias(self, other)


def alibi_slopes(heads: int) -> Float[Tensor, " head"]:
    """The slopes of ALiBi: 2^(-8/heads), 2^(-16/heads), …, 2^-8.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


@dataclass(frozen=True, eq=False)
class ALiBi(Bias):
    """Farther keys count less, each head with its own slope: -slope · |i - j|.

    >>> ALiBi(torch.tensor([0.5])).at(*torch.tensor([0, 0, 3, 1]))
    tensor(-1.)
    """

    slopes: Float[Tensor, " head"]

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return -self.slopes[h] * (i - j).abs()

    def check(self, heads: int, head_dim: int) -> None:
        _check_heads("slopes", self.slopes.shape[0], heads)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.slopes,)


@dataclass(frozen=True, eq=False)
class Toeplitz(Bias):
    """One learned number a head and distance, distances clipped at the table's radius: t[j - i].

    >>> Toeplitz(torch.tensor([[10.0, 0.0, 20.0]])).at(*torch.tensor([0, 0, 5, 1]))
    tensor(10.)
    """

    table: Float[Tensor, "head distance"]  # distances -radius … radius

    def __post_init__(self) -> None:
        _check_odd("table", self.table.shape[-1])

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        radius = self.table.shape[-1] // 2
        return self.table[h, (j - i).clamp(-radius, radius) + radius]

    def check(self, heads: int, head_dim: int) -> None:
        _check_heads("table", self.table.shape[0], heads)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.table,)


@dataclass(frozen=True, eq=False)
class Buckets(Bias):
    """Distances in buckets that widen with distance, one learned number a bucket and head (T5).

    Half of the buckets (of those on one side, when both sides count) hold one distance each, the
    rest grow by a constant factor up to `furthest`.

    >>> table = torch.arange(8.0)[:, None]
    >>> Buckets(table, bidirectional=False, max_distance=16).at(*torch.tensor([0, 0, 9, 1]))
    tensor(6.)
    """

    table: Float[Tensor, "bucket head"]
    bidirectional: bool = True
    max_distance: int = 128

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.table[self.bucket(j - i), h]

    def bucket(self, relative_position: Tensor) -> Tensor:
        """The bucket of a key that stands `ahead` of the query (behind it when negative)."""
        count = self.table.shape[0]
        first = torch.zeros_like(relative_position)
        if self.bidirectional:
            count //= 2
            first = (relative_position > 0) * count
            far = relative_position.abs()
        else:
            far = (-relative_position).clamp(min=0)
        single = count // 2
        # float32 as in the published checkpoints: bucket edges are decided by its rounding
        grown = torch.log(far.float().clamp(min=1) / single) / torch.log(
            torch.tensor(self.max_distance / single)
        )
        wide = single + (grown * (count - single)).long()
        return first + torch.where(far < single, far, wide.clamp(max=count - 1))

    def check(self, heads: int, head_dim: int) -> None:
        _check_heads("table", self.table.shape[1], heads)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.table,)


@dataclass(frozen=True, eq=False)
class RelativeKeys(Bias):
    """A learned key for every distance, asked like any other key (Shaw et al. 2018, eq. 4).

    scale · q_i · r[j - i], distances clipped at the table's radius

    >>> ahead = RelativeKeys(torch.tensor([[0.0], [0.0], [1.0]]))  # one feature, the next key wins
    >>> rg.attention_weights(torch.full((2, 1), 999.0), torch.zeros(2, 1), bias=ahead)[0]
    tensor([0., 1.])
    """

    table: Float[Tensor, "distance head_dim"]  # distances -radius … radius

    def __post_init__(self) -> None:
        _check_odd("table", self.table.shape[0])

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        radius = self.table.shape[0] // 2
        asked = scale * (q @ self.table.to(q.dtype).mT)  # every distance once, then picked
        ahead = (grid.j - grid.i).clamp(-radius, radius) + radius
        return asked.gather(-1, ahead.expand(*asked.shape[:-1], -1))

    def check(self, heads: int, head_dim: int) -> None:
        if self.table.shape[1] != head_dim:
            raise ShapeError(
                f"table: needs head_dim={head_dim} as q has, got {self.table.shape[1]}"
            )

    @property
    def depends_on_query(self) -> bool:
        return True

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.table,)


@dataclass(frozen=True, eq=False)
class DenseBias(Bias):
    """Any numbers, given for the whole map.

    >>> q = torch.zeros(1, 1)
    >>> rg.attention_weights(q, torch.zeros(2, 1), bias=DenseBias(torch.tensor([[1.0, 4.0]]).log()))
    tensor([[0.2000, 0.8000]])
    """

    values: Float[Tensor, "... query key"]

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        return slice_dense(self.values, grid, "bias")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.values,)


@dataclass(frozen=True)
class SumBias(Bias):
    """Two biases together; written `a + b`.

    >>> both = ALiBi(torch.tensor([1.0])) + Toeplitz(torch.tensor([[0.5]]))
    >>> both.at(*torch.tensor([0, 0, 3, 1]))
    tensor(-1.5000)
    """

    a: Bias
    b: Bias

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.a.at(b, h, i, j) + self.b.at(b, h, i, j)

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        return self.a.tile(grid, q, scale) + self.b.tile(grid, q, scale)

    def check(self, heads: int, head_dim: int) -> None:
        self.a.check(heads, head_dim)
        self.b.check(heads, head_dim)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.a.tensors + self.b.tensors

    @property
    def depends_on_query(self) -> bool:
        return self.a.depends_on_query or self.b.depends_on_query


def _check_heads(name: str, got: int, heads: int) -> None:
    if got != heads:
        raise ShapeError(f"{name}: needs one for each of {heads} heads, got {got}")


def _check_odd(name: str, got: int) -> None:
    if got % 2 == 0:
        raise ShapeError(f"{name}: needs an odd count, distances -radius … radius, got {got}")
