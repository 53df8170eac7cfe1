"""A LanguageModel one token at a time: on a GPU by captured kernels, else by the model itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from regard.decode.buffers import Buffers
from regard.decode.captured import Engine, can_capture
from regard.decode.rules import Only, Rule, Without, allowed
from regard.decode.sampling import Sampling, fortunes
from regard.decode.static import Growing, Kept
from regard.errors import ShapeError
from regard.models import LanguageModel
from regard.nn import EncoderBlock, KeysValues
from regard.ops import Padding
from regard.ops.door import is_watched

CHUNKS = (8, 8, 16)  # steps until it is asked whether all rows have ended; then LAST each time
LAST = 32


@dataclass(frozen=True)
class LanguageState:
    """What was read and written, and how many places at the left of each row hold nothing."""

    kept: Kept
    skip: Tensor | None


@dataclass(frozen=True)
class CapturedState:
    """The same in buffers of a GPU; `home` says in which row of them each past step stands."""

    lease: "Lease"
    time: int
    skip: Tensor | None
    home: Tensor | None = None


class Lease:
    """Buffers while some state needs them; then they are free for the next."""

    def __init__(self, engine: Engine, rows: int, room: int):
        self.engine, self.buffers = engine, engine.lend(rows, room)

    def __del__(self) -> None:
        if hasattr(self, "buffers"):
            self.engine.free.append(self.buffers)


class LanguageStepper:
    """A LanguageModel, step by step; prompts of several lengths are moved to end together.

    On a GPU, with nobody looking and no gradient asked for, captured kernels take the steps.
    """

    def __init__(self, model: LanguageModel):
        self.model, self.engine = model, Engine(model)

    def start(
        self, tokens: Tensor, lengths: Tensor | None = None
    ) -> "LanguageState | CapturedState":
        skip = None
        if lengths is not None:
            tokens, skip = _to_the_right(tokens, lengths), tokens.shape[1] - lengths
        state = LanguageState(Kept(), skip)
        if tokens.shape[1] > 1:
            # the last token is the search's to give: its logits are the first that are wanted
            state = self._read(tokens[:, :-1], state, scored=is_watched())[1]
        if not torch.is_grad_enabled() and can_capture(self.model):
            return self._captured(state, len(tokens))
        return state

    def step(
        self, tokens: Tensor, state: "LanguageState | CapturedState"
    ) -> "tuple[Tensor, LanguageState | CapturedState]":
        if isinstance(state, CapturedState):
            if not is_watched() and self._fits(state, 1):
                return self._quick_step(tokens, state)
            state = self._slowly(state)
        logits, state = self._read(tokens[:, None], state)
        return logits[:, -1], state

    def select(
        self, state: "LanguageState | CapturedState", rows: Tensor
    ) -> "LanguageState | CapturedState":
        skip = None if state.skip is None else state.skip[rows]
        if isinstance(state, LanguageState):
            return LanguageState(state.kept.select(rows), skip)
        lease = state.lease
        home = _homes(lease.buffers) if state.home is None else state.home
        if len(rows) != lease.buffers.rows:
            return self._moved(replace(state, home=home[rows], skip=skip), state.time + 1)
        # rows move by name only: what they wrote stays where it is
        past = torch.arange(lease.buffers.room, device=rows.device) < state.time
        home = torch.where(past, home[rows], _homes(lease.buffers))
        return CapturedState(lease, state.time, skip, home)

    def write(
        self,
        first: Tensor,
        state: "LanguageState | CapturedState",
        *,
        end: int,
        limit: int,
        how: Sampling | None,
        rules: Sequence[Rule],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]] | None:
        """Tokens, log-probabilities and whether rows have ended, many steps a question; or None.

        None where it takes a step at a time: a rule that changes with what is written, or a model
        that somebody looks at.
        """
        known = all(isinstance(rule, Only | Without) for rule in rules)
        if not (known and isinstance(state, CapturedState) and can_capture(self.model)):
            return None
        if not self._fits(state, limit):
            return None
        return self._write(first, state, end, limit, how, rules)

    def _write(
        self,
        first: Tensor,
        state: CapturedState,
        end: int,
        limit: int,
        how: Sampling | None,
        rules: Sequence[Rule],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        with torch.no_grad():
            state, b = self._ready(state, limit)
            vocab = self.model.config.vocab
            may = allowed(rules, first.new_empty(len(first), 0), vocab)
            b.barred.copy_(torch.zeros(vocab, device=first.device) if may is None else ~may)
            b.token.copy_(first)
            b.base.copy_(b.time)
            b.ended.zero_()
            b.end.fill_(end)
            if how is not None:
                b.luck[:, :limit] = fortunes(how.seed, len(first), limit).to(first.device)
        done, chunks = 0, iter(CHUNKS)
        while done < limit:
            count = min(next(chunks, LAST), limit - done)
            with torch.no_grad():
                self.engine.run(b, count, how)
                b.filled += count
                now = slice(done, done + count)
                found = [x[:, now].clone() for x in (b.tokens, b.chances, b.ends.bool())]
                over = found[2].all(0).tolist()  # the one moment that waits for the GPU
            for n, last in enumerate(over):
                tokens, chances, ended = (x[:, n] for x in found)
                yield tokens, chances, ended
                if last:
                    return
            done += count

    def _quick_step(self, tokens: Tensor, state: CapturedState) -> tuple[Tensor, CapturedState]:
        state, b = self._ready(state, 1)
        b.token.copy_(tokens)
        logits = self.engine.step(b).clone()
        b.filled += 1
        return logits, replace(state, time=state.time + 1)

    def _ready(self, state: CapturedState, steps: int) -> tuple[CapturedState, Buffers]:
        """Buffers that hold this state's past and have room for more, and nobody else's future."""
        b = state.lease.buffers
        if b.filled != state.time or b.room < state.time + steps:
            home = _homes(b) if state.home is None else state.home
            state = self._moved(replace(state, home=home), state.time + steps)
            b = state.lease.buffers
        if state.home is not None:
            b.home.copy_(state.home)
        b.moved = state.home is not None
        return state, b

    def _moved(self, state: CapturedState, room: int) -> CapturedState:
        """Every row's past together in a row of new buffers."""
        assert state.home is not None
        old, rows = state.lease.buffers, len(state.home)
        lease = Lease(self.engine, rows, room)
        time, at = state.time, state.home[:, : state.time].long()[None, :, None, :, None]
        new = lease.buffers
        for some, past in ((new.keys, old.keys), (new.values, old.values)):
            index = at.expand(len(past), -1, past.shape[2], -1, past.shape[4])
            some[:, :, :, :time] = past[:, :, :, :time].gather(1, index)
        _begin(new, time, state.skip)
        return CapturedState(lease, time, state.skip)

    def _captured(self, state: LanguageState, rows: int) -> CapturedState:
        time = state.kept.time
        lease = Lease(self.engine, rows, time + 1)
        b, kept = lease.buffers, state.kept.layers
        for n, block in enumerate(self._blocks()):
            if time:
                k, v = kept[block.self_attention]
                b.keys[n, :, :, :time], b.values[n, :, :, :time] = k, v
        _begin(b, time, state.skip)
        return CapturedState(lease, time, state.skip)

    def _slowly(self, state: CapturedState) -> LanguageState:
        """The same state for the model itself, which somebody came to look at."""
        b, time = state.lease.buffers, state.time
        home = _homes(b) if state.home is None else state.home
        at = home[:, :time].long()[:, None, :, None]
        kept: dict[nn.Module, KeysValues] = {}
        for n, block in enumerate(self._blocks()):
            index = at.expand(-1, b.keys.shape[2], -1, b.keys.shape[4])
            pair = [x[n][:, :, :time].gather(0, index) for x in (b.keys, b.values)]
            kept[block.self_attention] = pair[0], pair[1]
        return LanguageState(Kept.of(kept, time), state.skip)

    def _blocks(self) -> list[EncoderBlock]:
        return cast(list[EncoderBlock], list(self.model.decoder.blocks))

    def _fits(self, state: CapturedState, steps: int) -> bool:
        config = self.model.config  # where learned positions end the model itself says so
        return config.positions != "learned" or state.time + steps <= config.max_time

    def _read(
        self, tokens: Tensor, state: LanguageState, *, scored: bool = True
    ) -> tuple[Tensor, LanguageState]:
        cache, time = Growing(state.kept, tokens.shape[1]), state.kept.time
        mask = positions = None
        if state.skip is not None:
            after = time + tokens.shape[1]
            mask = Padding(torch.full_like(state.skip, after), state.skip)
            places = torch.arange(time, after, device=tokens.device)
            positions = (places - state.skip[:, None]).clamp(min=0)
        read = self.model if scored else self.model.vectors
        out = read(tokens, mask=mask, positions=positions, offset=time, cache=cache)
        return out, replace(state, kept=cache.kept())


def _begin(b: Buffers, time: int, skip: Tensor | None) -> None:
    b.time.fill_(time)
    b.filled = time
    if skip is None:
        b.skip.zero_()
    else:
        b.skip.copy_(skip)


def _homes(b: Buffers) -> Tensor:
    rows = torch.arange(b.rows, dtype=torch.int32, device=b.token.device)
    return rows[:, None].expand(b.rows, b.room)


def _to_the_right(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Rows shifted so that all end in the last column; what wraps around to the left is hidden."""
    time = tokens.shape[1]
    if lengths.min() < 1 or lengths.max() > time:
        raise ShapeError(f"lengths: needs 1 to {time}, one token at least, got {lengths.tolist()}")
    places = torch.arange(time, device=tokens.device) - (time - lengths)[:, None]
    return tokens.gather(1, places % time)
