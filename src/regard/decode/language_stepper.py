"""Stepper of a LanguageModel: CUDA graphs on a GPU, else the model itself."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from regard.decode.cache import KVCache, KVStorage
from regard.decode.gpu.buffers import StepBuffers
from regard.decode.gpu.engine import CudaGraphEngine, get_engine
from regard.decode.sampling import (
    AllowedTokens,
    Sampling,
    SuppressTokens,
    TokenConstraint,
    allowed_mask,
    row_uniforms,
)
from regard.errors import ShapeError
from regard.models import LanguageModel
from regard.ops import Padding
from regard.ops.intercept import is_intercepted

STEPS_PER_SYNC = 8  # steps between checks whether all rows have ended
MAX_FREE_BUFFERS = 4  # free buffers for reuse


@dataclass(frozen=True)
class LanguageState:
    """Cache, and the left padding of each row."""

    cache: KVCache
    left_padding: Tensor | None


@dataclass(frozen=True)
class GpuState:
    """State in GPU buffers; `cache_rows` is the buffer row that holds each past step of a row."""

    lease: "BufferLease"
    length: int
    left_padding: Tensor | None
    cache_rows: Tensor | None = None  # None: row n is in buffer row n

    @property
    def resolved_cache_rows(self) -> Tensor:
        """`cache_rows`, or a table where row n is in buffer row n."""
        return _same_rows(self.lease.buffers) if self.cache_rows is None else self.cache_rows

    def past(self) -> list[Tensor]:
        """Keys and values per layer, as in `KVStorage`, the past of each row in its row."""
        time, at = self.length, self.resolved_cache_rows[:, : self.length].long()
        layers = [x[:, :, :time] for x in self.lease.buffers.storage.layers]
        index = at[:, None, :, None].expand(-1, layers[0].shape[1], -1, layers[0].shape[3])
        return [x.gather(0, index) for x in layers]


class BufferLease:
    """Buffers in use by states; returned to the engine when the last state is gone."""

    def __init__(self, engine: CudaGraphEngine, rows: int, capacity: int):
        self.engine, self.version = engine, engine.version
        self.buffers = engine.acquire(rows, capacity)

    def __del__(self) -> None:
        # graphs captured before a weight moved are useless
        if hasattr(self, "buffers") and self.version is self.engine.version:
            free = self.engine.free_buffers[: MAX_FREE_BUFFERS - 1]
            self.engine.free_buffers = [self.buffers, *free]


class LanguageStepper:
    """Stepper of a LanguageModel; prompts of different lengths are left-padded.

    On a GPU, without gradients and interception, CUDA graphs run the steps.
    """

    def __init__(self, model: LanguageModel):
        self.model, self.engine = model, get_engine(model)

    def start(self, tokens: Tensor, lengths: Tensor | None = None) -> "LanguageState | GpuState":
        skip = None
        if lengths is not None:
            tokens, skip = _left_pad(tokens, lengths), tokens.shape[1] - lengths
        tokens = tokens[:, :-1]  # the search passes the last one to `step`
        if not torch.is_grad_enabled() and self.engine.ready():
            return self._start_gpu(tokens, skip)
        state = LanguageState(KVCache(), skip)
        if tokens.shape[1]:
            _, state = self._read(tokens, state, scored=is_intercepted(self.model))
        return state

    def step(
        self, tokens: Tensor, state: "LanguageState | GpuState"
    ) -> "tuple[Tensor, LanguageState | GpuState]":
        if isinstance(state, GpuState):
            if not is_intercepted(self.model) and self._fits(state, 1):
                return self._gpu_step(tokens, state)
            state = self._to_model_state(state)
        logits, state = self._read(tokens[:, None], state)
        return logits[:, -1], state

    def select(self, state: "LanguageState | GpuState", rows: Tensor) -> "LanguageState | GpuState":
        skip = None if state.left_padding is None else state.left_padding[rows]
        if isinstance(state, LanguageState):
            return LanguageState(state.cache.select(rows), skip)
        b, cache_rows = state.lease.buffers, state.resolved_cache_rows[rows]
        if len(rows) != b.rows:
            state = replace(state, cache_rows=cache_rows, left_padding=skip)
            return self._compact(state, state.length + 1)
        # only the indirection changes; keys and values stay in place
        past = torch.arange(b.capacity, device=rows.device) < state.length
        cache_rows = torch.where(past, cache_rows, _same_rows(b))
        return GpuState(state.lease, state.length, skip, cache_rows)

    def concatenate(
        self, states: "Sequence[LanguageState | GpuState]", rows: Sequence[int]
    ) -> LanguageState:
        """The rows of several states, so many of each, as one state, padded to the longest."""
        parts = [self._to_model_state(x) if isinstance(x, GpuState) else x for x in states]
        device = next(self.model.parameters()).device
        paddings = [
            torch.zeros(n, dtype=torch.long, device=device) if x.left_padding is None
            else x.left_padding for x, n in zip(parts, rows, strict=True)
        ]  # fmt: skip
        # steps that are padding in every row of a part are dropped: a batch that never empties
        # would grow without end
        spare = [int(padding.min()) for padding in paddings]
        sizes = [x.cache.length - cut for x, cut in zip(parts, spare, strict=True)]
        length = max(sizes)
        left = [p + (length - x.cache.length) for p, x in zip(paddings, parts, strict=True)]
        template = next((x.cache.storage.layers for x in parts if x.cache.length), [])
        layers = [
            torch.cat([
                torch.nn.functional.pad(
                    x.cache.storage.layers[n][:, :, cut : x.cache.length], (0, 0, length - size, 0)
                ) if x.cache.length else old.new_zeros(count, old.shape[1], length, old.shape[3])
                for x, cut, size, count in zip(parts, spare, sizes, rows, strict=True)
            ])
            for n, old in enumerate(template)
        ]  # fmt: skip
        padding = torch.cat(left)
        state = LanguageState(KVCache(KVStorage(layers, length), length), padding)
        return state if padding.any() else replace(state, left_padding=None)

    def generate(
        self,
        first: Tensor,
        state: "LanguageState | GpuState",
        end: int,
        max_new_tokens: int,
        sampling: Sampling | None,
        constraints: Sequence[TokenConstraint],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]] | None:
        """Tokens, log-probabilities and end flags per step, with few synchronisations.

        None where single steps are needed: constraints that depend on the generated tokens, or an
        intercepted model.
        """
        static = all(isinstance(x, AllowedTokens | SuppressTokens) for x in constraints)
        if not (static and isinstance(state, GpuState) and self.engine.ready()):
            return None
        if not self._fits(state, max_new_tokens):
            return None
        with torch.no_grad():
            state, b = self._ready(state, max_new_tokens)
            none = first.new_empty(len(first), 0)
            allowed = allowed_mask(constraints, none, self.model.config.vocab)
            if allowed is None:
                b.suppress_mask.zero_()
            else:
                b.suppress_mask.copy_(~allowed)
            b.token.copy_(first)
            b.start_lengths.copy_(b.lengths)
            b.ended.zero_()
            b.end.fill_(end)
            if sampling is not None:
                uniforms = row_uniforms(sampling.seed, len(first), max_new_tokens)
                b.uniforms[:, :max_new_tokens] = uniforms.to(first.device)
        return self._generate(state, max_new_tokens, sampling)

    def _generate(
        self, state: GpuState, limit: int, sampling: Sampling | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        b = state.lease.buffers  # which the state, held here, keeps from reuse
        todo = [(at, min(STEPS_PER_SYNC, limit - at)) for at in range(0, limit, STEPS_PER_SYNC)]
        under_way = self._run(b, *todo[0], sampling)
        for following in (*todo[1:], None):
            outputs, over = under_way
            if following is not None:  # queued before waiting: the GPU is never idle
                under_way = self._run(b, *following, sampling)
            steps = zip(*(x.unbind(1) for x in outputs), strict=True)
            for step, last in zip(steps, over(), strict=True):
                yield cast(tuple[Tensor, Tensor, Tensor], step)
                if last:
                    return

    @torch.no_grad()
    def _run(
        self, b: StepBuffers, begin: int, count: int, sampling: Sampling | None
    ) -> tuple[list[Tensor], Callable[[], list[bool]]]:
        """Launch steps; the function waits and returns, per step, whether all rows have ended."""
        self.engine.run_steps(b, count, sampling)
        b.storage.length += count
        now = slice(begin, begin + count)
        outputs = [b.output_tokens[:, now].clone(), b.log_probs[:, now].clone()]
        outputs.append(b.end_flags[:, now].bool())
        return outputs, _copy_to_host(outputs[2].all(0))

    def _gpu_step(self, tokens: Tensor, state: GpuState) -> tuple[Tensor, GpuState]:
        state, b = self._ready(state, 1)
        b.token.copy_(tokens)
        logits = self.engine.step(b).clone()
        b.storage.length += 1
        return logits, replace(state, length=state.length + 1)

    def _to_model_state(self, state: GpuState) -> LanguageState:
        """The state for the model itself, whose calls are now intercepted."""
        storage = KVStorage(state.past(), state.length)
        return LanguageState(KVCache(storage, state.length), state.left_padding)

    def _ready(self, state: GpuState, steps: int) -> tuple[GpuState, StepBuffers]:
        """Buffers with this state's past, room for more, and no other state's steps."""
        b = state.lease.buffers
        if b.storage.length != state.length or b.capacity < state.length + steps:
            state = self._compact(state, state.length + steps)
            b = state.lease.buffers
        if state.cache_rows is not None:
            b.cache_rows.copy_(state.cache_rows)
        b.use_cache_rows = state.cache_rows is not None
        return state, b

    def _compact(self, state: GpuState, room: int) -> GpuState:
        """A copy in new buffers, the past of each row in its buffer row."""
        past = state.past()
        lease = BufferLease(self.engine, len(past[0]), room)
        for x, old in zip(lease.buffers.storage.layers, past, strict=True):
            x[:, :, : state.length] = old
        _begin(lease.buffers, state.length, state.left_padding)
        return GpuState(lease, state.length, state.left_padding)

    def _start_gpu(self, tokens: Tensor, skip: Tensor | None) -> GpuState:
        rows, time = tokens.shape
        lease = BufferLease(self.engine, rows, time + 1)
        b = lease.buffers

        def read() -> None:
            b.storage.length = 0  # the model writes into the buffers
            state = LanguageState(KVCache(b.storage), skip)
            self._read(b.output_tokens[:, :time], state, scored=False)

        if time:
            b.output_tokens[:, :time] = tokens
            if skip is None and not any(self.model.config.resolved_window):
                self.engine.prefill(b, time, read)
            else:  # these masks read lengths, which a graph cannot
                read()
        _begin(b, time, skip)
        return GpuState(lease, time, skip)

    def _fits(self, state: GpuState, steps: int) -> bool:
        config = self.model.config  # beyond the table the model raises
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


def _copy_to_host(x: Tensor) -> Callable[[], list[bool]]:
    """Copy to the host asynchronously; the function waits for this copy only."""
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
    b.storage.length = time
    b.left_padding[:] = 0 if skip is None else skip


def _same_rows(b: StepBuffers) -> Tensor:
    rows = torch.arange(b.rows, dtype=torch.int32, device=b.token.device)
    return rows[:, None].expand(b.rows, b.capacity)


def _left_pad(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Shift rows so that all end in the last column; what wraps around is masked."""
    time = tokens.shape[1]
    if lengths.min() < 1 or lengths.max() > time:
        raise ShapeError(f"lengths: needs 1 to {time}, one token at least, got {lengths.tolist()}")
    places = torch.arange(time, device=tokens.device) - (time - lengths)[:, None]
    return tokens.gather(1, places % time)
