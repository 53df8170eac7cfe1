"""Fast path of a Translator on a CPU: one token per step, without module overhead."""

from dataclasses import dataclass, field, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decode.cache import KVCache
from regard.decode.cpu.layer import CpuDecoderLayer, make_matmul, make_rotary, norm_function
from regard.models import Translator
from regard.models.config import unimplemented_option
from regard.nn import DecoderBlock, KeysValues
from regard.nn.int8 import Int8Readout
from regard.ops import sinusoidal
from regard.ops.intercept import is_intercepted

MAX_CACHED_POSITIONS = 512  # position codes that are computed in advance


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
        """The state of these rows, each with a source and a past of its own."""
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
        "segments shared_embedding tied output_bias output_scale"
    )

    def __init__(self, model: Translator):
        self.model = model
        self.weight_versions: list[tuple[int, int]] = []

    def start(self, tokens: Tensor, lengths: Tensor | None) -> CpuState:
        """Encode a source and project its keys and values."""
        self._refresh()
        memory = self.model.encode(tokens, lengths)
        projected = self.model.decoder.project_memory(memory)
        memory = [(k.contiguous(), v.contiguous()) for k, v in projected]
        return CpuState(memory, lengths, memory_bias=_padding_bias(tokens, lengths))

    def step(self, tokens: Tensor, state: CpuState) -> tuple[Tensor, CpuState]:
        """The logits after one more token per row, and the next state."""
        cache, writer, each = state.cache, state.cache.append(1), state.cache.rows_per_source
        x, history = self._embed(tokens, cache.length), _add_own_keys(cache, len(tokens))
        bias, rotary = None, make_rotary(self.layers[0], cache.length)
        if history is not None:
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


def _padding_bias(tokens: Tensor, lengths: Tensor | None) -> Tensor | None:
    if lengths is None or bool((lengths == tokens.shape[1]).all()):
        return None
    past = torch.arange(tokens.shape[1]) >= lengths[:, None]
    return torch.zeros(past.shape).masked_fill(past, -torch.inf)[:, None, None]


def _add_own_keys(cache: KVCache, rows: int) -> Tensor | None:
    """The history mask after this step: each row also sees its new key."""
    each = cache.rows_per_source
    if each == 1:
        return None
    new = torch.eye(each, dtype=torch.bool).expand(rows // each, each, each)
    return new if cache.history is None else torch.cat([cache.history, new], -1)
