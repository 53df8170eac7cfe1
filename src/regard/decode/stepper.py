"""Models one token at a time: what a search asks of a model, and how each kind answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.decode.quick import Quick, QuickState, apart, is_plain
from regard.errors import ConfigError, ShapeError
from regard.models import LanguageModel, RecurrentTranslator, Translator
from regard.nn import DecoderBlock, KeysValues, RecurrentMemory
from regard.ops import Padding
from regard.ops.door import is_watched
from regard.ops.recurrence import State


@runtime_checkable
class Stepper(Protocol):
    """What a search needs: a state to start from, one more token, and rows in another order.

    A state is never changed in place, so an old one may be gone on from twice.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> isinstance(make_stepper(model), Stepper)
    True
    """

    def start(
        self, tokens: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Any:
        """The state after reading: a whole source, or a prompt but for its last token."""
        ...

    def step(
        self, tokens: Int[Tensor, " batch"], state: Any
    ) -> tuple[Float[Tensor, "batch vocab"], Any]:
        """The logits after one more token, and the state to go on from."""
        ...

    def select(self, state: Any, rows: Int[Tensor, " rows"]) -> Any:
        """The state of these rows, in this order; a row may be asked for twice."""
        ...


def make_stepper(model: nn.Module) -> Stepper:
    """The stepper for a model: of a translator, a recurrent one, or a language model.

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
        return LanguageStepper(model)
    raise ConfigError(
        f"model: needs a Translator, RecurrentTranslator or LanguageModel, "
        f"got {type(model).__name__}; try one of these, or a Stepper of your own"
    )


@dataclass(frozen=True)
class Kept:
    """The keys and values that each attention made so far, and how many tokens those are."""

    layers: dict[nn.Module, KeysValues] = field(default_factory=dict)
    time: int = 0

    def select(self, rows: Tensor) -> "Kept":
        return Kept({site: (k[rows], v[rows]) for site, (k, v) in self.layers.items()}, self.time)


class _Growing:
    """The `cache` of one call: joins the new keys to the kept ones, and keeps the old as it was."""

    def __init__(self, kept: Kept):
        self.old, self.new = kept.layers, dict[nn.Module, KeysValues]()

    def __call__(self, site: nn.Module, k: Tensor, v: Tensor) -> KeysValues:
        if site in self.old:
            old_k, old_v = self.old[site]
            k, v = torch.cat([old_k, k], -2), torch.cat([old_v, v], -2)
        self.new[site] = k, v
        return k, v


@dataclass(frozen=True)
class TranslatorState:
    """What was read, as keys and values of every layer, and what was written so far."""

    memory: list[KeysValues]
    lengths: Tensor | None
    kept: Kept


class TranslatorStepper:
    """A Translator, step by step: the source is projected once, the written tokens are cached.

    On a CPU, with nobody looking and no gradient asked for, `Quick` takes the steps.
    """

    def __init__(self, model: Translator):
        self.model, self.quick = model, Quick(model)

    def start(
        self, tokens: Tensor, lengths: Tensor | None = None
    ) -> "TranslatorState | QuickState":
        whole = lengths is None or bool((lengths > 0).all())
        if whole and not torch.is_grad_enabled() and is_plain(self.model):
            return self.quick.start(tokens, lengths)
        memory = self.model.encode(tokens, lengths)
        return TranslatorState(self.model.decoder.project_memory(memory), lengths, Kept())

    def step(
        self, tokens: Tensor, state: "TranslatorState | QuickState"
    ) -> "tuple[Tensor, TranslatorState | QuickState]":
        if isinstance(state, QuickState):
            if not is_watched():
                return self.quick.step(tokens, state)
            state = self._slowly(state, len(tokens))
        cache, time = _Growing(state.kept), state.kept.time
        logits = self.model.decode(
            tokens[:, None], state.memory, state.lengths, offset=time, cache=cache
        )
        return logits[:, 0], replace(state, kept=Kept(cache.new, time + 1))

    def select(
        self, state: "TranslatorState | QuickState", rows: Tensor
    ) -> "TranslatorState | QuickState":
        if isinstance(state, QuickState):
            return self.quick.select(state, rows)
        memory = [(k[rows], v[rows]) for k, v in state.memory]
        lengths = None if state.lengths is None else state.lengths[rows]
        return TranslatorState(memory, lengths, state.kept.select(rows))

    def _slowly(self, state: QuickState, rows: int) -> TranslatorState:
        """The same state for the model itself, which somebody came to look at."""
        state = apart(state, torch.arange(rows))
        blocks = cast(Iterable[DecoderBlock], self.model.decoder.blocks)
        kept: dict[nn.Module, KeysValues] = {}
        if state.buffers is not None:
            pairs = zip(state.buffers.keys, state.buffers.values, strict=True)
            kept = {b.self_attention: kv for b, kv in zip(blocks, pairs, strict=True)}
        return TranslatorState(state.memory, state.lengths, Kept(kept, state.time))


@dataclass(frozen=True)
class RecurrentDecoding:
    """What was read, and the decoder's state after what was written."""

    memory: RecurrentMemory
    state: State


class RecurrentStepper:
    """A RecurrentTranslator, step by step; its state is all there is to keep."""

    def __init__(self, model: RecurrentTranslator):
        self.model = model

    def start(self, tokens: Tensor, lengths: Tensor | None = None) -> RecurrentDecoding:
        memory = self.model.encode(tokens, lengths)
        return RecurrentDecoding(memory, self.model.start(memory))

    def step(self, tokens: Tensor, state: RecurrentDecoding) -> tuple[Tensor, RecurrentDecoding]:
        logits, after = self.model.step(tokens, state.state, state.memory)
        return logits, replace(state, state=after)

    def select(self, state: RecurrentDecoding, rows: Tensor) -> RecurrentDecoding:
        return RecurrentDecoding(state.memory.select(rows), tuple(s[rows] for s in state.state))


@dataclass(frozen=True)
class LanguageState:
    """What was read and written, and how many places at the left of each row hold nothing."""

    kept: Kept
    skip: Tensor | None


class LanguageStepper:
    """A LanguageModel, step by step; prompts of several lengths are moved to end together."""

    def __init__(self, model: LanguageModel):
        self.model = model

    def start(self, tokens: Tensor, lengths: Tensor | None = None) -> LanguageState:
        skip = None
        if lengths is not None:
            tokens, skip = _to_the_right(tokens, lengths), tokens.shape[1] - lengths
        state = LanguageState(Kept(), skip)
        # the last token is the search's to give: its logits are the first that are wanted
        return self._read(tokens[:, :-1], state)[1] if tokens.shape[1] > 1 else state

    def step(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        logits, state = self._read(tokens[:, None], state)
        return logits[:, -1], state

    def select(self, state: LanguageState, rows: Tensor) -> LanguageState:
        skip = None if state.skip is None else state.skip[rows]
        return LanguageState(state.kept.select(rows), skip)

    def _read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        cache, time = _Growing(state.kept), state.kept.time
        mask = positions = None
        if state.skip is not None:
            after = time + tokens.shape[1]
            mask = Padding(torch.full_like(state.skip, after), state.skip)
            places = torch.arange(time, after, device=tokens.device)
            positions = (places - state.skip[:, None]).clamp(min=0)
        logits = self.model(tokens, mask=mask, positions=positions, offset=time, cache=cache)
        return logits, replace(state, kept=Kept(cache.new, time + tokens.shape[1]))


def last_tokens(
    tokens: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"] | None = None
) -> Int[Tensor, " batch"]:
    """The last real token of each prompt, which a search goes on from.

    >>> last_tokens(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([3, 2]))
    tensor([7, 9])
    """
    if lengths is None:
        return tokens[:, -1]
    return tokens.gather(1, lengths[:, None] - 1)[:, 0]


def _to_the_right(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Rows shifted so that all end in the last column; what wraps around to the left is hidden."""
    time = tokens.shape[1]
    if lengths.min() < 1 or lengths.max() > time:
        raise ShapeError(f"lengths: needs 1 to {time}, one token at least, got {lengths.tolist()}")
    places = torch.arange(time, device=tokens.device) - (time - lengths)[:, None]
    return tokens.gather(1, places % time)
