"""A LanguageModel one token at a time: on a GPU by captured kernels, else by the model itself."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from regard.decode.cache import KVCache
from regard.decode.constraints import AllowedTokens, SuppressTokens, TokenConstraint, allowed_mask
from regard.decode.gpu.buffers import StepBuffers
from regard.decode.gpu.engine import CudaGraphEngine, get_engine
from regard.decode.sampling import Sampling, row_uniforms
from regard.errors import ShapeError
from regard.models import LanguageModel
from regard.ops import Padding
from regard.ops.intercept import is_intercepted

STEPS_PER_SYNC = 8  # steps until it is asked whether all rows have ended
MAX_FREE_BUFFERS = 4  # buffers kept for the next call


@dataclass(frozen=True)
class LanguageState:
    """What was read and written, and how many places at the left of each row hold nothing."""

    cache: KVCache
    left_padding: Tensor | None


@dataclass(frozen=True)
class GpuState:
    """The same in buffers of a GPU; `home` says in which row of them each past step stands."""

    lease: "BufferLease"
    length: int
    left_padding: Tensor | None
    cache_rows: Tensor | None = None


class BufferLease:
    """Buffers while some state needs them; then they are free for the next."""

    def __init__(self, engine: CudaGraphEngine, rows: int, capacity: int):
        self.engine, self.version = engine, engine.version
        self.buffers = engine.acquire(rows, capacity)

    def __del__(self) -> None:
        # graphs of weights that have moved since are of no use
        if hasattr(self, "buffers") and self.version is self.engine.version:
            self.engine.free_buffers = [
                self.buffers,
                *self.engine.free_buffers[: MAX_FREE_BUFFERS - 1],
            ]


class LanguageStepper:
    """A LanguageModel, step by step; prompts of several lengths are moved to end together.

    On a GPU, with nobody looking and no gradient asked for, captured kernels take the steps.
    """

    def __init__(self, model: LanguageModel):
        self.model, self.engine = model, get_engine(model)

    def start(self, tokens: Tensor, lengths: Tensor | None = None) -> "LanguageState | GpuState":
        skip = None
        if lengths is not None:
            tokens, skip = _to_the_right(tokens, lengths), tokens.shape[1] - lengths
        tokens = tokens[:, :-1]  # the last is the search's to give: its logits are the first wanted
        if not torch.is_grad_enabled() and self.engine.ready():
            return self._captured(tokens, skip)
        state = LanguageState(KVCache(), skip)
        return (
            self._read(tokens, state, scored=is_intercepted(self.model))[1]
            if tokens.shape[1]
            else state
        )

    def step(
        self, tokens: Tensor, state: "LanguageState | GpuState"
    ) -> "tuple[Tensor, LanguageState | GpuState]":
        if isinstance(state, GpuState):
            if not is_intercepted(self.model) and self._fits(state, 1):
                return self._quick_step(tokens, state)
            state = self._slowly(state)
        logits, state = self._read(tokens[:, None], state)
        return logits[:, -1], state

    def select(self, state: "LanguageState | GpuState", rows: Tensor) -> "LanguageState | GpuState":
        skip = None if state.left_padding is None else state.left_padding[rows]
        if isinstance(state, LanguageState):
            return LanguageState(state.cache.select(rows), skip)
        lease = state.lease
        home = _homes(lease.buffers) if state.cache_rows is None else state.cache_rows
        if len(rows) != lease.buffers.rows:
            return self._moved(
                replace(state, cache_rows=home[rows], left_padding=skip), state.length + 1
            )
        # rows move by name only: what they wrote stays where it is
        past = torch.arange(lease.buffers.capacity, device=rows.device) < state.length
        home = torch.where(past, home[rows], _homes(lease.buffers))
        return GpuState(lease, state.length, skip, home)

    def generate(
        self,
        first: Tensor,
        state: "LanguageState | GpuState",
        *,
        end: int,
        max_new_tokens: int,
        sampling: Sampling | None,
        constraints: Sequence[TokenConstraint],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]] | None:
        """Tokens, log-probabilities and whether rows have ended, many steps a question; or None.

        None where it takes a step at a time: a rule that changes with what is written, or a model
        that somebody looks at.
        """
        known = all(isinstance(rule, AllowedTokens | SuppressTokens) for rule in constraints)
        if not (known and isinstance(state, GpuState) and self.engine.ready()):
            return None
        if not self._fits(state, max_new_tokens):
            return None
        return self._write(first, state, end, max_new_tokens, sampling, constraints)

    def _write(
        self,
        first: Tensor,
        state: GpuState,
        end: int,
        limit: int,
        how: Sampling | None,
        rules: Sequence[TokenConstraint],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        with torch.no_grad():
            state, b = self._ready(state, limit)
            vocab = self.model.config.vocab
            may = allowed_mask(rules, first.new_empty(len(first), 0), vocab)
            b.suppress_mask.copy_(torch.zeros(vocab, device=first.device) if may is None else ~may)
            b.token.copy_(first)
            b.start_lengths.copy_(b.lengths)
            b.ended.zero_()
            b.end.fill_(end)
            if how is not None:
                b.uniforms[:, :limit] = row_uniforms(how.seed, len(first), limit).to(first.device)
        todo = [(at, min(STEPS_PER_SYNC, limit - at)) for at in range(0, limit, STEPS_PER_SYNC)]
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
        self, b: StepBuffers, begin: int, count: int, how: Sampling | None
    ) -> tuple[list[Tensor], Callable[[], list[bool]]]:
        """Some steps, not waited for; and a way to ask after which of them all rows had ended."""
        self.engine.run_steps(b, count, how)
        b.length += count
        now = slice(begin, begin + count)
        found = [
            b.output_tokens[:, now].clone(),
            b.log_probs[:, now].clone(),
            b.end_flags[:, now].bool(),
        ]
        return found, _sent(found[2].all(0))

    def _quick_step(self, tokens: Tensor, state: GpuState) -> tuple[Tensor, GpuState]:
        state, b = self._ready(state, 1)
        b.token.copy_(tokens)
        logits = self.engine.step(b).clone()
        b.length += 1
        return logits, replace(state, length=state.length + 1)

    def _ready(self, state: GpuState, steps: int) -> tuple[GpuState, StepBuffers]:
        """Buffers that hold this state's past and have room for more, and nobody else's future."""
        b = state.lease.buffers
        if b.length != state.length or b.capacity < state.length + steps:
            home = _homes(b) if state.cache_rows is None else state.cache_rows
            state = self._moved(replace(state, cache_rows=home), state.length + steps)
            b = state.lease.buffers
        if state.cache_rows is not None:
            b.cache_rows.copy_(state.cache_rows)
        b.use_cache_rows = state.cache_rows is not None
        return state, b

    def _moved(self, state: GpuState, room: int) -> GpuState:
        """Every row's past together in a row of new buffers."""
        assert state.cache_rows is not None
        old, rows = state.lease.buffers, len(state.cache_rows)
        lease = BufferLease(self.engine, rows, room)
        time, at = state.length, state.cache_rows[:, : state.length].long()[None, :, None, :, None]
        new = lease.buffers
        for some, past in ((new.keys, old.keys), (new.values, old.values)):
            index = at.expand(len(past), -1, past.shape[2], -1, past.shape[4])
            some[:, :, :, :time] = past[:, :, :, :time].gather(1, index)
        _begin(new, time, state.left_padding)
        return GpuState(lease, time, state.left_padding)

    def _captured(self, tokens: Tensor, skip: Tensor | None) -> GpuState:
        rows, time = tokens.shape
        lease = BufferLease(self.engine, rows, time + 1)
        b = lease.buffers

        def read() -> None:
            cache = self._read(
                b.output_tokens[:, :time], LanguageState(KVCache(), skip), scored=False
            )[1].cache
            for n in range(self.model.config.layers):
                b.keys[n, :, :, :time], b.values[n, :, :, :time] = cache.keys_values(n)

        if time:
            b.output_tokens[:, :time] = tokens
            if skip is None and not any(self.model.config.windows):
                self.engine.prefill(b, time, read)
            else:  # masks that ask about their lengths
                read()
        _begin(b, time, skip)
        return GpuState(lease, time, skip)

    def _slowly(self, state: GpuState) -> LanguageState:
        """The same state for the model itself, which somebody came to look at."""
        b, time = state.lease.buffers, state.length
        home = _homes(b) if state.cache_rows is None else state.cache_rows
        at = home[:, :time].long()[:, None, :, None]
        index = at.expand(-1, b.keys.shape[2], -1, b.keys.shape[4])
        keys, values = ([x[:, :, :time].gather(0, index) for x in y] for y in (b.keys, b.values))
        pairs = list(zip(keys, values, strict=True))
        return LanguageState(KVCache.from_layers(pairs, time), state.left_padding)

    def _fits(self, state: GpuState, steps: int) -> bool:
        config = self.model.config  # where learned positions end the model itself says so
        return config.positions != "learned" or state.length + steps <= config.max_positions

    def _read(
        self, tokens: Tensor, state: LanguageState, *, scored: bool = True
    ) -> tuple[Tensor, LanguageState]:
        cache, time = state.cache.append(tokens.shape[1]), state.cache.length
        mask = positions = None
        if state.left_padding is not None:
            after = time + tokens.shape[1]
            mask = Padding(torch.full_like(state.left_padding, after), state.left_padding)
            places = torch.arange(time, after, device=tokens.device)
            positions = (places - state.left_padding[:, None]).clamp(min=0)
        read = self.model if scored else self.model.hidden_states
        out = read(tokens, mask=mask, positions=positions, offset=time, cache=cache)
        return out, replace(state, cache=cache.new_cache())


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


def _begin(b: StepBuffers, time: int, skip: Tensor | None) -> None:
    b.lengths.fill_(time)
    b.length = time
    if skip is None:
        b.left_padding.zero_()
    else:
        b.left_padding.copy_(skip)


def _homes(b: StepBuffers) -> Tensor:
    rows = torch.arange(b.rows, dtype=torch.int32, device=b.token.device)
    return rows[:, None].expand(b.rows, b.capacity)


def _to_the_right(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Rows shifted so that all end in the last column; what wraps around to the left is hidden."""
    time = tokens.shape[1]
    if lengths.min() < 1 or lengths.max() > time:
        raise ShapeError(f"lengths: needs 1 to {time}, one token at least, got {lengths.tolist()}")
    places = torch.arange(time, device=tokens.device) - (time - lengths)[:, None]
    return tokens.gather(1, places % time)
