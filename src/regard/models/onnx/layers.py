"""The layers of `nn` as nodes of an ONNX graph; each function adds nodes and returns a name."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from regard.models.onnx.graph import Graph
from regard.nn import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    Norm,
    Readout,
    Residual,
    TokenEmbedding,
)
from regard.ops.positions import frequencies

# a row of -inf would become NaN
MASKED_SCORE = torch.tensor(torch.finfo(torch.float32).min)
Pair = tuple[str, str]


@dataclass(frozen=True)
class AttentionContext:
    """Positions and mask of the new tokens.

    `positions` is (time); `rotary` cos and sin, (time, pair), or None; `mask` broadcasts to (batch,
    head, time, key), None: everything.
    """

    positions: str
    rotary: Pair | None = None
    mask: str | None = None


def emit_linear(g: Graph, x: str, layer: nn.Linear) -> str:
    """x Wᵀ + b."""
    y = g.MatMul(x, layer.weight.detach().mT)
    return y if layer.bias is None else g.Add(y, layer.bias)


def emit_norm(g: Graph, x: str, layer: Norm | None) -> str:
    """gain ⊙ (x - mean) / √(var + eps) + bias, or gain ⊙ x / √(mean(x²) + eps), or x."""
    if layer is None or layer.gain is None:
        return x
    if layer.kind == "layer":
        return g.LayerNormalization(x, layer.gain, layer.bias, axis=-1, epsilon=layer.eps)
    square = g.ReduceMean(g.Mul(x, x), [-1])
    return g.Mul(g.Div(x, g.Sqrt(g.Add(square, layer.eps))), layer.gain)


def emit_activation(g: Graph, x: str, name: str) -> str:
    """relu, gelu, gelu_tanh or silu of x."""
    if name == "silu":
        return g.Mul(x, g.Sigmoid(x))
    if name == "relu":
        return g.Relu(x)
    return g.Gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def emit_feed_forward(g: Graph, x: str, layer: FeedForward) -> str:
    """f(x W₁ + b₁) W₂ + b₂, or gated."""
    h = emit_linear(g, x, layer.to_hidden)
    if layer.to_gate is None:
        h = emit_activation(g, h, layer.activation)
    else:
        h = g.Mul(emit_activation(g, emit_linear(g, x, layer.to_gate), layer.activation), h)
    return emit_linear(g, h, layer.to_out)


def emit_residual(g: Graph, x: str, layer: Residual, sublayer) -> str:
    """norm(x + f(x)), or x + f(norm(x))."""
    found = sublayer(emit_norm(g, x, layer.norm) if layer.norm_first else x)
    y = g.Add(x, found) if layer.skip else found
    return y if layer.norm_first else emit_norm(g, y, layer.norm)


def emit_embedding(
    g: Graph,
    tokens: str,
    layer: TokenEmbedding,
    context: AttentionContext,
    segments: str | None = None,
):
    """√dim · table[token] + position code, as in `TokenEmbedding`."""
    x = g.Gather(layer.token_embeddings, tokens)
    x = x if layer.scale == 1.0 else g.Mul(x, float(layer.scale))
    if layer.position_embeddings is not None:
        x = g.Add(x, g.Gather(layer.position_embeddings, context.positions))
    elif layer.positions == "sinusoidal":
        cos, sin = emit_rope_angles(g, context.positions, layer.token_embeddings.shape[1], 10000.0)
        both = g.Concat(g.Unsqueeze(sin, [-1]), g.Unsqueeze(cos, [-1]), axis=-1)
        x = g.Add(x, g.Reshape(both, [0, layer.token_embeddings.shape[1]]))
    if layer.segment_embeddings is not None:
        x = g.Add(
            x,
            layer.segment_embeddings[0]
            if segments is None
            else g.Gather(layer.segment_embeddings, segments),
        )
    return emit_norm(g, x, layer.norm)


def emit_readout(g: Graph, x: str, layer: Readout, table: Tensor) -> str:
    """scale · x Wᵀ + b; W is the embedding table if tied."""
    weight = table if layer.weight is None else layer.weight
    logits = g.MatMul(x, g.Transpose(weight, perm=[1, 0]))
    logits = logits if layer.scale == 1.0 else g.Mul(logits, float(layer.scale))
    return logits if layer.bias is None else g.Add(logits, layer.bias)


def emit_rope_angles(g: Graph, positions: str, dim: int, base: float) -> Pair:
    """cos and sin of position · base^(-2i/dim), (time, pair), in double: positions may be large."""
    at = g.Unsqueeze(g.Cast(positions, to=g.onnx.TensorProto.DOUBLE), [1])
    turned = g.Mul(at, frequencies(dim, base)[None])
    cos, sin = (g.Cast(x, to=g.onnx.TensorProto.FLOAT) for x in (g.Cos(turned), g.Sin(turned)))
    return cos, sin


def emit_rope(g: Graph, x: str, rotary: Pair, head_dim: int, rotate_half: bool) -> str:
    """Rotary embedding: rotates pairs of neighbours, or with `rotate_half` of both halves."""
    shape, axis = ([2, head_dim // 2], -2) if rotate_half else ([head_dim // 2, 2], -1)
    a, b = g.Split(g.Reshape(x, [0, 0, 0, *shape]), count=2, axis=axis, num_outputs=2)
    cos, sin = (g.Unsqueeze(part, [axis]) for part in rotary)
    c = g.Sub(g.Mul(a, cos), g.Mul(b, sin))
    d = g.Add(g.Mul(a, sin), g.Mul(b, cos))
    return g.Reshape(g.Concat(c, d, axis=axis), [0, 0, 0, head_dim])


def emit_split_heads(g: Graph, x: str, heads: int, head_dim: int) -> str:
    """(batch, time, dim) to (batch, head, time, head_dim)."""
    return g.Transpose(g.Reshape(x, [0, 0, heads, head_dim]), perm=[0, 2, 1, 3])


def emit_keys_values(
    g: Graph, x: str, site: MultiHeadAttention, rotary: Pair | None = None
) -> Pair:
    """Keys and values of the tokens."""
    feat = get_head_dim(site)
    k, v = (
        emit_split_heads(g, emit_linear(g, x, to), site.kv_heads, feat)
        for to in (site.to_k, site.to_v)
    )
    return (k if rotary is None else emit_rope(g, k, rotary, feat, site.rotate_half)), v


def emit_attention(
    g: Graph,
    x: str,
    site: MultiHeadAttention,
    keys_values: Pair,
    mask: str | None,
    rotary: Pair | None,
) -> str:
    """softmax(scale · q kᵀ) v of the queries of x, heads joined and projected."""
    feat, heads = get_head_dim(site), site.heads
    q = emit_split_heads(g, emit_linear(g, x, site.to_q), heads, feat)
    q = q if rotary is None else emit_rope(g, q, rotary, feat, site.rotate_half)
    k, v = (_repeat_heads(g, part, site) for part in keys_values)
    scale = feat**-0.5 if site.scale is None else site.scale
    scores = g.MatMul(g.Mul(q, scale), g.Transpose(k, perm=[0, 1, 3, 2]))
    if site.softcap is not None:
        scores = g.Mul(g.Tanh(g.Div(scores, float(site.softcap))), float(site.softcap))
    if mask is not None:
        scores = g.Where(mask, scores, MASKED_SCORE)
    y = g.MatMul(_softmax(g, scores, site.sinks), v)
    joined = g.Reshape(g.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, heads * feat])
    return emit_linear(g, joined, site.to_out)


def emit_encoder(
    g: Graph, x: str, stack: Encoder, context: AttentionContext, past: list[Pair] | None = None
):
    """An encoder stack; returns the output and the keys and values of each layer, past included."""
    cache: list[Pair] = []
    for n, block in enumerate(stack.blocks):
        assert isinstance(block, EncoderBlock)
        x = emit_residual(
            g, x, block.self_residual,
            lambda x, n=n, site=block.self_attention: _self_attention(
                g, x, site, context, past, n, cache
            ),
        )  # fmt: skip
        x = _feed_forward(g, x, block)
    return emit_norm(g, x, stack.norm), cache


def emit_decoder(
    g: Graph,
    x: str,
    stack: Decoder,
    context: AttentionContext,
    past,
    memory: list[Pair],
    memory_mask: str,
):
    """A decoder stack over the past and the memory; returns as `emit_encoder`."""
    cache: list[Pair] = []
    for n, block in enumerate(stack.blocks):
        block = cast(DecoderBlock, block)
        x = emit_residual(
            g, x, block.self_residual,
            lambda x, n=n, site=block.self_attention: _self_attention(
                g, x, site, context, past, n, cache
            ),
        )  # fmt: skip
        x = emit_residual(
            g, x, block.cross_residual,
            lambda x, n=n, site=block.cross_attention: emit_attention(
                g, x, site, memory[n], memory_mask, None
            ),
        )  # fmt: skip
        x = _feed_forward(g, x, block)
    return emit_norm(g, x, stack.norm), cache


def emit_context(
    g: Graph, stack: Encoder | Decoder, first, end, mask: str | None = None
) -> AttentionContext:
    """The context of new tokens at positions `first` to `end` - 1."""
    places = g.Range(first, end, 1)
    site = first_attention(stack)
    turns = (
        None
        if site.rope_theta is None
        else emit_rope_angles(g, places, get_head_dim(site), site.rope_theta)
    )
    return AttentionContext(places, turns, mask)


def emit_unstack_layers(g: Graph, x: str, layers: int) -> list[Pair]:
    """(layer, 2, batch, head, time, head_dim) to one pair of keys and values per layer."""
    some = ([g.Gather(g.Gather(x, n), part) for part in (0, 1)] for n in range(layers))
    return [(k, v) for k, v in some]


def emit_stack_layers(g: Graph, pairs: list[Pair]) -> str:
    """Pairs of keys and values to (layer, 2, batch, head, time, head_dim)."""
    layers = [g.Concat(*(g.Unsqueeze(part, [0]) for part in pair), axis=0) for pair in pairs]
    return g.Concat(*(g.Unsqueeze(layer, [0]) for layer in layers), axis=0)


def emit_size(g: Graph, x: str, axis: int) -> str:
    """The size of an axis, as a scalar."""
    return g.Gather(g.Shape(x), axis)


def emit_padding_mask(g: Graph, lengths: str, time: str) -> str:
    """Mask of the keys that are not padding, (batch, 1, 1, key)."""
    inside = g.Less(g.Unsqueeze(g.Range(0, time, 1), [0]), g.Unsqueeze(lengths, [1]))
    return g.Unsqueeze(inside, [1, 2])


def first_attention(stack: Encoder | Decoder) -> MultiHeadAttention:
    """Self-attention of the first block; all layers have the same sizes."""
    return cast(EncoderBlock, stack.blocks[0]).self_attention


def get_head_dim(site: MultiHeadAttention) -> int:
    """Width of one head."""
    return site.to_q.out_features // site.heads


def _self_attention(
    g: Graph, x: str, site, here: AttentionContext, past, n: int, cache: list[Pair]
) -> str:
    k, v = emit_keys_values(g, x, site, here.rotary)
    if past is not None:
        k, v = (g.Concat(old, new, axis=2) for old, new in zip(past[n], (k, v), strict=True))
    cache.append((k, v))
    return emit_attention(g, x, site, (k, v), here.mask, here.rotary)


def _feed_forward(g: Graph, x: str, block: EncoderBlock | DecoderBlock) -> str:
    layer = block.feed_forward
    return emit_residual(
        g, x, block.feed_forward_residual, lambda x: emit_feed_forward(g, x, layer)
    )


def _repeat_heads(g: Graph, x: str, site: MultiHeadAttention) -> str:
    """Repeat key/value heads for grouped queries."""
    each = site.heads // site.kv_heads
    if each == 1:
        return x
    many = g.Expand(g.Unsqueeze(x, [2]), [1, 1, each, 1, 1])
    return g.Reshape(many, [0, site.heads, -1, get_head_dim(site)])


def _softmax(g: Graph, scores: str, sinks: Tensor | None) -> str:
    if sinks is None:
        return g.Softmax(scores, axis=-1)
    shape = g.Concat(g.Slice(g.Shape(scores), [0], [3]), [1], axis=0)
    sink = g.Expand(sinks.detach()[None, :, None, None], shape)
    weights = g.Softmax(g.Concat(scores, sink, axis=-1), axis=-1)
    return g.Slice(weights, [0], [-1], [-1])
