"""ONNX graphs node by node, and the layers of `nn` as nodes.

torch.onnx.export (2.13, dynamo) exports one of the six models, the Vision Transformer, in 1.9 s of
CPU time for 0.03 s here, to a file larger by a quarter, and needs onnxscript and onnx_ir. It stops
at sizes that depend on data (the row ranges of `attend`) and unrolls recurrent layers.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.files import atomic_write, import_extra, make_folder
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
    TimeFrequencyConv,
    TokenEmbedding,
)
from regard.ops.positions import RopeScaling, frequencies

OPSET, IR_VERSION = 20, 10  # of 2023: widely supported, and the first with Gelu
Axes = Sequence[str | int]


class Graph:
    """An ONNX graph; `graph.MatMul(a, b)` adds a node and returns the name of its output.

    Tensors and numbers among the inputs become initializers; a tensor is stored once.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ["time"])
    >>> graph.output("y", graph.Mul(x, 2.0), ["time"])
    >>> [node.op_type for node in graph.nodes]
    ['Mul', 'Identity']
    """

    def __init__(self, name: str):
        self.name, self.onnx = name, import_extra("onnx", "export", "to export")
        self.nodes, self.initializers = list[Any](), list[Any]()
        self.inputs, self.outputs = list[Any](), list[Any]()
        self._known: dict[Any, tuple[str, Tensor]] = {}

    def input(self, name: str, axes: Axes, *, integer: bool = False) -> str:
        """Add an input; an axis is a size, or a name where it is dynamic."""
        self.inputs.append(self._value_info(name, axes, integer))
        return name

    def output(self, name: str, value: str, axes: Axes, *, integer: bool = False) -> None:
        """Add an output: a value of the graph under this name."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append(self._value_info(name, axes, integer))

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        if not kind[0].isupper():
            raise AttributeError(kind)
        return lambda *inputs, **attributes: self._add(kind, inputs, **attributes)

    def initializer(self, x: Tensor) -> str:
        """The name of a constant, which is stored once."""
        x = x.detach().cpu().contiguous()
        key = (x.data_ptr(), x.shape, x.dtype)
        if key not in self._known:
            name = f"w{len(self.initializers)}"
            self.initializers.append(self.onnx.numpy_helper.from_array(x.numpy(), name))
            self._known[key] = name, x  # kept alive: a freed address would be reused
        return self._known[key][0]

    def save(self, folder: Path) -> Path:
        """Validate the graph and write it to `name`.onnx."""
        helper, file = self.onnx.helper, folder / f"{self.name}.onnx"
        parts = self.nodes, self.name, self.inputs, self.outputs, self.initializers
        model = helper.make_model(
            helper.make_graph(*parts),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="regard",
        )
        self.onnx.checker.check_model(model, full_check=True)
        make_folder(folder)
        with atomic_write(file) as place:
            place.write_bytes(model.SerializeToString())
        return file

    def _add(self, kind: str, inputs: Sequence[Any], *, count: int = 1, **attributes: Any) -> Any:
        names = [self._name(x) for x in inputs]
        outs = [f"{kind.lower()}{len(self.nodes)}_{n}" for n in range(count)]
        self.nodes.append(self.onnx.helper.make_node(kind, names, outs, **attributes))
        return outs[0] if count == 1 else outs

    def _name(self, x: Any) -> str:
        if x is None:
            return ""  # an omitted optional input
        if isinstance(x, str):
            return x
        if isinstance(x, Tensor):
            return self.initializer(x)
        integer = isinstance(x, int) or (isinstance(x, list) and all(isinstance(n, int) for n in x))
        return self.initializer(torch.tensor(x, dtype=torch.int64 if integer else torch.float32))

    def _value_info(self, name: str, axes: Axes, integer: bool) -> Any:
        kind = self.onnx.TensorProto.INT64 if integer else self.onnx.TensorProto.FLOAT
        return self.onnx.helper.make_tensor_value_info(name, kind, list(axes))


# a row of -inf would become NaN
MASKED_SCORE = torch.tensor(torch.finfo(torch.float32).min)
Pair = tuple[str, str]


class AttentionContext(NamedTuple):
    """What the layers of a stack attend with.

    `positions` of the new tokens is (time); `rotary` cos and sin, (time, pair), or None; masks
    broadcast to (batch, head, time, key), None: everything. `past` and `memory` are stacked keys
    and values, (layer, 2, batch, head, key, head_dim).
    """

    positions: str
    rotary: Pair | None = None
    mask: str | None = None
    past: str | None = None
    memory: str | None = None
    memory_mask: str | None = None


def layer(g: Graph, x: str, module: nn.Module | None) -> str:
    """A layer with one input and one output; None is the identity."""
    match module:
        case None | Norm(kind="none"):
            return x
        case nn.Sequential():
            return reduce(partial(layer, g), module, x)
        case nn.Linear():
            y = g.MatMul(x, module.weight.detach().mT)
            return y if module.bias is None else g.Add(y, module.bias)
        case nn.GELU():
            return g.Gelu(x)
        case nn.Conv1d() | nn.Conv2d():
            pads = 2 * [int(n) for n in module.padding]  # per axis, equal at both ends
            return g.Conv(x, module.weight, module.bias, strides=list(module.stride), pads=pads)
        case TimeFrequencyConv():
            bands = g.Reshape(x, [0, module.channels, module.bands, -1])
            return g.Reshape(layer(g, bands, module.filters), [0, module.out_channels, -1])
        case Norm(kind="layer", gain=Tensor() as gain):
            # onnxruntime 1.31 crashes when it fuses a norm without a bias
            bias = torch.zeros_like(gain) if module.bias is None else module.bias
            return g.LayerNormalization(x, gain, bias, axis=-1, epsilon=module.eps)
        case Norm(kind="rms"):
            square = g.ReduceMean(g.Mul(x, x), [-1])
            return g.Mul(g.Div(x, g.Sqrt(g.Add(square, module.eps))), module.gain)
        case FeedForward():
            h = layer(g, x, module.to_hidden)
            gate = h if module.to_gate is None else layer(g, x, module.to_gate)
            y = _activation(g, gate, module.activation)
            return layer(g, y if module.to_gate is None else g.Mul(y, h), module.to_out)
    raise AssertionError(type(module))


def _residual(g: Graph, x: str, module: Residual, sublayer: Callable[[str], str], read: str) -> str:
    """norm(x + f(read)), or x + f(norm(read))."""
    update = sublayer(layer(g, read, module.norm) if module.norm_first else read)
    update = layer(g, update, module.output_norm)
    y = g.Add(x, update) if module.skip else update
    return y if module.norm_first else layer(g, y, module.norm)


def embedding(
    g: Graph, tokens: str, module: TokenEmbedding, positions: str = "", segments: str | None = None
) -> str:
    """√dim · table[token] + position code + segment, as in `TokenEmbedding`."""
    dim = module.token_embeddings.shape[1]
    x = _scale(g, g.Gather(module.token_embeddings, tokens), module.scale)
    if module.position_embeddings is not None:
        x = g.Add(x, g.Gather(module.position_embeddings, positions))
    elif module.positions == "sinusoidal":
        cos, sin = _rope_angles(g, positions, dim, 10000.0)
        both = g.Concat(g.Unsqueeze(sin, [-1]), g.Unsqueeze(cos, [-1]), axis=-1)
        x = g.Add(x, g.Reshape(both, [0, dim]))
    if module.segment_embeddings is not None:
        x = g.Add(x, g.Gather(module.segment_embeddings, 0 if segments is None else segments))
    return layer(g, x, module.norm)


def readout(g: Graph, x: str, module: Readout, table: Tensor) -> str:
    """scale · x Wᵀ + b; W is the embedding table if tied."""
    weight = table if module.weight is None else module.weight
    logits = _scale(g, g.MatMul(x, g.Transpose(weight, perm=[1, 0])), module.scale)
    logits = logits if module.bias is None else g.Add(logits, module.bias)
    return _softcap(g, logits, module.softcap)


def _softcap(g: Graph, x: str, bound: float | None) -> str:
    return x if bound is None else g.Mul(g.Tanh(g.Div(x, float(bound))), float(bound))


def _rope_angles(
    g: Graph, positions: str, dim: int, base: float, scaling: RopeScaling | None = None
) -> Pair:
    """cos and sin of position · frequency, (time, pair), in double: positions may be large."""
    at = g.Unsqueeze(g.Cast(positions, to=g.onnx.TensorProto.DOUBLE), [1])
    angles = g.Mul(at, frequencies(dim, base, scaling=scaling)[None])
    cos, sin = (g.Cast(x, to=g.onnx.TensorProto.FLOAT) for x in (g.Cos(angles), g.Sin(angles)))
    amplitude = 1.0 if scaling is None else scaling.amplitude
    return _scale(g, cos, amplitude), _scale(g, sin, amplitude)


def keys_values(g: Graph, x: str, site: MultiHeadAttention, rotary: Pair | None = None) -> Pair:
    """Keys and values of the tokens."""
    k = _project(g, x, site.to_k, site.kv_heads, site.k_norm)
    return _rotate(g, k, rotary, site), _project(g, x, site.to_v, site.kv_heads)


def _attention(
    g: Graph, x: str, site: MultiHeadAttention, keys_values: Pair, mask: str | None,
    rotary: Pair | None = None,
) -> str:  # fmt: skip
    """softmax(scale · q kᵀ) v of the queries of x, heads joined and projected."""
    q = _rotate(g, _project(g, x, site.to_q, site.heads, site.q_norm), rotary, site)
    k, v = (_repeat_heads(g, part, site) for part in keys_values)
    scale = site.head_dim**-0.5 if site.scale is None else site.scale
    scores = g.MatMul(g.Mul(q, scale), g.Transpose(k, perm=[0, 1, 3, 2]))
    scores = _softcap(g, scores, site.softcap)
    if mask is not None:
        scores = g.Where(mask, scores, MASKED_SCORE)
    y = g.MatMul(_softmax(g, scores, site.sinks), v)
    joined = g.Reshape(g.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, site.to_out.in_features])
    return layer(g, joined, site.to_out)


def stack(
    g: Graph, x: str, stack: Encoder | Decoder, context: AttentionContext
) -> tuple[str, list[Pair]]:
    """A stack of blocks; returns the output and the keys and values of each layer."""
    cache: list[Pair] = []

    def attend_self(x: str, site: MultiHeadAttention) -> str:
        k, v = keys_values(g, x, site, context.rotary)
        if context.past is not None:
            old_k, old_v = _unstack_layer(g, context.past, len(cache))
            k, v = g.Concat(old_k, k, axis=2), g.Concat(old_v, v, axis=2)
        cache.append((k, v))
        return _attention(g, x, site, (k, v), context.mask, context.rotary)

    def attend_memory(x: str, site: MultiHeadAttention) -> str:
        assert context.memory is not None
        memory = _unstack_layer(g, context.memory, len(cache) - 1)
        return _attention(g, x, site, memory, context.memory_mask)

    for block in cast(Iterable[EncoderBlock | DecoderBlock], stack.blocks):
        attend, start = partial(attend_self, site=block.self_attention), x
        x = _residual(g, x, block.self_residual, attend, x)
        if isinstance(block, DecoderBlock):
            attend = partial(attend_memory, site=block.cross_attention)
            x = _residual(g, x, block.cross_residual, attend, start if block.parallel else x)
        feed_forward = partial(layer, g, module=block.feed_forward)
        read = start if block.parallel else x
        x = _residual(g, x, block.feed_forward_residual, feed_forward, read)
    return layer(g, x, stack.norm), cache


def context(
    g: Graph, stack: Encoder | Decoder, first: Any, end: str, mask: str | None = None, **more: str
) -> AttentionContext:
    """The context of new tokens at positions `first` to `end` - 1."""
    positions, site, rotary = g.Range(first, end, 1), _first_attention(stack), None
    if site.rope_theta is not None:
        dim, scaling = site.rope_dim or site.head_dim, site.rope_scaling
        rotary = _rope_angles(g, positions, dim, site.rope_theta, scaling)
    return AttentionContext(positions, rotary, mask, **more)


def join_layers(g: Graph, pairs: Iterable[Pair]) -> str:
    """Pairs of keys and values to (layer, 2, batch, head, time, head_dim)."""
    layers = [g.Concat(*(g.Unsqueeze(part, [0]) for part in pair), axis=0) for pair in pairs]
    return g.Concat(*(g.Unsqueeze(pair, [0]) for pair in layers), axis=0)


def size(g: Graph, x: str, axis: int) -> str:
    """The size of an axis, as a scalar."""
    return g.Gather(g.Shape(x), axis)


def padding_mask(g: Graph, lengths: str, time: str) -> str:
    """Mask of the keys that are not padding, (batch, 1, 1, key)."""
    inside = g.Less(g.Unsqueeze(g.Range(0, time, 1), [0]), g.Unsqueeze(lengths, [1]))
    return g.Unsqueeze(inside, [1, 2])


def chunk_mask(g: Graph, before: str, end: str, chunk: int, left: int | None) -> str:
    """Mask of new tokens over their chunk and `left` chunks before, (time, key); 1: causal."""
    query, key = g.Unsqueeze(g.Range(before, end, 1), [1]), g.Unsqueeze(g.Range(0, end, 1), [0])
    if chunk > 1:
        query, key = g.Div(query, chunk), g.Div(key, chunk)
    allowed = g.LessOrEqual(key, query)
    if left is None:
        return allowed
    return g.And(allowed, g.GreaterOrEqual(key, g.Sub(query, left)))


def cache_axes(stack: Encoder | Decoder, time: str = "cached") -> Axes:
    """Axes of the stacked keys and values of all layers."""
    site = _first_attention(stack)
    return [len(stack.blocks), 2, "batch", site.kv_heads, time, site.head_dim]


def _first_attention(stack: Encoder | Decoder) -> MultiHeadAttention:
    """Self-attention of the first block; all layers have the same sizes."""
    return cast(EncoderBlock, stack.blocks[0]).self_attention


def _activation(g: Graph, x: str, name: str) -> str:
    if name == "silu":
        return g.Mul(x, g.Sigmoid(x))
    if name == "relu":
        return g.Relu(x)
    return g.Gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def _scale(g: Graph, x: str, factor: float) -> str:
    return x if factor == 1.0 else g.Mul(x, float(factor))


def _project(g: Graph, x: str, to: nn.Linear, heads: int, norm: Norm | None = None) -> str:
    """(batch, time, dim) to (batch, head, time, head_dim)."""
    width, x = to.out_features // heads, layer(g, x, to)
    per_head = norm is not None and norm.gain is not None and len(norm.gain) == width
    split = g.Reshape(x if per_head else layer(g, x, norm), [0, 0, heads, width])
    return g.Transpose(layer(g, split, norm) if per_head else split, perm=[0, 2, 1, 3])


def _rotate(g: Graph, x: str, rotary: Pair | None, site: MultiHeadAttention) -> str:
    """Rotary embedding: rotates pairs of neighbours, or with `rotate_half` of both halves."""
    if rotary is None:
        return x
    rest, pairs = None, (site.rope_dim or site.head_dim) // 2
    if 2 * pairs < site.head_dim:
        rest = g.Slice(x, [2 * pairs], [site.head_dim], [3])
        x = g.Slice(x, [0], [2 * pairs], [3])
    shape, axis = ([2, pairs], -2) if site.rotate_half else ([pairs, 2], -1)
    a, b = g.Split(g.Reshape(x, [0, 0, 0, *shape]), count=2, axis=axis, num_outputs=2)
    cos, sin = (g.Unsqueeze(part, [axis]) for part in rotary)
    c = g.Sub(g.Mul(a, cos), g.Mul(b, sin))
    d = g.Add(g.Mul(a, sin), g.Mul(b, cos))
    turned = g.Reshape(g.Concat(c, d, axis=axis), [0, 0, 0, 2 * pairs])
    return turned if rest is None else g.Concat(turned, rest, axis=3)


def _unstack_layer(g: Graph, x: str, n: int) -> Pair:
    pair = g.Gather(x, n)
    return g.Gather(pair, 0), g.Gather(pair, 1)


def _repeat_heads(g: Graph, x: str, site: MultiHeadAttention) -> str:
    """Repeat key/value heads for grouped queries."""
    each = site.heads // site.kv_heads
    if each == 1:
        return x
    many = g.Expand(g.Unsqueeze(x, [2]), [1, 1, each, 1, 1])
    return g.Reshape(many, [0, site.heads, -1, site.head_dim])


def _softmax(g: Graph, scores: str, sinks: Tensor | None) -> str:
    if sinks is None:
        return g.Softmax(scores, axis=-1)
    shape = g.Concat(g.Slice(g.Shape(scores), [0], [3]), [1], axis=0)
    sink = g.Expand(sinks.detach()[None, :, None, None], shape)
    weights = g.Softmax(g.Concat(scores, sink, axis=-1), axis=-1)
    return g.Slice(weights, [0], [-1], [-1])
