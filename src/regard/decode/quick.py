"""A Translator on a CPU, step by step, with nothing between the products of matrices."""

from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decode.quick_layer import Layer, normed, product, turning
from regard.models import Translator
from regard.nn import DecoderBlock, KeysValues
from regard.nn.int8 import Int8Readout
from regard.ops import sinusoidal
from regard.ops.door import is_watched

ROOM = 32  # steps that a cache starts with room for
PLACES = 512  # whose codes are made at once


def is_plain(model: Translator) -> bool:
    """Whether these steps give what the model gives: a CPU, float32, scores without additions.

    >>> is_plain(rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval())
    True
    """
    config, weight = model.config, model.target_embedding.table
    usual = config.softcap is None and not config.sinks and config.relative == "none"
    # a hook of somebody who looks or edits wants the modules themselves
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    fits = weight.device.type == "cpu" and weight.dtype == torch.float32
    return usual and fits and not hooked and not is_watched(model)


@dataclass
class Buffers:
    """Keys and values of every layer, with room for more; `filled` steps of it are taken."""

    kept: list[Tensor]
    filled: int = 0

    @property
    def room(self) -> int:
        """How many keys of a sequence fit in."""
        return self.kept[0].shape[2]

    @property
    def keys(self) -> list[Tensor]:
        """Of every layer, (batch, head, time · each, feat)."""
        return [x[:, : x.shape[1] // 2] for x in self.kept]

    @property
    def values(self) -> list[Tensor]:
        """Likewise."""
        return [x[:, x.shape[1] // 2 :] for x in self.kept]


@dataclass(frozen=True)
class QuickState:
    """What was read and written by `each` rows a sequence, which share one cache.

    Keys of all rows of a sequence stand side by side, step after step, and are never moved: when a
    beam goes on from other rows, only `seen` changes, which says what a row's own past is.
    """

    memory: list[KeysValues]
    lengths: Tensor | None
    hidden: Tensor | None  # added to scores of the source: -inf at padding
    each: int = 1
    time: int = 0
    buffers: Buffers | None = None
    seen: Tensor | None = None  # (batch, each, time · each), None: all of it


class Quick:
    """The steps themselves; weights are looked at anew at every start."""

    def __init__(self, model: Translator):
        self.model = model
        self.marks: list[tuple[int, int]] = []

    def start(self, tokens: Tensor, lengths: Tensor | None) -> QuickState:
        """Read a source; its keys and values are made once."""
        self._refresh()
        memory = self.model.encode(tokens, lengths)
        projected = self.model.decoder.project_memory(memory)
        kept = [(k.contiguous(), v.contiguous()) for k, v in projected]
        return QuickState(kept, lengths, None if lengths is None else _hidden(tokens, lengths))

    def step(self, tokens: Tensor, state: QuickState) -> tuple[Tensor, QuickState]:
        """The logits after one more token of each row."""
        x, time, each = self._embed(tokens, state.time), state.time + 1, state.each
        buffers, seen = self._room(state, len(tokens)), _own(state, len(tokens))
        added, turns = _as_scores(seen, x), turning(self.layers[0], state.time)
        pairs = zip(self.layers, buffers.kept, state.memory, strict=True)
        for layer, kept, (k, v) in pairs:
            x = layer.look_back(x, kept, time, each, added, turns)
            x = layer.look_across(x, k, v, each, state.hidden)
            x = layer.think(x)
        logits = self.readout(self.norm(x))
        scale = self.model.readout.scale
        buffers.filled = time
        after = replace(state, time=time, buffers=buffers, seen=seen)
        return (logits if scale == 1.0 else scale * logits), after

    def _embed(self, tokens: Tensor, time: int) -> Tensor:
        layer = self.model.target_embedding
        if time == 0 or self.codes is None or time >= len(self.codes):  # it also asks what it gets
            return layer(tokens[:, None], offset=time)[:, 0]
        return torch.add(self.codes[time], F.embedding(tokens, layer.table), alpha=layer.scale)

    def select(self, state: QuickState, rows: Tensor) -> QuickState:
        """The state of these rows; rows that stay with their sequence move nothing."""
        batch = len(state.memory[0][0])
        each, rest = divmod(len(rows), batch)
        home = torch.arange(len(rows)) // max(1, each)
        if each and not rest and torch.equal(rows // state.each, home):
            if each == state.each:
                return _reordered(state, rows)
            if state.time == 0:
                return replace(state, each=each)
        return apart(state, rows)

    def _refresh(self) -> None:
        marks = [(p.data_ptr(), p._version) for p in self.model.parameters()]
        if marks == self.marks:
            return
        self.marks = marks
        self.layers = [Layer(cast(DecoderBlock, b)) for b in self.model.decoder.blocks]
        self.norm, self.codes = normed(self.model.decoder.norm), _codes(self.model)
        readout = self.model.readout
        weight = self.model.target_embedding.table if readout.weight is None else readout.weight
        whole = isinstance(readout, Int8Readout)
        self.readout = product(weight, readout.bias, whole=whole)

    def _room(self, state: QuickState, rows: int) -> Buffers:
        """Where this step's keys go: the same place again, unless another step has taken it."""
        old, each = state.buffers, state.each
        if old is not None and old.filled == state.time and old.room > state.time * each:
            return old
        filled, room = state.time * each, max(ROOM, 2 * state.time) * each
        kept = []
        for n, layer in enumerate(self.layers):
            new = torch.empty(rows // each, 2 * layer.key_heads, room, layer.feat)
            if old is not None:
                new[:, :, :filled] = old.kept[n][:, :, :filled]
            kept.append(new)
        return Buffers(kept, state.time)


def _codes(model: Translator) -> Tensor | None:
    """What is added to a token at each place; None where the embedding does more than that."""
    layer = model.target_embedding
    if layer.norm is not None or layer.kinds is not None:
        return None
    if layer.places is not None:
        return layer.places.detach()
    if layer.positions == "none":
        return torch.zeros(PLACES, layer.table.shape[1])
    return sinusoidal(torch.arange(PLACES), layer.table.shape[1]).float()


def _hidden(tokens: Tensor, lengths: Tensor) -> Tensor | None:
    if bool((lengths == tokens.shape[1]).all()):
        return None
    past = torch.arange(tokens.shape[1]) >= lengths[:, None]
    return torch.zeros(past.shape).masked_fill(past, -torch.inf)[:, None, None]


def _own(state: QuickState, rows: int) -> Tensor | None:
    """What each row may see after this step: what it has seen, and itself."""
    each = state.each
    if each == 1:
        return None
    now = torch.eye(each, dtype=torch.bool).expand(rows // each, each, each)
    return now if state.seen is None else torch.cat([state.seen, now], -1)


def _as_scores(seen: Tensor | None, x: Tensor) -> Tensor | None:
    if seen is None:
        return None
    return torch.zeros(seen.shape, dtype=x.dtype).masked_fill(~seen, -torch.inf)[:, None]


def _reordered(state: QuickState, rows: Tensor) -> QuickState:
    if state.seen is None:
        return state
    seen = state.seen.flatten(0, 1)[rows].unflatten(0, (-1, state.each))
    return replace(state, seen=seen)


def apart(state: QuickState, rows: Tensor) -> QuickState:
    """Every row a sequence of its own, its past gathered."""
    home, place, each = rows // state.each, rows % state.each, state.each
    memory = [(k[home], v[home]) for k, v in state.memory]
    lengths, hidden = (None if x is None else x[home] for x in (state.lengths, state.hidden))
    if state.buffers is None or state.time == 0:
        return QuickState(memory, lengths, hidden)
    end = state.time * each
    if state.seen is None:  # each is 1: all of it
        at = torch.arange(end).expand(len(rows), end)
    else:  # of every step one row is a row's own past
        at = state.seen[home, place].nonzero()[:, 1].view(len(rows), state.time)
    index = at[:, None, :, None]
    picked = [
        x[home].gather(2, index.expand(-1, x.shape[1], -1, x.shape[3])) for x in state.buffers.kept
    ]
    return QuickState(memory, lengths, hidden, 1, state.time, Buffers(picked, state.time))
