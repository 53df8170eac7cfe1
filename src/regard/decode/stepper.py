"""Steppers: the protocol between searches and models, and its implementations."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.decode.cpu import CpuDecoder, CpuState, TranslatorState, supports_cpu_decoder
from regard.decode.language_stepper import LanguageStepper
from regard.errors import ConfigError
from regard.models import LanguageModel, NgramModel, RecurrentTranslator, Translator
from regard.nn import RecurrentMemory
from regard.ops.intercept import is_intercepted
from regard.ops.recurrence import State


@runtime_checkable
class Stepper(Protocol):
    """What a search needs of a model. States are immutable: any of them can be continued twice.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> isinstance(make_stepper(model), Stepper)
    True
    """

    def start(
        self, tokens: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Any:
        """The state after a source, or after a prompt without its last token."""
        ...

    def step(
        self, tokens: Int[Tensor, " batch"], state: Any
    ) -> tuple[Float[Tensor, "batch vocab"], Any]:
        """Logits after one more token per row, and the next state."""
        ...

    def select(self, state: Any, rows: Int[Tensor, " rows"]) -> Any:
        """The state of these rows, in this order; rows may repeat."""
        ...


def make_stepper(model: nn.Module) -> Stepper:
    """The stepper of a translator or language model in evaluation mode.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval()
    >>> stepper = make_stepper(model)
    >>> state = stepper.start(torch.tensor([[3, 4, 5]]))
    >>> logits, state = stepper.step(torch.tensor([1]), state)
    >>> logits.shape
    torch.Size([1, 9])
    """
    if model.training:
        raise ConfigError("model: needs evaluation mode, got training mode; try model.eval()")
    if isinstance(model, Translator):
        return TranslatorStepper(model)
    if isinstance(model, RecurrentTranslator):
        return RecurrentStepper(model)
    if isinstance(model, LanguageModel):
        return LanguageStepper(model) if model.ngrams is None else MixedStepper(model)
    if isinstance(model, NgramModel):
        return NgramStepper(model)
    raise ConfigError(
        f"model: needs a Translator, RecurrentTranslator, LanguageModel or NgramModel, "
        f"got {type(model).__name__}; try one of these, or a custom Stepper"
    )


class TranslatorStepper:
    """Stepper of a Translator; on a CPU, without gradients and interception, by `CpuDecoder`."""

    def __init__(self, model: Translator):
        self.model, self.cpu_decoder = model, CpuDecoder(model)

    def start(self, tokens: Tensor, lengths: Tensor | None = None) -> TranslatorState:
        memory = self.model.decoder.project_memory(self.model.encode(tokens, lengths))
        nonempty = lengths is None or bool((lengths > 0).all())
        if nonempty and not torch.is_grad_enabled() and supports_cpu_decoder(self.model):
            return self.cpu_decoder.start(tokens, lengths, memory)
        return TranslatorState(memory, lengths)

    def step(self, tokens: Tensor, state: TranslatorState) -> tuple[Tensor, TranslatorState]:
        if isinstance(state, CpuState):
            if not is_intercepted(self.model):
                return self.cpu_decoder.step(tokens, state)
            # the model itself goes on, with a source and a past per row
            rows = TranslatorState.select(state, torch.arange(len(tokens)))
            state = TranslatorState(rows.memory, rows.lengths, rows.cache)
        writer, length = state.cache.append(1), state.cache.length
        logits = self.model.decode(
            tokens[:, None], state.memory, state.lengths, offset=length, cache=writer
        )
        return logits[:, 0], replace(state, cache=writer.new_cache())

    def select(self, state: TranslatorState, rows: Tensor) -> TranslatorState:
        return state.select(rows)


RecurrentState = tuple[RecurrentMemory, State]


class RecurrentStepper:
    """Stepper of a RecurrentTranslator; a state is the encoder's memory and the decoder's state."""

    def __init__(self, model: RecurrentTranslator):
        self.model = model

    def start(self, tokens: Tensor, lengths: Tensor | None = None) -> RecurrentState:
        memory = self.model.encode(tokens, lengths)
        return memory, self.model.start(memory)

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        memory, before = state
        logits, after = self.model.step(tokens, before, memory)
        return logits, (memory, after)

    def select(self, state: RecurrentState, rows: Tensor) -> RecurrentState:
        memory, before = state
        return memory.select(rows), tuple(s[rows] for s in before)


class NgramStepper:
    """Stepper of an NgramModel; its state is the last tokens of each row, as many as it reads."""

    def __init__(self, model: NgramModel):
        self.model, self.size = model, max(1, model.config.order - 1)

    def start(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        ends = [tokens.shape[1]] * len(tokens) if lengths is None else lengths.tolist()
        rows = [row[: end - 1] for row, end in zip(tokens, ends, strict=True)]
        # padding occurs in no text: such contexts are unknown, as shorter ones are
        return torch.stack([F.pad(row, (self.size, 0))[-self.size :] for row in rows])

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.cat([state[:, 1:], tokens[:, None]], 1)
        return self.model(state)[:, -1], state

    def select(self, state: Tensor, rows: Tensor) -> Tensor:
        return state[rows]

    def concatenate(self, states: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
        return torch.cat(list(states))


class MixedStepper:
    """Stepper of a LanguageModel with n-grams: a state is that of the network, and last tokens."""

    def __init__(self, model: LanguageModel):
        assert model.ngrams is not None
        network, ngrams = LanguageStepper(model), NgramStepper(model.ngrams.tables)
        self.model, self.mixture, self.parts = model, model.ngrams, (network, ngrams)

    def start(self, tokens: Tensor, lengths: Tensor | None = None) -> tuple[Any, Tensor]:
        network, ngrams = self.parts
        return network.start(tokens, lengths), ngrams.start(tokens, lengths)

    def step(self, tokens: Tensor, state: tuple[Any, Tensor]) -> tuple[Tensor, tuple[Any, Tensor]]:
        logits, past = self.parts[0].step(tokens, state[0])
        last = torch.cat([state[1][:, 1:], tokens[:, None]], 1)
        return self.mixture(logits[:, None], last)[:, 0], (past, last)

    def select(self, state: tuple[Any, Tensor], rows: Tensor) -> tuple[Any, Tensor]:
        return self.parts[0].select(state[0], rows), state[1][rows]

    def concatenate(
        self, states: Sequence[tuple[Any, Tensor]], sizes: Sequence[int]
    ) -> tuple[Any, Tensor]:
        pasts, last = zip(*states, strict=True)
        return self.parts[0].concatenate(pasts, sizes), torch.cat(last)


def last_tokens(
    tokens: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"] | None = None
) -> Int[Tensor, " batch"]:
    """The last token of each prompt without padding, from which a search continues.

    >>> last_tokens(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([3, 2]))
    tensor([7, 9])
    """
    if lengths is None:
        return tokens[:, -1]
    return tokens.gather(1, lengths[:, None] - 1)[:, 0]
