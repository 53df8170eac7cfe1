"""A Translator on a CPU, step by step, with nothing between the products of matrices."""

from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models import Translator
from regard.nn import DecoderBlock, KeysValues, MultiHeadAttention, Residual
from regard.nn.feedforward import ACTIVATIONS
from regard.nn.int8 import Int8Linear, Int8Product, Int8Readout
from regard.ops.door import is_watched

ROOM = 32  # steps that a cache starts with room for
AFTER = 2  # steps with as many rows before weights are put into the order that is quickest for them


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
    return usual and fits and not hooked and not is_watched()


@dataclass
class Buffers:
    """Keys and values of every layer, with room for more; `filled` steps of it are taken."""

    keys: list[Tensor]
    values: list[Tensor]
    filled: int = 0

    @property
    def room(self) -> int:
        """How many keys of a sequence fit in."""
        return self.keys[0].shape[2]


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
        x = self.model.target_embedding(tokens[:, None], offset=state.time)[:, 0]
        buffers, seen = self._room(state, len(tokens)), _own(state, len(tokens))
        after = replace(state, time=state.time + 1, buffers=buffers, seen=seen)
        added = _as_scores(seen, x)
        for n, layer in enumerate(self.layers):
            x = layer(x, n, after, added)
        norm = self.model.decoder.norm
        logits = self.readout(x if norm is None else norm(x))
        scale = self.model.readout.scale
        buffers.filled = after.time
        return (logits if scale == 1.0 else scale * logits), after

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
        self.layers = [_Layer(cast(DecoderBlock, b)) for b in self.model.decoder.blocks]
        readout = self.model.readout
        weight = self.model.target_embedding.table if readout.weight is None else readout.weight
        self.readout = _product(weight, readout.bias, isinstance(readout, Int8Readout))

    def _room(self, state: QuickState, rows: int) -> Buffers:
        """Where this step's keys go: the same place again, unless another step has taken it."""
        old, each = state.buffers, state.each
        if old is not None and old.filled == state.time and old.room > state.time * each:
            return old
        filled, room = state.time * each, max(ROOM, 2 * state.time) * each
        keys, values = [], []
        for n, layer in enumerate(self.layers):
            shape = (rows // each, layer.key_heads, room, layer.feat)
            for some, past in ((keys, old and old.keys[n]), (values, old and old.values[n])):
                new = torch.empty(shape)
                if past is not None:
                    new[:, :, :filled] = past[:, :, :filled]
                some.append(new)
        return Buffers(keys, values, state.time)


class _Linear:
    """x Wᵀ + b, by weights in the order that MKL likes best for so many rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.rows = self.count = 0
        self.packed: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) != self.rows:
            self.rows, self.count, self.packed = len(x), 0, None
        self.count += 1
        if self.count == AFTER and self.rows > 1:
            self.packed = _pack(self.weight, self.rows)
        if self.packed is None:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkl._mkl_linear(x, self.packed, self.weight, self.bias, self.rows)


Product = _Linear | Int8Product


def _joined_product(*parts: nn.Linear) -> Product:
    """Several maps of one input as one product."""
    whole, biases = isinstance(parts[0], Int8Linear), [part.bias for part in parts]
    bias = None if biases[0] is None else torch.cat([b.detach() for b in biases])
    return _product(torch.cat([part.weight.detach() for part in parts]), bias, whole)


def _product(weight: Tensor, bias: Tensor | None, whole: bool) -> Product:
    return Int8Product(weight, bias) if whole else _Linear(weight, bias)


class _Layer:
    """One decoder block: queries, keys and values of a token by one product."""

    def __init__(self, block: DecoderBlock):
        own, across = block.self_attention, block.cross_attention
        self.block, self.own, self.across = block, own, across
        self.heads, self.key_heads = own.heads, own.key_heads
        self.feat = own.to_q.out_features // own.heads
        parts = (own.to_q, own.to_k, own.to_v)
        self.sizes = [part.out_features for part in parts]
        self.to_qkv = _joined_product(*parts)
        self.to_out, self.to_q, self.to_across = map(
            _joined_product, (own.to_out, across.to_q, across.to_out)
        )
        ff = block.feed_forward
        self.hidden, self.narrow = map(_joined_product, (ff.to_hidden, ff.to_out))
        self.gate = None if ff.to_gate is None else _joined_product(ff.to_gate)
        self.activation = ACTIVATIONS[ff.activation]

    def __call__(self, x: Tensor, n: int, state: QuickState, added: Tensor | None) -> Tensor:
        block = self.block
        x = _residual(block.self_residual, x, lambda x: self._look_back(x, n, state, added))
        x = _residual(block.cross_residual, x, lambda x: self._look_across(x, n, state))
        return _residual(block.feed_forward_residual, x, self._think)

    def _look_back(self, x: Tensor, n: int, state: QuickState, added: Tensor | None) -> Tensor:
        each, buffers = state.each, state.buffers
        assert buffers is not None
        q, k, v = (_split(part, each, self.feat) for part in self.to_qkv(x).split(self.sizes, -1))
        if self.own.rotary is not None:
            place = torch.full((each,), state.time - 1)
            q, k = (self.own._turned(part, place, 0) for part in (q, k))
        keys, values = buffers.keys[n], buffers.values[n]
        end = state.time * each
        keys[:, :, end - each : end], values[:, :, end - each : end] = k, v
        y = _attend(self.own, q, keys[:, :, :end], values[:, :, :end], added)
        return self.to_out(_joined(y))

    def _look_across(self, x: Tensor, n: int, state: QuickState) -> Tensor:
        q = _split(self.to_q(x), state.each, self.feat)
        return self.to_across(_joined(_attend(self.across, q, *state.memory[n], state.hidden)))

    def _think(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        h = self.activation(h) if self.gate is None else self.activation(self.gate(x)) * h
        return self.narrow(h)


def _attend(
    site: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None
) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=added, scale=site.scale, enable_gqa=grouped
    )


def _residual(residual: Residual, x: Tensor, sublayer) -> Tensor:
    found = sublayer(residual.norm(x) if residual.norm_first else x)
    y = x + found if residual.skip else found
    return y if residual.norm_first else residual.norm(y)


def _split(x: Tensor, each: int, feat: int) -> Tensor:
    return x.unflatten(-1, (-1, feat)).unflatten(0, (-1, each)).transpose(1, 2)


def _joined(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(0, 1).flatten(1)


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
    picked = []
    for kept in (state.buffers.keys, state.buffers.values):
        index = at[:, None, :, None]
        picked.append(
            [x[home].gather(2, index.expand(-1, x.shape[1], -1, x.shape[3])) for x in kept]
        )
    return QuickState(memory, lengths, hidden, 1, state.time, Buffers(*picked, filled=state.time))


def _pack(weight: Tensor, rows: int) -> Tensor | None:
    try:
        return torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), rows)
    except (AttributeError, RuntimeError, NotImplementedError):  # a torch without MKL
        return None
