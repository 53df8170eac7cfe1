"""Fast path of a Translator on a CPU: one token per step, without module overhead."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.decode.cache import KVCache
from regard.models import Translator
from regard.models.config import unimplemented_option
from regard.nn import DecoderBlock, KeysValues, Norm, Residual
from regard.nn.int8 import Int8Linear, Int8Readout, PackedInt8Linear
from regard.nn.layers import ACTIVATIONS
from regard.ops import sinusoidal
from regard.ops.intercept import is_intercepted
from regard.ops.packed_linear import LinearFunction, packed_linear
from regard.ops.positions import frequencies

MAX_CACHED_POSITIONS = 512  # position codes that are computed in advance
REPACK_AFTER = 2  # steps with the same number of rows before weights are packed for it


def supports_cpu_decoder(model: Translator) -> bool:
    """Whether `CpuDecoder` computes what the model does: its options, CPU, float32, no hooks."""
    weight = model.target_embedding.token_embeddings
    plain = unimplemented_option(model.config, CpuDecoder.options) is None
    # hooks expect the modules to run
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    fits = weight.device.type == "cpu" and weight.dtype == torch.float32
    return plain and fits and not hooked and not is_intercepted(model)


@dataclass(frozen=True)
class TranslatorState:
    """Keys and values of the source per layer, and the cache of the target."""

    memory: list[KeysValues]
    lengths: Tensor | None
    cache: KVCache = field(default_factory=KVCache)
    memory_bias: Tensor | None = None  # added to the scores of cross-attention: -inf at padding

    def select(self, rows: Tensor) -> "TranslatorState":
        """The state of these rows, each with a source and a separate past."""
        source = rows // self.cache.rows_per_source
        memory = [(k[source], v[source]) for k, v in self.memory]
        lengths, bias = (None if x is None else x[source] for x in (self.lengths, self.memory_bias))
        cache = self.cache.select(rows)
        return replace(self, memory=memory, lengths=lengths, cache=cache, memory_bias=bias)


class CpuState(TranslatorState):
    """State of `CpuDecoder`; all rows of a source (a beam) share its memory and storage."""

    def select(self, rows: Tensor) -> TranslatorState:
        """The state of these rows; nothing is copied for rows that stay with their source."""
        cache, (each, rest) = self.cache, divmod(len(rows), len(self.memory[0][0]))
        source = torch.arange(len(rows)) // max(1, each)
        if each and not rest and torch.equal(rows // cache.rows_per_source, source):
            if each == cache.rows_per_source:
                return replace(self, cache=cache.reorder(rows))
            if cache.length == 0:
                return replace(self, cache=replace(cache, rows_per_source=each))
        return super().select(rows)


class CpuDecoder:
    """Decoding steps of one model; weights are repacked at `start` if they have changed."""

    # that it computes; a model with another one runs its modules
    options = (
        "layers decoder_layers dim heads kv_heads head_dim ffn_dim source_vocab target_vocab "
        "activation gated norm norm_first final_norm eps bias qkv_bias out_bias scale "
        "rope_theta rotate_half skip positions max_positions scale_embedding embedding_norm "
        "segments shared_embedding tied output_bias output_scale output_norm rope_scaling "
        "phrase_table"  # which the search for translations reads
    )

    def __init__(self, model: Translator):
        self.model = model
        self.weight_versions: list[tuple[int, int]] = []

    def start(self, tokens: Tensor, lengths: Tensor | None, memory: list[KeysValues]) -> CpuState:
        """The state after a source, with its keys and values for each layer."""
        self._refresh()
        memory = [(k.contiguous(), v.contiguous()) for k, v in memory]
        bias = None
        if lengths is not None and not bool((lengths == tokens.shape[1]).all()):
            past = torch.arange(tokens.shape[1]) >= lengths[:, None]
            bias = torch.zeros(past.shape).masked_fill(past, -torch.inf)[:, None, None]
        return CpuState(memory, lengths, memory_bias=bias)

    def step(self, tokens: Tensor, state: CpuState) -> tuple[Tensor, CpuState]:
        """The logits after one more token per row, and the next state."""
        cache, writer, each = state.cache, state.cache.append(1), state.cache.rows_per_source
        x, rotary = self._embed(tokens, cache.length), make_rotary(self.layers[0], cache.length)
        bias = history = None
        if each > 1:  # each row also sees its new key
            new = torch.eye(each, dtype=torch.bool).expand(len(tokens) // each, each, each)
            history = new if cache.history is None else torch.cat([cache.history, new], -1)
            bias = x.new_zeros(history.shape).masked_fill(~history, -torch.inf)[:, None]
        for layer, (k, v) in zip(self.layers, state.memory, strict=True):
            keys_values = writer.reserve((len(k), 2 * layer.kv_heads, layer.head_dim), x)
            x = layer.self_attention(x, keys_values, writer.length, each, bias, rotary)
            x = layer.cross_attention(x, k, v, each, state.memory_bias)
            x = layer.feed_forward(x)
        logits, scale = self.readout(self.norm(x)), self.model.readout.scale
        state = replace(state, cache=writer.new_cache(history))
        return (logits if scale == 1.0 else scale * logits), state

    def _embed(self, tokens: Tensor, time: int) -> Tensor:
        layer = self.model.target_embedding
        # at time 0 through the module too, which checks the tokens
        if time == 0 or self.position_codes is None or time >= len(self.position_codes):
            return layer(tokens[:, None], offset=time)[:, 0]
        embedded = F.embedding(tokens, layer.token_embeddings)
        return torch.add(self.position_codes[time], embedded, alpha=layer.scale)

    def _refresh(self) -> None:
        versions = [(p.data_ptr(), p._version) for p in self.model.parameters()]
        if versions == self.weight_versions:
            return
        self.weight_versions = versions
        self.layers = [CpuDecoderLayer(cast(DecoderBlock, b)) for b in self.model.decoder.blocks]
        self.norm = norm_function(self.model.decoder.norm)
        self.position_codes = _position_codes(self.model)
        readout, weight = self.model.readout, self.model.readout.weight
        if weight is None:
            weight = self.model.target_embedding.token_embeddings
        self.readout = make_matmul(weight, readout.bias, int8=isinstance(readout, Int8Readout))


def _position_codes(model: Translator) -> Tensor | None:
    """Position codes as a table; None where the embedding adds more than these."""
    layer = model.target_embedding
    if layer.norm is not None or layer.segment_embeddings is not None:
        return None
    if layer.position_embeddings is not None:
        return layer.position_embeddings.detach()
    if layer.positions == "none":
        return torch.zeros(MAX_CACHED_POSITIONS, layer.token_embeddings.shape[1])
    return sinusoidal(torch.arange(MAX_CACHED_POSITIONS), layer.token_embeddings.shape[1]).float()


class PackedLinear:
    """x Wᵀ + b, with weights packed for the number of rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight.detach(), bias
        self.rows = self.count = 0
        self.packed_matmul: LinearFunction | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) != self.rows:
            self.rows, self.count, self.packed_matmul = len(x), 0, None
        self.count += 1
        if self.count == REPACK_AFTER:
            self.packed_matmul = packed_linear(self.weight, self.bias, self.rows)
        if self.packed_matmul is None:
            return F.linear(x, self.weight, self.bias)
        return self.packed_matmul(x)


Matmul = PackedLinear | PackedInt8Linear


def make_matmul(weight: Tensor, bias: Tensor | None, *, int8: bool) -> Matmul:
    """A matrix product with a fixed weight, in float or int8."""
    # adding zeros to a whole vocabulary takes longer than checking for them
    bias = None if bias is None or not bias.any() else bias.detach()
    return PackedInt8Linear(weight, bias) if int8 else PackedLinear(weight, bias)


def fuse_linears(*parts: nn.Linear) -> Matmul:
    """Several linear layers of one input as one product."""
    int8, biases = isinstance(parts[0], Int8Linear), [part.bias for part in parts]
    bias = None if biases[0] is None else torch.cat([b.detach() for b in biases])
    return make_matmul(torch.cat([part.weight.detach() for part in parts]), bias, int8=int8)


class CpuDecoderLayer:
    """One decoder block; q, k and v come from one product, k and v go to the cache in one copy."""

    def __init__(self, block: DecoderBlock):
        attention, across, think = block.self_attention, block.cross_attention, block.feed_forward
        self.self_module, self.cross_module = attention, across
        self.heads, self.kv_heads = attention.heads, attention.kv_heads
        self.head_dim = attention.to_q.out_features // attention.heads
        self.to_qkv = fuse_linears(attention.to_q, attention.to_k, attention.to_v)
        self.to_out, self.to_cross_q, self.to_cross_out = map(
            fuse_linears, (attention.to_out, across.to_q, across.to_out)
        )
        self.ffn_up, self.ffn_down = map(fuse_linears, (think.to_hidden, think.to_out))
        self.ffn_gate = None if think.to_gate is None else fuse_linears(think.to_gate)
        self.activation = F.relu_ if think.activation == "relu" else ACTIVATIONS[think.activation]
        residuals = (block.self_residual, block.cross_residual, block.feed_forward_residual)
        self.residuals = [_around(residual) for residual in residuals]

    def self_attention(
        self,
        x: Tensor,
        cache: Tensor,
        time: int,
        rows_per_source: int,
        attn_bias: Tensor | None,
        rotary: "Rotary",
    ) -> Tensor:
        """Self-attention sublayer of the new tokens, whose keys and values are added to `cache`."""
        heads, kv_heads, end = self.heads, self.kv_heads, time * rows_per_source
        before, after = self.residuals[0]
        y = self.to_qkv(before(x)).view(-1, rows_per_source, heads + 2 * kv_heads, self.head_dim)
        if rotary is not None:
            rotary(y[:, :, : heads + kv_heads])
        y = y.transpose(1, 2)
        cache[:, :, end - rows_per_source : end] = y[:, heads:]
        k, v = cache[:, :kv_heads, :end], cache[:, kv_heads:, :end]
        y = self._attend(y[:, :heads], k, v, attn_bias, self.self_module.scale)
        return after(x, self.to_out(y))

    def cross_attention(
        self, x: Tensor, k: Tensor, v: Tensor, rows_per_source: int, attn_bias: Tensor | None
    ):
        """Cross-attention sublayer."""
        before, after = self.residuals[1]
        q = self.to_cross_q(before(x)).view(-1, rows_per_source, self.heads, self.head_dim)
        y = self._attend(q.transpose(1, 2), k, v, attn_bias, self.cross_module.scale)
        return after(x, self.to_cross_out(y))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Feed-forward sublayer."""
        before, after = self.residuals[2]
        y = before(x)
        h = self.ffn_up(y)
        h = self.activation(h) if not self.ffn_gate else self.activation(self.ffn_gate(y)).mul_(h)
        return after(x, self.ffn_down(h))

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float | None
    ) -> Tensor:
        grouped = self.heads != self.kv_heads
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=added, scale=scale, enable_gqa=grouped
        )
        return y.transpose(1, 2).reshape(-1, self.heads * self.head_dim)


Rotary = Callable[[Tensor], None] | None


def make_rotary(layer: CpuDecoderLayer, position: int) -> Rotary:
    """In-place rotary embedding at one position, shared by all layers; None without."""
    base, halves = layer.self_module.rope_theta, layer.self_module.rotate_half
    if base is None:
        return None
    scaling = layer.self_module.rope_scaling
    angles = position * frequencies(layer.head_dim, base, scaling=scaling)
    amplitude = scaling.amplitude if scaling else 1.0
    cos, sin = (amplitude * angles.cos()).float(), (amplitude * angles.sin()).float()
    turns = torch.complex(cos, sin)

    def by_halves(x: Tensor) -> None:
        a, b = x.unflatten(-1, (2, -1)).unbind(-2)
        x.copy_(torch.cat([a * cos - b * sin, a * sin + b * cos], -1))

    def by_pairs(x: Tensor) -> None:
        torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(turns)

    return by_halves if halves else by_pairs


def _around(residual: Residual) -> tuple[LinearFunction, Callable[[Tensor, Tensor], Tensor]]:
    """Functions before a sublayer, and after it to combine its output with x."""
    norm = norm_function(residual.norm)
    before, after = (norm, _identity) if residual.norm_first else (_identity, norm)
    update = norm_function(residual.output_norm)
    if residual.skip:
        return before, lambda x, y: after(update(y).add_(x))
    return before, lambda x, y: after(update(y))


def norm_function(layer: Norm | None) -> LinearFunction:
    """A norm as a function."""
    if layer is None or layer.gain is None:
        return _identity
    shape, gain, bias, eps = layer.gain.shape, layer.gain, layer.bias, layer.eps
    if layer.kind == "layer":
        return lambda x: torch.layer_norm(x, shape, gain, bias, eps)
    return lambda x: torch.rms_norm(x, shape, gain, eps)


def _identity(x: Tensor) -> Tensor:
    return x
