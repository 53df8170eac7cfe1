"""Recurrent decoders: without attention, and with Bahdanau's and Luong's attention."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.recurrent.attentive import AttentiveRecurrent
from regard.nn.recurrent.layers import Recurrent
from regard.nn.recurrent.state_attention import ScoreKind, StateAttention
from regard.ops.recurrence import State

Core = Recurrent | AttentiveRecurrent


class RecurrentMemory(NamedTuple):
    """The encoder's result for a decoder: states, keys, lengths, and the initial state.

    >>> states = torch.arange(6.0).view(2, 3, 1)
    >>> memory = RecurrentMemory(states, states, None, (states[:, -1:],))
    >>> memory.select(torch.tensor([1, 1])).state[0].flatten()  # one encoding for two targets
    tensor([5., 5.])
    """

    values: Float[Tensor, "batch key value"]
    keys: Float[Tensor, "batch key dim"]
    lengths: Int[Tensor, " batch"] | None
    state: State

    def select(self, rows: Int[Tensor, " rows"]) -> "RecurrentMemory":
        """The memory of these sequences, in this order; rows may repeat."""
        return RecurrentMemory(
            self.values[rows],
            self.keys[rows],
            None if self.lengths is None else self.lengths[rows],
            tuple(s[rows] for s in self.state),
        )


class RecurrentDecoder(nn.Module):
    """Decoder without attention: the source enters only through its initial state.

    h_t = core(x_t, h_{t-1}),   h_0 = the last state of the source

    >>> layer = RecurrentDecoder(Recurrent(3, 4))
    >>> memory = layer.make_memory(torch.randn(2, 7, 6), state=(torch.zeros(2, 1, 4),))
    >>> layer(torch.randn(2, 5, 3), memory.state, memory)[0].shape
    torch.Size([2, 5, 4])
    """

    def __init__(self, core: Core):
        super().__init__()
        self.core = core

    def make_memory(
        self,
        values: Float[Tensor, "batch key value"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        state: State,
    ) -> RecurrentMemory:
        """The memory of a source, with keys projected for the attention and the initial state."""
        keys = self._project_keys(values)
        return RecurrentMemory(values, keys, lengths, self.core.initial_state(state))

    def _project_keys(self, values: Tensor) -> Tensor:
        return values

    def forward(
        self, x: Float[Tensor, "batch time dim"], state: State, memory: RecurrentMemory
    ) -> tuple[Float[Tensor, "batch time hidden"], State]:
        return self.core(x, state)


class _AttentionDecoder(RecurrentDecoder):
    """A recurrent core, and attention from its states to the source."""

    def __init__(self, core: Core, source_dim: int, score: ScoreKind):
        super().__init__(core)
        self.cross_attention = StateAttention(core.hidden, source_dim, score)

    def _project_keys(self, values: Tensor) -> Tensor:
        return self.cross_attention.project_keys(values)


class BahdanauDecoder(_AttentionDecoder):
    """Bahdanau attention: the previous state attends, and the context enters the cell.

    c_t = attend(h_{t-1}, source),   h_t = core([x_t, c_t], h_{t-1}),   by the additive score

    The core's input is as wide as x and the source together.

    >>> layer = BahdanauDecoder(Recurrent(3 + 6, 4), source_dim=6)
    >>> memory = layer.make_memory(torch.randn(2, 7, 6), state=(torch.zeros(2, 1, 4),))
    >>> layer(torch.randn(2, 5, 3), memory.state, memory)[0].shape
    torch.Size([2, 5, 4])
    """

    def __init__(self, core: Core, source_dim: int, *, score: ScoreKind = "additive"):
        super().__init__(core, source_dim, score)
        if core.dim <= source_dim:
            raise ConfigError(
                f"core: needs dim of the input + source_dim={source_dim}, got {core.dim}"
            )

    def forward(
        self, x: Float[Tensor, "batch time dim"], state: State, memory: RecurrentMemory
    ) -> tuple[Float[Tensor, "batch time hidden"], State]:
        outs = []
        for x_t in x.split(1, 1):
            query = state[0][:, -1:]  # the top layer's h
            c = self.cross_attention(query, memory.keys, memory.values, memory.lengths)
            out, state = self.core(torch.cat([x_t, c], -1), state)
            outs.append(out)
        return torch.cat(outs, 1), state


class LuongDecoder(_AttentionDecoder):
    """Luong attention: the new state attends, and the context enters the output.

    h_t = core(x_t, h_{t-1}),   c_t = attend(h_t, source),   out_t = tanh(W [c_t, h_t])

    The context does not enter the core, so a known target is processed in one call.

    >>> layer = LuongDecoder(Recurrent(3, 4), source_dim=6)
    >>> memory = layer.make_memory(torch.randn(2, 7, 6), state=(torch.zeros(2, 1, 4),))
    >>> layer(torch.randn(2, 5, 3), memory.state, memory)[0].shape
    torch.Size([2, 5, 4])
    """

    def __init__(self, core: Core, source_dim: int, *, score: ScoreKind = "general"):
        super().__init__(core, source_dim, score)
        self.mix = nn.Linear(source_dim + core.hidden, core.hidden, bias=False)

    def forward(
        self, x: Float[Tensor, "batch time dim"], state: State, memory: RecurrentMemory
    ) -> tuple[Float[Tensor, "batch time hidden"], State]:
        h, state = self.core(x, state)
        c = self.cross_attention(h, memory.keys, memory.values, memory.lengths)
        return torch.tanh(self.mix(torch.cat([c, h], -1))), state
