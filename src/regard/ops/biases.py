"""Attention biases: position-dependent numbers added to the scores. Biases add up with +.

Like masks, biases are functions of positions, not n × n tensors.
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.grid import Grid, slice_dense, slice_head
from regard.ops.term_registry import TERMS, register_term


class Bias:
    """Base class of biases; a subclass defines `at`.

    >>> class Later(Bias):
    ...     def at(self, b, h, i, j):
    ...         return 1.0 * j
    >>> two = Later() + Later()
    >>> two.at(*torch.tensor([0, 0, 5, 3]))
    tensor(6.)
    """

    per_head: ClassVar[tuple[str, int] | None] = None  # a field with one entry per head, its axis

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The number added to the score of query position i and key position j."""
        raise NotImplementedError

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        """`at` over a rectangle of the map; q are its queries, for a bias that depends on them."""
        return self.at(grid.b, grid.h, grid.i, grid.j)

    def check(self, heads: int, head_dim: int) -> None:
        """Raise a ShapeError if the bias does not fit these sizes."""
        if self.per_head is not None:
            name, axis = self.per_head
            if (got := getattr(self, name).shape[axis]) != heads:
                raise ShapeError(f"{name}: needs one for each of {heads} heads, got {got}")

    def head_view(self, head: int) -> "Bias | None":
        """The bias of one head; None if an unregistered bias may differ from head to head."""
        if type(self) not in TERMS:
            return None
        if self.per_head is None:
            return self
        name, axis = self.per_head
        part: dict[str, Any] = {name: getattr(self, name).narrow(axis, head, 1)}
        return replace(self, **part)  # pyright: ignore[reportArgumentType] registered: a dataclass

    @property
    def parts(self) -> "list[Bias]":
        """The biases whose sum it is."""
        return [self]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its tensors that may be trained: the fields of a dataclass."""
        values = [getattr(self, f.name) for f in fields(self)] if is_dataclass(self) else []
        return tuple(x for x in values if isinstance(x, Tensor))

    @property
    def depends_on_query(self) -> bool:
        """Whether q receives a gradient through it."""
        return False

    def __add__(self, other: "Bias") -> "Bias":
        return SumBias(self, other)


def alibi_slopes(heads: int) -> Float[Tensor, " head"]:
    """The ALiBi slopes of Press et al. 2022: 2^(-8/heads), 2^(-16/heads), …, 2^-8.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


@register_term("bias")
@dataclass(frozen=True, eq=False)
class ALiBi(Bias):
    """ALiBi: a linear penalty on distance with one slope per head, -slope · |i - j|.

    >>> ALiBi(torch.tensor([0.5])).at(*torch.tensor([0, 0, 3, 1]))
    tensor(-1.)
    """

    slopes: Float[Tensor, " head"]

    per_head = ("slopes", 0)

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return -self.slopes[h] * (i - j).abs()


@register_term("bias")
@dataclass(frozen=True, eq=False)
class Toeplitz(Bias):
    """One number per head and relative position, t[j - i], clipped at the table's radius.

    >>> Toeplitz(torch.tensor([[10.0, 0.0, 20.0]])).at(*torch.tensor([0, 0, 5, 1]))
    tensor(10.)
    """

    table: Float[Tensor, "head distance"]  # distances -radius … radius

    per_head = ("table", 0)

    def __post_init__(self) -> None:
        _check_odd("table", self.table.shape[-1])

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        radius = self.table.shape[-1] // 2
        return self.table[h, (j - i).clamp(-radius, radius) + radius]


@register_term("bias")
@dataclass(frozen=True, eq=False)
class Buckets(Bias):
    """T5's relative bias: one number per head and distance bucket; buckets widen with distance.

    Half of the buckets (of each side, if `bidirectional`) hold one distance each, the others grow
    by a constant factor up to `max_distance`.

    >>> table = torch.arange(8.0)[:, None]
    >>> Buckets(table, bidirectional=False, max_distance=16).at(*torch.tensor([0, 0, 9, 1]))
    tensor(6.)
    """

    table: Float[Tensor, "bucket head"]
    bidirectional: bool = True
    max_distance: int = 128

    per_head = ("table", 1)

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.table[self.bucket(j - i), h]

    def bucket(self, relative_position: Tensor) -> Tensor:
        """The bucket of j - i."""
        count = self.table.shape[0]
        first = torch.zeros_like(relative_position)
        if self.bidirectional:
            count //= 2
            first = (relative_position > 0) * count
            distance = relative_position.abs()
        else:
            distance = (-relative_position).clamp(min=0)
        exact = count // 2
        # float32 as in the published checkpoints: its rounding decides the bucket edges
        log_ratio = torch.log(distance.float().clamp(min=1) / exact) / torch.log(
            torch.tensor(self.max_distance / exact)
        )
        wide = exact + (log_ratio * (count - exact)).long()
        return first + torch.where(distance < exact, distance, wide.clamp(max=count - 1))


@register_term("bias")
@dataclass(frozen=True, eq=False)
class RelativeKeys(Bias):
    """Relative position keys of Shaw et al. 2018 (eq. 4): a learned key per relative position.

    scale · q_i · r[j - i], clipped at the table's radius

    >>> ahead = RelativeKeys(torch.tensor([[0.0], [0.0], [1.0]]))  # one feature, the next key wins
    >>> rg.attention_weights(torch.full((2, 1), 999.0), torch.zeros(2, 1), bias=ahead)[0]
    tensor([0., 1.])
    """

    table: Float[Tensor, "distance head_dim"]  # distances -radius … radius

    def __post_init__(self) -> None:
        _check_odd("table", self.table.shape[0])

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        radius = self.table.shape[0] // 2
        products = scale * (q @ self.table.to(q.dtype).mT)  # once per relative position
        index = (grid.j - grid.i).clamp(-radius, radius) + radius
        return products.gather(-1, index.expand(*products.shape[:-1], -1))

    def check(self, heads: int, head_dim: int) -> None:
        if self.table.shape[1] != head_dim:
            raise ShapeError(
                f"table: needs head_dim={head_dim} as q has, got {self.table.shape[1]}"
            )

    @property
    def depends_on_query(self) -> bool:
        return True


@register_term("bias")
@dataclass(frozen=True, eq=False)
class DenseBias(Bias):
    """Any numbers, given as a tensor for the whole map.

    >>> q = torch.zeros(1, 1)
    >>> rg.attention_weights(q, torch.zeros(2, 1), bias=DenseBias(torch.tensor([[1.0, 4.0]]).log()))
    tensor([[0.2000, 0.8000]])
    """

    values: Float[Tensor, "... query key"]

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        return slice_dense(self.values, grid, "bias")

    def head_view(self, head: int) -> Bias:
        return DenseBias(slice_head(self.values, head))


@register_term("bias")
@dataclass(frozen=True)
class SumBias(Bias):
    """Sum of two biases, `a + b`.

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

    def head_view(self, head: int) -> Bias | None:
        a, b = self.a.head_view(head), self.b.head_view(head)
        return None if a is None or b is None else SumBias(a, b)

    @property
    def parts(self) -> list[Bias]:
        return self.a.parts + self.b.parts

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.a.tensors + self.b.tensors

    @property
    def depends_on_query(self) -> bool:
        return self.a.depends_on_query or self.b.depends_on_query


def _check_odd(name: str, got: int) -> None:
    if got % 2 == 0:
        raise ShapeError(f"{name}: needs an odd count, distances -radius … radius, got {got}")
