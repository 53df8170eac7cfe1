"""The layers of Regard as nodes of an ONNX graph: the same equations, the same weights."""

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

LOWEST = torch.tensor(torch.finfo(torch.float32).min)  # -inf would make a hidden row no number
Pair = tuple[str, str]


@dataclass(frozen=True)
class Here:
    """Where the new tokens stand among all: what masks and position codes are made of.

    `places` are theirs, (time); `turns` cos and sin, (time, pair), where positions are rotary;
    `allowed` what they may see, to be broadcast to (batch, head, time, key), None: all.
    """

    places: str
    turns: Pair | None = None
    allowed: str | None = None


def linear(g: Graph, x: str, layer: nn.Linear) -> str:
    """x Wᵀ + b."""
    y = g.MatMul(x, layer.weight.detach().mT)
    return y if layer.bias is None else g.Add(y, layer.bias)


def norm(g: Graph, x: str, layer: Norm | None) -> str:
    """gain ⊙ (x - mean) / √(var + eps) + bias, or gain ⊙ x / √(mean(x²) + eps), or x."""
    if layer is None or layer.gain is None:
        return x
    if layer.kind == "layer":
        return g.LayerNormalization(x, layer.gain, layer.bias, axis=-1, epsilon=layer.eps)
    square = g.ReduceMean(g.Mul(x, x), [-1])
    return g.Mul(g.Div(x, g.Sqrt(g.Add(square, layer.eps))), layer.gain)


def activated(g: Graph, x: str, name: str) -> str:
    """relu, gelu, gelu_tanh or silu of x."""
    if name == "silu":
        return g.Mul(x, g.Sigmoid(x))
    if name == "relu":
        return g.Relu(x)
    return g.Gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def feed_forward(g: Graph, x: str, layer: FeedForward) -> str:
    """f(x W₁ + b₁) W₂ + b₂, or gated."""
    h = linear(g, x, layer.to_hidden)
    if layer.to_gate is None:
        h = activated(g, h, layer.activation)
    else:
        h = g.Mul(activated(g, linear(g, x, layer.to_gate), layer.activation), h)
    return linear(g, h, layer.to_out)


def residual(g: Graph, x: str, layer: Residual, sublayer) -> str:
    """norm(x + f(x)), or x + f(norm(x))."""
    found = sublayer(norm(g, x, layer.norm) if layer.norm_first else x)
    y = g.Add(x, found) if layer.skip else found
    return y if layer.norm_first else norm(g, y, layer.norm)


def embed(g: Graph, tokens: str, layer: TokenEmbedding, here: Here, kinds: str | None = None):
    """√dim · table[token] + code(place), as `TokenEmbedding` has it."""
    x = g.Gather(layer.table, tokens)
    x = x if layer.scale == 1.0 else g.Mul(x, float(layer.scale))
    if layer.places is not None:
        x = g.Add(x, g.Gather(layer.places, here.places))
    elif layer.positions == "sinusoidal":
        cos, sin = angles(g, here.places, layer.table.shape[1], 10000.0)
        both = g.Concat(g.Unsqueeze(sin, [-1]), g.Unsqueeze(cos, [-1]), axis=-1)
        x = g.Add(x, g.Reshape(both, [0, layer.table.shape[1]]))
    if layer.kinds is not None:
        x = g.Add(x, layer.kinds[0] if kinds is None else g.Gather(layer.kinds, kinds))
    return norm(g, x, layer.norm)


def readout(g: Graph, x: str, layer: Readout, table: Tensor) -> str:
    """scale · x Wᵀ + b, W the embedding's table if there is none of its own."""
    weight = table if layer.weight is None else layer.weight
    logits = g.MatMul(x, g.Transpose(weight, perm=[1, 0]))
    logits = logits if layer.scale == 1.0 else g.Mul(logits, float(layer.scale))
    return logits if layer.bias is None else g.Add(logits, layer.bias)


def angles(g: Graph, places: str, dim: int, base: float) -> Pair:
    """cos and sin of place · base^(-2i/dim), (time, pair), made in double: a stream has no end."""
    at = g.Unsqueeze(g.Cast(places, to=g.onnx.TensorProto.DOUBLE), [1])
    turned = g.Mul(at, frequencies(dim, base)[None])
    cos, sin = (g.Cast(x, to=g.onnx.TensorProto.FLOAT) for x in (g.Cos(turned), g.Sin(turned)))
    return cos, sin


def turn(g: Graph, x: str, turns: Pair, feat: int, halves: bool) -> str:
    """Each pair of features turned: neighbours, or with `halves` one of each half."""
    shape, axis = ([2, feat // 2], -2) if halves else ([feat // 2, 2], -1)
    a, b = g.Split(g.Reshape(x, [0, 0, 0, *shape]), count=2, axis=axis, num_outputs=2)
    cos, sin = (g.Unsqueeze(part, [axis]) for part in turns)
    c = g.Sub(g.Mul(a, cos), g.Mul(b, sin))
    d = g.Add(g.Mul(a, sin), g.Mul(b, cos))
    return g.Reshape(g.Concat(c, d, axis=axis), [0, 0, 0, feat])


def split(g: Graph, x: str, heads: int, feat: int) -> str:
    """(batch, time, dim) to (batch, head, time, feat)."""
    return g.Transpose(g.Reshape(x, [0, 0, heads, feat]), perm=[0, 2, 1, 3])


def keys_values(g: Graph, x: str, site: MultiHeadAttention, turns: Pair | None = None) -> Pair:
    """What each token answers to, and what it gives."""
    feat = width(site)
    k, v = (split(g, linear(g, x, to), site.key_heads, feat) for to in (site.to_k, site.to_v))
    return (k if turns is None else turn(g, k, turns, feat, site.halves)), v


def attend(
    g: Graph, x: str, site: MultiHeadAttention, found: Pair, allowed: str | None, turns: Pair | None
) -> str:
    """softmax(scale · q kᵀ) v, the heads joined and mixed; q is made of x."""
    feat, heads = width(site), site.heads
    q = split(g, linear(g, x, site.to_q), heads, feat)
    q = q if turns is None else turn(g, q, turns, feat, site.halves)
    k, v = (_spread(g, part, site) for part in found)
    scale = feat**-0.5 if site.scale is None else site.scale
    scores = g.MatMul(g.Mul(q, scale), g.Transpose(k, perm=[0, 1, 3, 2]))
    if site.softcap is not None:
        scores = g.Mul(g.Tanh(g.Div(scores, float(site.softcap))), float(site.softcap))
    if allowed is not None:
        scores = g.Where(allowed, scores, LOWEST)
    y = g.MatMul(_softmax(g, scores, site.sinks), v)
    joined = g.Reshape(g.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, heads * feat])
    return linear(g, joined, site.to_out)


def encode(g: Graph, x: str, stack: Encoder, here: Here, past: list[Pair] | None = None):
    """A stack of encoder blocks and, where there is a past, the keys and values of all so far."""
    kept: list[Pair] = []
    for n, block in enumerate(stack.blocks):
        assert isinstance(block, EncoderBlock)
        x = residual(
            g, x, block.self_residual,
            lambda x, n=n, site=block.self_attention: _look_back(g, x, site, here, past, n, kept),
        )  # fmt: skip
        x = _think(g, x, block)
    return norm(g, x, stack.norm), kept


def decode(g: Graph, x: str, stack: Decoder, here: Here, past, memory: list[Pair], seen: str):
    """A stack of decoder blocks over what was written and, where `seen`, what was read."""
    kept: list[Pair] = []
    for n, block in enumerate(stack.blocks):
        block = cast(DecoderBlock, block)
        x = residual(
            g, x, block.self_residual,
            lambda x, n=n, site=block.self_attention: _look_back(g, x, site, here, past, n, kept),
        )  # fmt: skip
        x = residual(
            g, x, block.cross_residual,
            lambda x, n=n, site=block.cross_attention: attend(g, x, site, memory[n], seen, None),
        )  # fmt: skip
        x = _think(g, x, block)
    return norm(g, x, stack.norm), kept


def standing(g: Graph, stack: Encoder | Decoder, first, after, allowed: str | None = None) -> Here:
    """New tokens from place `first` to before `after`, as this stack wants to know of them."""
    places = g.Range(first, after, 1)
    site = first_site(stack)
    turns = None if site.rotary is None else angles(g, places, width(site), site.rotary)
    return Here(places, turns, allowed)


def unstacked(g: Graph, x: str, layers: int) -> list[Pair]:
    """(layer, 2, batch, head, time, feat) as keys and values of each layer."""
    some = ([g.Gather(g.Gather(x, n), part) for part in (0, 1)] for n in range(layers))
    return [(k, v) for k, v in some]


def stacked(g: Graph, pairs: list[Pair]) -> str:
    """Keys and values of each layer as one: (layer, 2, batch, head, time, feat)."""
    layers = [g.Concat(*(g.Unsqueeze(part, [0]) for part in pair), axis=0) for pair in pairs]
    return g.Concat(*(g.Unsqueeze(layer, [0]) for layer in layers), axis=0)


def size(g: Graph, x: str, axis: int) -> str:
    """The size of an axis, as a scalar."""
    return g.Gather(g.Shape(x), axis)


def real(g: Graph, lengths: str, time: str) -> str:
    """Which keys are no padding, (batch, 1, 1, key)."""
    inside = g.Less(g.Unsqueeze(g.Range(0, time, 1), [0]), g.Unsqueeze(lengths, [1]))
    return g.Unsqueeze(inside, [1, 2])


def first_site(stack: Encoder | Decoder) -> MultiHeadAttention:
    """The attention of the first block to itself; all others have its sizes."""
    return cast(EncoderBlock, stack.blocks[0]).self_attention


def width(site: MultiHeadAttention) -> int:
    """The features of a head."""
    return site.to_q.out_features // site.heads


def _look_back(g: Graph, x: str, site, here: Here, past, n: int, kept: list[Pair]) -> str:
    k, v = keys_values(g, x, site, here.turns)
    if past is not None:
        k, v = (g.Concat(old, new, axis=2) for old, new in zip(past[n], (k, v), strict=True))
    kept.append((k, v))
    return attend(g, x, site, (k, v), here.allowed, here.turns)


def _think(g: Graph, x: str, block: EncoderBlock | DecoderBlock) -> str:
    layer = block.feed_forward
    return residual(g, x, block.feed_forward_residual, lambda x: feed_forward(g, x, layer))


def _spread(g: Graph, x: str, site: MultiHeadAttention) -> str:
    """A key head for each query head."""
    each = site.heads // site.key_heads
    if each == 1:
        return x
    many = g.Expand(g.Unsqueeze(x, [2]), [1, 1, each, 1, 1])
    return g.Reshape(many, [0, site.heads, -1, width(site)])


def _softmax(g: Graph, scores: str, sinks: Tensor | None) -> str:
    if sinks is None:
        return g.Softmax(scores, axis=-1)
    shape = g.Concat(g.Slice(g.Shape(scores), [0], [3]), [1], axis=0)
    sink = g.Expand(sinks.detach()[None, :, None, None], shape)
    weights = g.Softmax(g.Concat(scores, sink, axis=-1), axis=-1)
    return g.Slice(weights, [0], [-1], [-1])
