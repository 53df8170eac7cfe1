"""A Translator on a CPU, step by step, with nothing between the products of matrices."""

from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decode.cpu.layer import CpuDecoderLayer, make_matmul, make_rotary, norm_function
from regard.models import Translator
from regard.nn import DecoderBlock, KeysValues
from regard.nn.int8 import Int8Readout
from regard.ops import sinusoidal
from regard.ops.intercept import is_intercepted

CPU_INITIAL_CAPACITY = 32  # steps that a cache starts with room for
MAX_CACHED_POSITIONS = 512  # whose codes are made at once


def supports_cpu_decoder(model: Translator) -> bool:
    """Whether these steps give what the model gives: a CPU, float32, scores without additions.

    >>> supports_cpu_decoder(rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval())
    True
    """
    config, weight = model.config, model.target_embedding.token_embeddings
    usual = config.softcap is None and not config.sinks and config.relative_bias == "none"
    # a hook of somebody who looks or edits wants the modules themselves
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    fits = weight.device.type == "cpu" and weight.dtype == torch.float32
    return usual and fits and not hooked and not is_intercepted(model)


@dataclass
class CpuKVCache:
    """Keys and values of every layer, with room for more; `filled` steps of it are taken."""

    layers: list[Tensor]
    length: int = 0

    @property
    def capacity(self) -> int:
        """How many keys of a sequence fit in."""
        return self.layers[0].shape[2]

    @property
    def keys(self) -> list[Tensor]:
        """Of every layer, (batch, head, time · each, feat)."""
        return [x[:, : x.shape[1] // 2] for x in self.layers]

    @property
    def values(self) -> list[Tensor]:
        """Likewise."""
        return [x[:, x.shape[1] // 2 :] for x in self.layers]


@dataclass(frozen=True)
class CpuState:
    """What was read and written by `each` rows a sequence, which share one cache.

    Keys of all rows of a sequence stand side by side, step after step, and are never moved: when a
    beam goes on from other rows, only `seen` changes, which says what a row's own past is.
    """

    memory: list[KeysValues]
    lengths: Tensor | None
    memory_bias: Tensor | None  # added to scores of the source: -inf at padding
    rows_per_source: int = 1
    length: int = 0
    cache: CpuKVCache | None = None
    history_mask: Tensor | None = None  # (batch, each, time · each), None: all of it


class CpuDecoder:
    """The steps themselves; weights are looked at anew at every start."""

    def __init__(self, model: Translator):
        self.model = model
        self.weight_versions: list[tuple[int, int]] = []

    def start(self, tokens: Tensor, lengths: Tensor | None) -> CpuState:
        """Read a source; its keys and values are made once."""
        self._refresh()
        memory = self.model.encode(tokens, lengths)
        projected = self.model.decoder.project_memory(memory)
        kept = [(k.contiguous(), v.contiguous()) for k, v in projected]
        return CpuState(kept, lengths, None if lengths is None else _hidden(tokens, lengths))

    def step(self, tokens: Tensor, state: CpuState) -> tuple[Tensor, CpuState]:
        """The logits after one more token of each row."""
        x, time, each = self._embed(tokens, state.length), state.length + 1, state.rows_per_source
        buffers, seen = self._room(state, len(tokens)), _own(state, len(tokens))
        added, turns = _as_scores(seen, x), make_rotary(self.layers[0], state.length)
        pairs = zip(self.layers, buffers.layers, state.memory, strict=True)
        for layer, kept, (k, v) in pairs:
            x = layer.self_attention(x, kept, time, each, added, turns)
            x = layer.cross_attention(x, k, v, each, state.memory_bias)
            x = layer.feed_forward(x)
        logits = self.readout(self.norm(x))
        scale = self.model.readout.scale
        buffers.length = time
        after = replace(state, length=time, cache=buffers, history_mask=seen)
        return (logits if scale == 1.0 else scale * logits), after

    def _embed(self, tokens: Tensor, time: int) -> Tensor:
        layer = self.model.target_embedding
        if (
            time == 0 or self.position_codes is None or time >= len(self.position_codes)
        ):  # it also asks what it gets
            return layer(tokens[:, None], offset=time)[:, 0]
        return torch.add(
            self.position_codes[time],
            F.embedding(tokens, layer.token_embeddings),
            alpha=layer.scale,
        )

    def select(self, state: CpuState, rows: Tensor) -> CpuState:
        """The state of these rows; rows that stay with their sequence move nothing."""
        batch = len(state.memory[0][0])
        each, rest = divmod(len(rows), batch)
        home = torch.arange(len(rows)) // max(1, each)
        if each and not rest and torch.equal(rows // state.rows_per_source, home):
            if each == state.rows_per_source:
                return _reordered(state, rows)
            if state.length == 0:
                return replace(state, rows_per_source=each)
        return split_rows(state, rows)

    def _refresh(self) -> None:
        marks = [(p.data_ptr(), p._version) for p in self.model.parameters()]
        if marks == self.weight_versions:
            return
        self.weight_versions = marks
        self.layers = [CpuDecoderLayer(cast(DecoderBlock, b)) for b in self.model.decoder.blocks]
        self.norm, self.position_codes = norm_function(self.model.decoder.norm), _codes(self.model)
        readout = self.model.readout
        weight = (
            self.model.target_embedding.token_embeddings
            if readout.weight is None
            else readout.weight
        )
        whole = isinstance(readout, Int8Readout)
        self.readout = make_matmul(weight, readout.bias, int8=whole)

    def _room(self, state: CpuState, rows: int) -> CpuKVCache:
        """Where this step's keys go: the same place again, unless another step has taken it."""
        old, each = state.cache, state.rows_per_source
        if old is not None and old.length == state.length and old.capacity > state.length * each:
            return old
        filled, room = state.length * each, max(CPU_INITIAL_CAPACITY, 2 * state.length) * each
        kept = []
        for n, layer in enumerate(self.layers):
            new = torch.empty(rows // each, 2 * layer.kv_heads, room, layer.head_dim)
            if old is not None:
                new[:, :, :filled] = old.layers[n][:, :, :filled]
            kept.append(new)
        return CpuKVCache(kept, state.length)


def _codes(model: Translator) -> Tensor | None:
    """What is added to a token at each place; None where the embedding does more than that."""
    layer = model.target_embedding
    if layer.norm is not None or layer.segment_embeddings is not None:
        return None
    if layer.position_embeddings is not None:
        return layer.position_embeddings.detach()
    if layer.positions == "none":
        return torch.zeros(MAX_CACHED_POSITIONS, layer.token_embeddings.shape[1])
    return sinusoidal(torch.arange(MAX_CACHED_POSITIONS), layer.token_embeddings.shape[1]).float()


def _hidden(tokens: Tensor, lengths: Tensor) -> Tensor | None:
    if bool((lengths == tokens.shape[1]).all()):
        return None
    past = torch.arange(tokens.shape[1]) >= lengths[:, None]
    return torch.zeros(past.shape).masked_fill(past, -torch.inf)[:, None, None]


def _own(state: CpuState, rows: int) -> Tensor | None:
    """What each row may see after this step: what it has seen, and itself."""
    each = state.rows_per_source
    if each == 1:
        return None
    now = torch.eye(each, dtype=torch.bool).expand(rows // each, each, each)
    return now if state.history_mask is None else torch.cat([state.history_mask, now], -1)


def _as_scores(seen: Tensor | None, x: Tensor) -> Tensor | None:
    if seen is None:
        return None
    return torch.zeros(seen.shape, dtype=x.dtype).masked_fill(~seen, -torch.inf)[:, None]


def _reordered(state: CpuState, rows: Tensor) -> CpuState:
    if state.history_mask is None:
        return state
    seen = state.history_mask.flatten(0, 1)[rows].unflatten(0, (-1, state.rows_per_source))
    return replace(state, history_mask=seen)


def split_rows(state: CpuState, rows: Tensor) -> CpuState:
    """Every row a sequence of its own, its past gathered."""
    home, place, each = (
        rows // state.rows_per_source,
        rows % state.rows_per_source,
        state.rows_per_source,
    )
    memory = [(k[home], v[home]) for k, v in state.memory]
    lengths, hidden = (None if x is None else x[home] for x in (state.lengths, state.memory_bias))
    if state.cache is None or state.length == 0:
        return CpuState(memory, lengths, hidden)
    end = state.length * each
    if state.history_mask is None:  # each is 1: all of it
        at = torch.arange(end).expand(len(rows), end)
    else:  # of every step one row is a row's own past
        at = state.history_mask[home, place].nonzero()[:, 1].view(len(rows), state.length)
    index = at[:, None, :, None]
    picked = [
        x[home].gather(2, index.expand(-1, x.shape[1], -1, x.shape[3])) for x in state.cache.layers
    ]
    return CpuState(memory, lengths, hidden, 1, state.length, CpuKVCache(picked, state.length))
