"""Recurrent layers: cells with parameters of their own, stacked, in one or both directions."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
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
from regard.ops.recurrence.steps import cell_step

CellKind = Literal["rnn", "gru", "lstm"]
CELL_WEIGHTS: dict[str, type[CellWeights]] = {
    "rnn": RNNWeights,
    "gru": GRUWeights,
    "lstm": LSTMWeights,
}
TORCH_LAYERS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class RecurrentCell(nn.Module):
    """The weights of one cell, "rnn", "gru" or "lstm"; called, it makes one step from zeros or on.

    W starts as Glorot's, U orthogonal so that a state neither fades nor grows at first, biases 0;
    the forget gate of an LSTM starts open, at σ(1).

    >>> RecurrentCell(3, 2, "gru")(torch.zeros(3)).z.tolist()
    [0.5, 0.5]
    """

    def __init__(self, dim: int, hidden: int, kind: CellKind = "gru", *, bias: bool = True):
        super().__init__()
        if kind not in CELL_WEIGHTS:
            near = get_close_matches(str(kind), CELL_WEIGHTS, 1, 0) or ["gru"]
            raise ConfigError(f"kind: needs rnn, gru or lstm, got {kind!r}; try {near[0]!r}")
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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        for w, u in zip(self.w.split(self.hidden), self.u.split(self.hidden), strict=True):
            nn.init.xavier_uniform_(w)
            nn.init.orthogonal_(u)
        for bias in (self.w_bias, self.u_bias):
            if bias is not None:
                nn.init.zeros_(bias)
        if self.kind == "lstm" and self.w_bias is not None:
            nn.init.ones_(self.w_bias.split(self.hidden)[1])

    @property
    def weights(self) -> CellWeights:
        return CELL_WEIGHTS[self.kind](self.w, self.u, self.w_bias, self.u_bias)

    def forward(self, x: Float[Tensor, "*batch dim"], state: State | None = None) -> CellStep:
        return cell_step(x, self.zero_state(x.shape[:-1]) if state is None else state, self.weights)

    def zero_state(self, batch: tuple[int, ...]) -> State:
        """A state of zeros.

        >>> RecurrentCell(3, 2, "lstm").initial_state(())
        (tensor([0., 0.]), tensor([0., 0.]))
        """
        return (self.u.new_zeros(*batch, self.hidden),) * len(CELL_WEIGHTS[self.kind].states)


class Recurrent(nn.Module):
    """Cells walked along a sequence, layer upon layer, in one direction or both.

    out¹ = recur(x),   outˡ = recur(outˡ⁻¹),   both directions side by side: [forward, backward]

    A state is h, or h and c, each with the layers (and directions, backward second) behind the
    batch. Dropout is between layers.

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
        ways = 2 if bidirectional else 1
        widths = [dim] + [ways * hidden] * (layers - 1)
        self.cells = nn.ModuleList(
            RecurrentCell(width, hidden, kind, bias=bias) for width in widths for _ in range(ways)
        )
        self.dropout = nn.Dropout(dropout)
        self.kind: CellKind = kind
        self.dim, self.hidden = dim, hidden
        self.layers, self.bidirectional = layers, bidirectional

    @property
    def output_dim(self) -> int:
        """How wide the output is."""
        return self.hidden * (2 if self.bidirectional else 1)

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        state: State | None = None,
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        backend: RecurrenceBackend = "auto",
    ) -> tuple[Float[Tensor, "batch time width"], State]:
        walks = list(self._walks(x, state, lengths=lengths, backend=backend))
        last = zip(*(walk.state for walk in walks), strict=True)
        top = walks[-2:] if self.bidirectional else walks[-1:]
        return torch.cat([walk.out for walk in top], -1), tuple(torch.stack(s, 1) for s in last)

    def gates(
        self,
        x: Float[Tensor, "batch time dim"],
        state: State | None = None,
        *,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> tuple[CellStep, ...]:
        """Every gate and state at every time, one entry a layer and direction.

        >>> [gates] = Recurrent(3, 4, kind="lstm").gates(torch.randn(1, 7, 3))
        >>> gates.f.shape
        torch.Size([1, 7, 4])
        """
        walks = self._walks(x, state, lengths=lengths, gates=True)
        return tuple(walk.gates for walk in walks if walk.gates is not None)

    def initial_state(self, state: State) -> State:
        """What `forward` takes to begin from these cells."""
        return state

    @torch.no_grad()
    def load_torch(self, module: nn.RNNBase) -> None:
        """Take over the weights of an nn.RNN, nn.GRU or nn.LSTM of the same sizes.

        >>> theirs, x = torch.nn.GRU(3, 4, batch_first=True), torch.randn(1, 5, 3)
        >>> ours = Recurrent(3, 4, kind="gru")
        >>> ours.load_torch(theirs)
        >>> torch.allclose(ours(x)[0], theirs(x)[0], atol=1e-6)
        True
        """
        self._check_theirs(module)
        for cell, theirs in zip(self.cells, module.all_weights, strict=True):
            assert isinstance(cell, RecurrentCell)
            found = CELL_WEIGHTS[self.kind].from_torch(*theirs)
            for name in ("w", "u", "w_bias", "u_bias"):
                if (ours := getattr(cell, name)) is not None:
                    ours.copy_(getattr(found, name))

    def _walks(self, x: Tensor, state: State | None, **how) -> Iterator[RecurrenceResult]:
        if state is not None:
            self._check_state(state, x.shape[0])
        ways = 2 if self.bidirectional else 1
        for layer in range(self.layers):
            outs = []
            for i in range(layer * ways, (layer + 1) * ways):
                cell, start = (
                    self.cells[i],
                    None if state is None else tuple(s[:, i] for s in state),
                )
                assert isinstance(cell, RecurrentCell)
                walk = recur(x, cell.weights, start, reverse=i % ways == 1, **how)
                outs.append(walk.out)
                yield walk
            x = self.dropout(torch.cat(outs, -1))

    def _check_state(self, state: State, batch: int) -> None:
        names = CELL_WEIGHTS[self.kind].states
        want = (batch, len(self.cells), self.hidden)
        if len(state) != len(names) or any(s.shape != want for s in state):
            shapes = ", ".join(str(tuple(s.shape)) for s in state)
            raise ShapeError(f"state: needs ({', '.join(names)}), each {want}, got ({shapes})")

    def _check_theirs(self, module: nn.RNNBase) -> None:
        if not isinstance(module, TORCH_LAYERS[self.kind]):
            raise ConfigError(
                f"module: needs an nn.{TORCH_LAYERS[self.kind].__name__} as kind={self.kind!r}, "
                f"got {type(module).__name__}"
            )
        if getattr(module, "nonlinearity", "tanh") != "tanh" or module.proj_size:
            raise ConfigError(
                "module: needs tanh and no projection, got "
                f"nonlinearity={getattr(module, 'nonlinearity', 'tanh')!r}, "
                f"proj_size={module.proj_size}"
            )
        ours = (self.dim, self.hidden, self.layers, self.bidirectional)
        theirs = (module.input_size, module.hidden_size, module.num_layers, module.bidirectional)
        bias = self.cells[0].w_bias is not None
        if (*theirs, module.bias) != (*ours, bias):
            raise ConfigError(
                f"module: needs dim, hidden, layers, bidirectional, bias of {(*ours, bias)}, "
                f"got {(*theirs, module.bias)}"
            )
