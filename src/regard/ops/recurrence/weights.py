"""Weights of recurrent cells, and their conversion from and to other layouts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError

Kind = TypeVar("Kind", bound="CellWeights")
State = tuple[Tensor, ...]  # (h,), or (h, c) for an LSTM


@dataclass(frozen=True, eq=False)
class CellWeights:
    """The weights of one cell in column notation, one block of `hidden` rows per gate.

    W x + b_W,   U h + b_U

    `gates` names the blocks from top to bottom, `states` the tensors of the state.

    >>> GRUWeights.gates, LSTMWeights.gates
    (('z', 'r', 'candidate'), ('i', 'f', 'o', 'candidate'))
    """

    w: Float[Tensor, "rows dim"]
    u: Float[Tensor, "rows hidden"]
    w_bias: Float[Tensor, " rows"] | None = None
    u_bias: Float[Tensor, " rows"] | None = None

    gates: ClassVar[tuple[str, ...]] = ()
    states: ClassVar[tuple[str, ...]] = ("h",)
    torch_order: ClassVar[tuple[int, ...]] = ()  # torch's k-th block is our block torch_order[k]
    torch_sign: ClassVar[tuple[int, ...]] = ()  # of our blocks

    def __post_init__(self) -> None:
        rows, blocks = self.u.shape[0], len(self.gates)
        if rows != blocks * self.hidden:
            raise ShapeError(
                f"u: needs {blocks} blocks ({', '.join(self.gates)}) of hidden={self.hidden} rows, "
                f"got {rows} rows"
            )
        for name in ("w", "w_bias", "u_bias"):
            x = getattr(self, name)
            if x is not None and x.shape[0] != rows:
                raise ShapeError(f"{name}: needs {rows} rows as u has, got {x.shape[0]}")

    @property
    def dim(self) -> int:
        return self.w.shape[1]

    @property
    def hidden(self) -> int:
        return self.u.shape[1]

    def check(self, x: Tensor, state: State, batch: tuple[int, ...]) -> None:
        """Raise a ShapeError unless x and the state fit the cell."""
        if x.shape[-1] != self.dim:
            raise ShapeError(f"x: needs dim={self.dim} as W has columns, got {x.shape[-1]}")
        if len(state) != len(self.states):
            raise ShapeError(f"state: needs ({', '.join(self.states)}), got {len(state)} tensors")
        for name, s in zip(self.states, state, strict=True):
            if s.shape != (*batch, self.hidden):
                raise ShapeError(f"{name}: needs {(*batch, self.hidden)}, got {tuple(s.shape)}")

    def gate(self, name: str) -> tuple[Float[Tensor, "hidden dim"], Float[Tensor, "hidden hidden"]]:
        """W and U of one gate.

        >>> GRUWeights(torch.tensor([[0.5], [-0.5], [1.0]]), torch.ones(3, 1)).gate("r")
        (tensor([[-0.5000]]), tensor([[1.]]))
        """
        if name not in self.gates:
            raise ShapeError(f"name: needs one of {', '.join(self.gates)}, got {name!r}")
        start = self.gates.index(name) * self.hidden
        return self.w[start : start + self.hidden], self.u[start : start + self.hidden]

    @classmethod
    def from_rows(
        cls: type[Kind],
        w: Float[Tensor, "dim rows"],
        u: Float[Tensor, "hidden rows"],
        w_bias: Float[Tensor, " rows"] | None = None,
        u_bias: Float[Tensor, " rows"] | None = None,
    ) -> Kind:
        """From row notation, x W + h U: the gates side by side instead of stacked.

        >>> RNNWeights.from_rows(torch.tensor([[1.0, 2.0]]), torch.eye(2)).w
        tensor([[1.],
                [2.]])
        """
        return cls(w.mT, u.mT, w_bias, u_bias)

    def to_rows(self) -> tuple[Float[Tensor, "dim rows"], Float[Tensor, "hidden rows"]]:
        """W and U in row notation, x W + h U; the biases are the same.

        >>> RNNWeights(torch.tensor([[1.0], [2.0]]), torch.eye(2)).to_rows()[0]
        tensor([[1., 2.]])
        """
        return self.w.mT, self.u.mT

    @classmethod
    def from_torch(
        cls: type[Kind],
        w_ih: Float[Tensor, "rows dim"],
        w_hh: Float[Tensor, "rows hidden"],
        b_ih: Float[Tensor, " rows"] | None = None,
        b_hh: Float[Tensor, " rows"] | None = None,
    ) -> Kind:
        """From the tensors of torch.nn.RNN, GRU or LSTM, whose blocks have another order.

        torch's GRU weighs the old state with z, this one the new state; as σ(-a) = 1 - σ(a), W_z,
        U_z and their biases change sign.

        >>> w = torch.tensor([[1.0], [2.0], [3.0]])  # torch stacks r, z, candidate
        >>> GRUWeights.from_torch(w, w).w.T
        tensor([[-2.,  1.,  3.]])
        """
        back = tuple(cls.torch_order.index(i) for i in range(len(cls.gates)))
        w, u, *biases = (
            None if x is None else reorder_blocks(x, back, cls.torch_sign)
            for x in (w_ih, w_hh, b_ih, b_hh)
        )
        assert w is not None
        assert u is not None
        return cls(w, u, *biases)

    def to_torch(self) -> tuple[Tensor, ...]:
        """The tensors of torch's cell: w_ih, w_hh and, with biases, b_ih and b_hh.

        >>> w = torch.tensor([[1.0], [2.0], [3.0]])  # z, r, candidate
        >>> GRUWeights(w, w).to_torch()[0].T
        tensor([[ 2., -1.,  3.]])
        """
        biases = (self.w_bias, self.u_bias)
        if biases == (None, None):
            ours = (self.w, self.u)
        else:
            zero = torch.zeros_like(self.u[:, 0])
            ours = (self.w, self.u, *(zero if b is None else b for b in biases))
        signs = [self.torch_sign[i] for i in self.torch_order]
        return tuple(reorder_blocks(x, self.torch_order, signs) for x in ours)


@dataclass(frozen=True, eq=False)
class RNNWeights(CellWeights):
    """Weights of a vanilla RNN, one block: the new state."""

    gates: ClassVar[tuple[str, ...]] = ("h",)
    torch_order: ClassVar[tuple[int, ...]] = (0,)
    torch_sign: ClassVar[tuple[int, ...]] = (1,)


@dataclass(frozen=True, eq=False)
class GRUWeights(CellWeights):
    """Weights of a GRU, three blocks: update z, reset r, candidate ĥ."""

    gates: ClassVar[tuple[str, ...]] = ("z", "r", "candidate")
    torch_order: ClassVar[tuple[int, ...]] = (1, 0, 2)
    torch_sign: ClassVar[tuple[int, ...]] = (-1, 1, 1)


@dataclass(frozen=True, eq=False)
class LSTMWeights(CellWeights):
    """Weights of an LSTM, four blocks: input i, forget f, output o, candidate c̃; state (h, c)."""

    gates: ClassVar[tuple[str, ...]] = ("i", "f", "o", "candidate")
    states: ClassVar[tuple[str, ...]] = ("h", "c")
    torch_order: ClassVar[tuple[int, ...]] = (0, 1, 3, 2)
    torch_sign: ClassVar[tuple[int, ...]] = (1, 1, 1, 1)


def reorder_blocks(x: Tensor, order: Sequence[int], signs: Sequence[int]) -> Tensor:
    """The blocks of rows in another order, each with a sign of 1 or -1; x itself if all stay."""
    if list(order) == list(range(len(order))) and min(signs) > 0:
        return x
    blocks, pairs = x.chunk(len(order)), zip(order, signs, strict=True)
    return torch.cat([blocks[i] if sign > 0 else -blocks[i] for i, sign in pairs])
