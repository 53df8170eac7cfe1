"""Recurrent encoder-decoder (RNN, GRU, LSTM), with or without attention."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.config import check_choices, check_positive, check_shared_vocab, register_model
from regard.nn import (
    AttentiveRecurrent,
    BahdanauDecoder,
    LuongDecoder,
    Readout,
    Recurrent,
    RecurrentDecoder,
    RecurrentMemory,
    TokenEmbedding,
)
from regard.ops.recurrence import State

Source = Int[Tensor, "batch source"]
Target = Int[Tensor, "batch target"]
Logits = Float[Tensor, "batch target vocab"]
Lengths = Int[Tensor, " batch"] | None


@dataclass(frozen=True, kw_only=True)
class RecurrentTranslatorConfig:
    """Config of a recurrent translator.

    `attention`: none (only the last state is passed on), bahdanau or luong (the decoder attends to
    the source), hybrid (luong, and both sides attend to their past: `AttentiveRecurrent`).
    `hidden` is the width of a state; a bidirectional encoder has half of it per direction.

    >>> RecurrentTranslatorConfig(source_vocab=9, target_vocab=9, dim=8, hidden=8).bidirectional
    True
    """

    source_vocab: int
    target_vocab: int
    cell: Literal["rnn", "gru", "lstm"] = "gru"
    attention: Literal["none", "bahdanau", "luong", "hybrid"] = "luong"
    dim: int
    hidden: int
    layers: int = 1
    shared_embedding: bool = True
    tied: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "source_vocab", "target_vocab", "dim", "hidden", "layers")
        check_shared_vocab(self)
        if self.bidirectional and self.hidden % 2:
            raise ConfigError(
                f"hidden: needs an even number, half per direction, got {self.hidden}"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: needs 0 ≤ rate < 1, got {self.dropout}")

    @property
    def bidirectional(self) -> bool:
        """Whether the encoder is bidirectional; a hybrid attends to the past only."""
        return self.attention != "hybrid"


@register_model(RecurrentTranslatorConfig)
class RecurrentTranslator(nn.Module):
    """Recurrent encoder-decoder.

    memory = encode(source);   logits_t = readout(decoder(target_t, state_{t-1}, memory))

    >>> model = RecurrentTranslator(recurrent_tiny(vocab=10))
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape
    torch.Size([1, 2, 10])
    """

    def __init__(self, config: RecurrentTranslatorConfig):
        super().__init__()
        self.config = config
        dim, hidden, is_hybrid = config.dim, config.hidden, config.attention == "hybrid"
        options: Any = {"kind": config.cell, "layers": config.layers, "dropout": config.dropout}
        # a recurrent state already depends on the position
        embed = partial(TokenEmbedding, dim=dim, positions="none", dropout=config.dropout)
        self.source_embedding = self.target_embedding = embed(config.source_vocab)
        if not config.shared_embedding:
            self.target_embedding = embed(config.target_vocab)
        if is_hybrid:
            self.encoder = AttentiveRecurrent(dim, hidden, **options)
        else:
            self.encoder = Recurrent(dim, hidden // 2, bidirectional=True, **options)
        inputs = dim + hidden if config.attention == "bahdanau" else dim
        core = (AttentiveRecurrent if is_hybrid else Recurrent)(inputs, hidden, **options)
        match config.attention:
            case "none":
                self.decoder = RecurrentDecoder(core)
            case "bahdanau":
                self.decoder = BahdanauDecoder(core, hidden)
            case _:
                self.decoder = LuongDecoder(core, hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.to_readout = nn.Linear(config.hidden, config.dim)
        self.readout = Readout(config.dim, config.target_vocab, tied=config.tied, bias=True)

    def forward(self, source: Source, target: Target, source_lengths: Lengths = None) -> Logits:
        return self.decode(target, self.encode(source, source_lengths))

    def encode(self, source: Source, lengths: Lengths = None) -> RecurrentMemory:
        """Encoder states of a source (memory); it can be decoded any number of times.

        values = encoder(embed(source)),   state = the last ones, directions concatenated
        """
        values, last = self.encoder(self.source_embedding(source), lengths=lengths)
        cells = last[: 2 if self.config.cell == "lstm" else 1]  # no attention history of a hybrid
        state = tuple(s.reshape(len(source), self.config.layers, -1) for s in cells)
        return self.decoder.make_memory(self.dropout(values), lengths, state=state)

    def decode(self, target: Target, memory: RecurrentMemory) -> Logits:
        """Logits after each token of a given target (teacher forcing), as `step` computes them."""
        logits, _ = self._advance(target, self.start(memory), memory)
        return logits

    def start(self, memory: RecurrentMemory) -> State:
        """Initial decoder state: the last state of the encoder."""
        return memory.state

    def step(
        self, token: Int[Tensor, " batch"], state: State, memory: RecurrentMemory
    ) -> tuple[Float[Tensor, "batch vocab"], State]:
        """Logits after one more token, and the next state.

        The batch is the first axis of every tensor of a state, so that a search can reorder it.
        """
        logits, state = self._advance(token[:, None], state, memory)
        return logits[:, 0], state

    def _advance(
        self, target: Tensor, state: State, memory: RecurrentMemory
    ) -> tuple[Tensor, State]:
        x = self.target_embedding(target)
        h, state = self.decoder(x, state, memory)
        x = self.to_readout(self.dropout(h))
        return self.readout(x, self.target_embedding.token_embeddings), state


def recurrent_tiny(vocab: int, **changes) -> RecurrentTranslatorConfig:
    """Preset for tests and lectures: one GRU layer of width 64 per side, Luong attention.

    >>> recurrent_tiny(vocab=10, attention="none").attention
    'none'
    """
    preset = RecurrentTranslatorConfig(
        source_vocab=vocab, target_vocab=vocab, dim=64, hidden=64, dropout=0.1
    )
    return replace(preset, **changes)


def recurrent_small(vocab: int, **changes) -> RecurrentTranslatorConfig:
    """Preset that trains on a CPU: two LSTM layers of width 256 per side, Luong attention.

    >>> recurrent_small(vocab=10).cell
    'lstm'
    """
    sizes = {"cell": "lstm", "dim": 256, "hidden": 256, "layers": 2, "dropout": 0.2}
    return recurrent_tiny(vocab, **sizes | changes)
