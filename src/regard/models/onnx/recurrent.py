"""ONNX graphs of the RecurrentTranslator, by the recurrent layers of ONNX."""

from typing import cast

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.models.onnx import emit
from regard.models.onnx.emit import Graph
from regard.models.recurrent import RecurrentTranslator
from regard.nn import BahdanauDecoder, LuongDecoder, Recurrent, StateAttention
from regard.nn.recurrent.layers import RecurrentCell

# our gates in ONNX's order: GRU z r h, LSTM i o f c; its z keeps the state where ours updates it
GATE_ORDER = {"rnn": (0,), "gru": (0, 1, 2), "lstm": (0, 2, 1, 3)}
GATE_SIGN = {"rnn": (1,), "gru": (-1, 1, 1), "lstm": (1, 1, 1, 1)}


def recurrent_graphs(model: RecurrentTranslator) -> list[Graph]:
    """`encoder`: tokens, lengths → values, keys, state; `step`: tokens, these → logits, state."""
    if model.config.attention == "hybrid":
        raise ConfigError(
            "attention: needs none, bahdanau or luong to export, got 'hybrid'; try one of these"
        )
    return [_encoder(model), _step(model)]


def _encoder(model: RecurrentTranslator) -> Graph:
    g, config = Graph("encoder"), model.config
    tokens = g.input("tokens", ["batch", "source"], integer=True)
    lengths = g.input("lengths", ["batch"], integer=True)
    x = emit.embedding(g, tokens, model.source_embedding)
    values, state = _unroll(g, x, cast(Recurrent, model.encoder), lengths=lengths)
    keys, decoder = values, model.decoder
    if isinstance(decoder, BahdanauDecoder | LuongDecoder):
        keys = emit.layer(g, values, decoder.cross_attention.to_key)
    g.output("values", values, ["batch", "source", config.hidden])
    g.output("keys", keys, ["batch", "source", config.hidden])
    g.output("state", g.Reshape(state, [0, 0, config.layers, -1]), _state_axes(model))
    return g


def _step(model: RecurrentTranslator) -> Graph:
    g, config, decoder = Graph("step"), model.config, model.decoder
    tokens = g.input("tokens", ["batch"], integer=True)
    values = g.input("values", ["batch", "source", config.hidden])
    keys = g.input("keys", ["batch", "source", config.hidden])
    lengths = g.input("lengths", ["batch"], integer=True)
    state = g.input("state", _state_axes(model))
    padding = g.Squeeze(emit.padding_mask(g, lengths, emit.size(g, values, 1)), [1])
    x = emit.embedding(g, g.Unsqueeze(tokens, [1]), model.target_embedding)
    core = cast(Recurrent, decoder.core)
    if isinstance(decoder, BahdanauDecoder):
        top = g.Unsqueeze(g.Gather(g.Gather(state, 0), config.layers - 1, axis=1), [1])
        c = _attend(g, top, keys, values, padding, decoder.cross_attention)
        x = g.Concat(x, c, axis=-1)
    h, after = _unroll(g, x, core, state=state)
    if isinstance(decoder, LuongDecoder):
        c = _attend(g, h, keys, values, padding, decoder.cross_attention)
        h = g.Tanh(emit.layer(g, g.Concat(c, h, axis=-1), decoder.mix))
    x = emit.layer(g, h, model.to_readout)
    logits = emit.readout(g, x, model.readout, model.target_embedding.token_embeddings)
    g.output("logits", g.Squeeze(logits, [1]), ["batch", config.target_vocab])
    g.output("state.next", after, _state_axes(model))
    return g


def _state_axes(model: RecurrentTranslator) -> list[str | int]:
    count = 2 if model.config.cell == "lstm" else 1
    return [count, "batch", model.config.layers, model.config.hidden]


def _unroll(
    g: Graph, x: str, layer: Recurrent, *, lengths: str | None = None, state: str | None = None
) -> tuple[str, str]:
    """All layers over a sequence; states are (h or h and c, batch, layer · direction, hidden)."""
    ways, kind = (2 if layer.bidirectional else 1), layer.kind
    x = g.Transpose(x, perm=[1, 0, 2])  # ONNX has the time first
    whole = None if lengths is None else g.Cast(lengths, to=g.onnx.TensorProto.INT32)
    held = 2 if kind == "lstm" else 1
    lasts: list[list[str]] = [[] for _ in range(held)]
    for n in range(layer.layers):
        cells = [cast(RecurrentCell, layer.cells[n * ways + way]) for way in range(ways)]
        firsts: list[str | None] = [None] * held
        if state is not None:  # one way only: the state of this layer in front
            firsts = [
                g.Unsqueeze(g.Gather(g.Gather(state, s), n, axis=1), [0]) for s in range(held)
            ]
        given = (x, *_weights(kind, cells), whole, *firsts)
        more = {"linear_before_reset": 1} if kind == "gru" else {}
        way = "bidirectional" if ways == 2 else "forward"
        y, *last = getattr(g, kind.upper())(
            *given, count=1 + held, hidden_size=layer.hidden, direction=way, **more
        )
        # (time, way, batch, hidden) to (time, batch, way · hidden)
        x = g.Reshape(g.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, ways * layer.hidden])
        for some, one in zip(lasts, last, strict=True):
            some.append(g.Transpose(one, perm=[1, 0, 2]))
    together = [g.Unsqueeze(g.Concat(*some, axis=1), [0]) for some in lasts]
    return g.Transpose(x, perm=[1, 0, 2]), g.Concat(*together, axis=0)


def _weights(kind: str, cells: list[RecurrentCell]) -> tuple[Tensor, Tensor, Tensor]:
    """W, U and both biases in ONNX's layout, directions first."""

    def reorder(x: Tensor) -> Tensor:
        blocks = x.detach().chunk(len(GATE_ORDER[kind]))
        return torch.cat([GATE_SIGN[kind][n] * blocks[n] for n in GATE_ORDER[kind]])

    def bias(cell: RecurrentCell) -> Tensor:
        none = torch.zeros_like(cell.u[:, 0])
        return torch.cat([reorder(none if b is None else b) for b in (cell.w_bias, cell.u_bias)])

    w, u = (torch.stack([reorder(getattr(cell, name)) for cell in cells]) for name in "wu")
    return w, u, torch.stack([bias(cell) for cell in cells])


def _attend(g: Graph, query: str, keys: str, values: str, mask: str, layer: StateAttention) -> str:
    """Attention of a query over the encoder states, (batch, 1, hidden)."""
    q = emit.layer(g, query, layer.to_query)
    if layer.v is not None:  # v · tanh(q + k)
        both = g.Tanh(g.Add(g.Unsqueeze(q, [2]), g.Unsqueeze(keys, [1])))
        scores = g.Squeeze(g.MatMul(both, layer.v.detach()[:, None]), [-1])
    else:
        scores = g.MatMul(q, g.Transpose(keys, perm=[0, 2, 1]))
    return g.MatMul(g.Softmax(g.Where(mask, scores, emit.MASKED_SCORE), axis=-1), values)
