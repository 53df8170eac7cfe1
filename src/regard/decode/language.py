"""A LanguageModel one token at a time: on a GPU by captured kernels, else by the model itself."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from regard.decode.buffers import Buffers
from regard.decode.captured import Engine, engine_of
from regard.decode.rules import Only, Rule, Without, allowed
from regard.decode.sampling import Sampling, fortunes
from regard.decode.static import Growing, Kept
from regard.errors import ShapeError
from regard.models import LanguageModel
from regard.nn import EncoderBlock, KeysValues
from regard.ops import Padding
from regard.ops.door import is_watched

CHUNK = 8  # steps until it is asked whether all rows have ended
MOST_FREE = 4  # buffers kept for the next call


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
        self.engine, self.era = engine, engine.era
        self.buffers = engine.lend(rows, room)

    def __del__(self) -> None:
        # graphs of weights that have moved since are of no use
        if hasattr(self, "buffers") and self.era is self.engine.era:
            self.engine.free = [self.buffers, *self.engine.free[: MOST_FREE - 1]]


class LanguageStepper:
    """A LanguageModel, step by step; prompts of several lengths are moved to end together.

    On a GPU, with nobody looking and no gradient asked for, captured kernels take the steps.
    """

    def __init__(self, model: LanguageModel):
        self.model, self.engine = model, engine_of(model)

    def start(
        self, tokens: Tensor, lengths: Tensor | None = None
    ) -> "LanguageState | CapturedState":
        skip = None
        if lengths is not None:
            tokens, skip = _to_the_right(tokens, lengths), tokens.shape[1] - lengths
        tokens = tokens[:, :-1]  # the last is the search's to give: its logits are the first wanted
        if not torch.is_grad_enabled() and self.engine.ready():
            return self._captured(tokens, skip)
        state = LanguageState(Kept(), skip)
        return (
            self._read(tokens, state, scored=is_watched(self.model))[1]
            if tokens.shape[1]
            else state
        )

    def step(
        self, tokens: Tensor, state: "LanguageState | CapturedState"
    ) -> "tuple[Tensor, LanguageState | CapturedState]":
        if isinstance(state, CapturedState):
            if not is_watched(self.model) and self._fits(state, 1):
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
        if not (known and isinstance(state, CapturedState) and self.engine.ready()):
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
        todo = [(at, min(CHUNK, limit - at)) for at in range(0, limit, CHUNK)]
        under_way = self._run(b, *todo[0], how)
        for following in (*todo[1:], None):
            found, over = under_way
            if following is not None:  # sent before anybody waits: the GPU is never idle
                under_way = self._run(b, *following, how)
            steps = zip(*(x.unbind(1) for x in found), strict=True)
            for step, last in zip(steps, over(), strict=True):
                yield cast(tuple[Tensor, Tensor, Tensor], step)
                if last:
                    return

    @torch.no_grad()
    def _run(
        self, b: Buffers, begin: int, count: int, how: Sampling | None
    ) -> tuple[list[Tensor], Callable[[], list[bool]]]:
        """Some steps, not waited for; and a way to ask after which of them all rows had ended."""
        self.engine.run(b, count, how)
        b.filled += count
        now = slice(begin, begin + count)
        found = [b.tokens[:, now].clone(), b.chances[:, now].clone(), b.ends[:, now].bool()]
        return found, _sent(found[2].all(0))

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

    def _captured(self, tokens: Tensor, skip: Tensor | None) -> CapturedState:
        rows, time = tokens.shape
        lease = Lease(self.engine, rows, time + 1)
        b = lease.buffers

        def read() -> None:
            kept = self._read(b.tokens[:, :time], LanguageState(Kept(), skip), scored=False)[1].kept
            for n, block in enumerate(self._blocks()):
                k, v = kept.layers[block.self_attention]
                b.keys[n, :, :, :time], b.values[n, :, :, :time] = k, v

        if time:
            b.tokens[:, :time] = tokens
            if skip is None and self.model.config.window is None:
                self.engine.read(b, time, read)
            else:  # masks that ask about their lengths
                read()
        _begin(b, time, skip)
        return CapturedState(lease, time, skip)

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


def _sent(x: Tensor) -> Callable[[], list[bool]]:
    """On its way to the CPU; who asks for it waits for this alone, not for what was sent later."""
    if not x.is_cuda:
        return x.tolist
    there = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    there.copy_(x, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def arrived() -> list[bool]:
        event.synchronize()
        return there.tolist()

    return arrived


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
