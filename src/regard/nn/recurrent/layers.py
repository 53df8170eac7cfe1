"""Recurrent cells and layers: stacked, uni- or bidirectional."""

from collections.abc import Iterator
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError, suggestion
from regard.ops.recurrence import (
    CellStep,
    CellWeights,
    GRUWeights,
    LSTMWeights,
    RecurrenceResult,
    RNNWeights,
    State,
    recur,
)
from regard.ops.recurrence.op import RecurrenceBackend
from regard.ops.recurrence.reference import cell_step

CellKind = Literal["rnn", "gru", "lstm"]
CELL_WEIGHTS: dict[str, type[CellWeights]] = {
    "rnn": RNNWeights,
    "gru": GRUWeights,
    "lstm": LSTMWeights,
}


class RecurrentCell(nn.Module):
    """One recurrent cell, "rnn", "gru" or "lstm"; calling it computes one step.

    W is initialised by Xavier, U orthogonally so that states initially neither vanish nor explode,
    biases are 0; the forget gate of an LSTM starts at σ(1).

    >>> RecurrentCell(3, 2, "gru")(torch.zeros(3)).z.tolist()
    [0.5, 0.5]
    """

    def __init__(self, dim: int, hidden: int, kind: CellKind = "gru", *, bias: bool = True):
        super().__init__()
        if kind not in CELL_WEIGHTS:
            hint = suggestion(str(kind), CELL_WEIGHTS)
            raise ConfigError(f"kind: needs rnn, gru or lstm, got {kind!r}{hint}")
        for name, size in (("dim", dim), ("hidden", hidden)):
            if size < 1:
                raise ConfigError(f"{name}: needs 1 or more, got {size}")
        self.kind: CellKind = kind
        self.dim, self.hidden = dim, hidden
        rows = len(CELL_WEIGHTS[kind].gates) * hidden
        self.w = nn.Parameter(torch.empty(rows, dim))
        self.u = nn.Parameter(torch.empty(rows, hidden))
        self.w_bias = nn.Parameter(torch.zeros(rows)) if bias else None
        self.u_bias = nn.Parameter(torch.zeros(rows)) if bias else None
        for w, u in zip(self.w.split(hidden), self.u.split(hidden), strict=True):
            nn.init.xavier_uniform_(w)
            nn.init.orthogonal_(u)
        if kind == "lstm" and self.w_bias is not None:
            nn.init.ones_(self.w_bias.split(hidden)[1])

    @property
    def weights(self) -> CellWeights:
        return CELL_WEIGHTS[self.kind](self.w, self.u, self.w_bias, self.u_bias)

    def forward(self, x: Float[Tensor, "*batch dim"], state: State | None = None) -> CellStep:
        return cell_step(x, self.zero_state(x.shape[:-1]) if state is None else state, self.weights)

    def zero_state(self, batch: tuple[int, ...]) -> State:
        """A state of zeros."""
        return (self.u.new_zeros(*batch, self.hidden),) * len(CELL_WEIGHTS[self.kind].states)


class Recurrent(nn.Module):
    """Stacked recurrent layers, uni- or bidirectional.

    out¹ = recur(x),   outˡ = recur(outˡ⁻¹),   directions are concatenated: [forward, backward]

    A state is (h,) or (h, c), each (batch, layers · directions, hidden), the backward direction
    second.

    Args:
        dim: width of the input.
        hidden: width of the state.
        kind: "rnn", "gru" or "lstm".
        layers: number of layers.
        bidirectional: also run from the last step to the first.
        bias: whether the cells have biases.
        dropout: between layers.

    >>> out, (h,) = Recurrent(3, 4, layers=2, bidirectional=True)(torch.randn(5, 7, 3))
    >>> out.shape, h.shape
    (torch.Size([5, 7, 8]), torch.Size([5, 4, 4]))
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        kind: CellKind = "gru",
        layers: int = 1,
        bidirectional: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        if layers < 1:
            raise ConfigError(f"layers: needs 1 or more, got {layers}")
        directions = 2 if bidirectional else 1
        widths = [dim] + [directions * hidden] * (layers - 1)
        self.cells = nn.ModuleList(
            RecurrentCell(width, hidden, kind, bias=bias)
            for width in widths
            for _ in range(directions)
        )
        self.dropout = nn.Dropout(dropout)
        self.kind: CellKind = kind
        self.dim, self.hidden = dim, hidden
        self.layers, self.bidirectional = layers, bidirectional

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        state: State | None = None,
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        backend: RecurrenceBackend = "auto",
    ) -> tuple[Float[Tensor, "batch time width"], State]:
        results = list(self._run(x, state, lengths=lengths, backend=backend))
        last = zip(*(result.state for result in results), strict=True)
        top = results[-2:] if self.bidirectional else results[-1:]
        return torch.cat([result.out for result in top], -1), tuple(torch.stack(s, 1) for s in last)

    def gates(
        self,
        x: Float[Tensor, "batch time dim"],
        state: State | None = None,
        *,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> tuple[CellStep, ...]:
        """Every gate and state at every step, one entry per layer and direction."""
        results = self._run(x, state, lengths=lengths, gates=True)
        return tuple(result.gates for result in results if result.gates is not None)

    def initial_state(self, state: State) -> State:
        """The initial state of `forward` from the states of the cells, here unchanged."""
        return state

    def _run(self, x: Tensor, state: State | None, **options) -> Iterator[RecurrenceResult]:
        if state is not None:
            self._check_state(state, x.shape[0])
        directions = 2 if self.bidirectional else 1
        for layer in range(self.layers):
            outs = []
            for i in range(layer * directions, (layer + 1) * directions):
                start = None if state is None else tuple(s[:, i] for s in state)
                weights = cast(RecurrentCell, self.cells[i]).weights
                result = recur(x, weights, start, reverse=i % directions == 1, **options)
                outs.append(result.out)
                yield result
            x = self.dropout(torch.cat(outs, -1))

    def _check_state(self, state: State, batch: int) -> None:
        names = CELL_WEIGHTS[self.kind].states
        shape = (batch, len(self.cells), self.hidden)
        if len(state) != len(names) or any(s.shape != shape for s in state):
            shapes = ", ".join(str(tuple(s.shape)) for s in state)
            raise ShapeError(f"state: needs ({', '.join(names)}), each {shape}, got ({shapes})")
