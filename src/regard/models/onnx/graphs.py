"""ONNX graphs of every model that can be exported."""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.classifier import Classifier
from regard.models.language import LanguageModel
from regard.models.onnx import emit
from regard.models.onnx.emit import Graph
from regard.models.recurrent import RecurrentTranslator
from regard.models.speech import Recogniser
from regard.models.translator import Translator
from regard.models.vision import VisionTransformer
from regard.nn import (
    BahdanauDecoder,
    Decoder,
    DecoderBlock,
    Encoder,
    LuongDecoder,
    Readout,
    Recurrent,
    StateAttention,
    TimeFrequencyConv,
    TokenEmbedding,
)
from regard.nn.recurrent.layers import CELL_WEIGHTS, RecurrentCell
from regard.ops import audio
from regard.ops.recurrence.weights import reorder_blocks

FLOOR = 1e-10  # of log_mel
END = 2**62  # of a slice to the end of an axis
# our gates in ONNX's order: GRU z r h, LSTM i o f c; its z keeps the state where ours updates it
GATE_ORDER = {"rnn": (0,), "gru": (0, 1, 2), "lstm": (0, 2, 1, 3)}


def vision_graphs(model: VisionTransformer) -> list[Graph]:
    """`classifier`: images → logits; any size that is a multiple of the patch size."""
    g, config, dim = Graph("classifier"), model.config, model.config.dim
    images = g.input("images", ["batch", config.channels, "height", "width"])
    grid = emit.layer(g, images, model.patches.project)
    patches = g.Transpose(g.Reshape(grid, [0, dim, -1]), perm=[0, 2, 1])
    batch = g.Slice(g.Shape(images), [0], [1])
    cls = g.Expand(model.cls.token.detach()[None, None], g.Concat(batch, [1, dim], axis=0))
    x = g.Add(g.Concat(cls, patches, axis=1), _position_embeddings(g, model, grid))
    context = emit.context(g, model.encoder, 0, emit.size(g, x, 1))
    x = g.Gather(emit.stack(g, x, model.encoder, context)[0], 0, axis=1)
    x = x if model.pre_logits is None else g.Tanh(emit.layer(g, x, model.pre_logits))
    g.output("logits", emit.layer(g, x, model.head), ["batch", config.classes])
    return [g]


def classifier_graphs(model: Classifier) -> list[Graph]:
    """`classifier`: tokens, lengths → logits, or a vector where the model has no head."""
    g, config = Graph("classifier"), model.config
    tokens = g.input("tokens", ["batch", "time"], integer=True)
    lengths = g.input("lengths", ["batch"], integer=True)
    segments = g.input("segments", ["batch", "time"], integer=True) if config.segments else None
    time = emit.size(g, tokens, 1)
    padding = emit.padding_mask(g, lengths, time)
    context = emit.context(g, model.encoder, 0, time, padding)
    x = emit.embedding(g, tokens, model.embedding, context.positions, segments)
    x, _ = emit.stack(g, x, model.encoder, context)
    if config.pooling == "first":
        x = g.Gather(x, 0, axis=1)
    elif config.pooling == "mean":
        each = g.Cast(g.Squeeze(g.Transpose(padding, perm=[0, 3, 1, 2]), [3]), to=1)
        x = g.Div(g.ReduceSum(g.Mul(x, each), [1], keepdims=0), g.ReduceSum(each, [1], keepdims=0))
    x = x if model.pooler is None else g.Tanh(emit.layer(g, x, model.pooler))
    shape = ["batch", *["time"] * (config.pooling == "none"), config.classes or config.dim]
    g.output("logits", emit.layer(g, x, model.head), shape)
    return [g]


def recogniser_graphs(model: Recogniser) -> list[Graph]:
    """`features`: wave → frames.   `step`: frames and the state → log_probs and the state.

    The state is the left context of each convolution (`inputs.n`), cached keys and values (`past`),
    the number of outputs so far (`offset`) and, for a model with CMVN, `cmvn_state`. Pieces are
    multiples of 4 · chunk frames; the last may have any size.
    """
    if model.config.chunk is None or model.config.left_chunks is None:
        raise ConfigError(
            "left_chunks: needs a bounded left context to export the step, got chunk="
            f"{model.config.chunk}, left_chunks={model.config.left_chunks}; "
            "try training with left_chunks=64"
        )
    return [_features(model), _recogniser_step(model, model.config.chunk, model.config.left_chunks)]


def _position_embeddings(g: Graph, model: VisionTransformer, grid: str) -> str:
    """Position embeddings, interpolated to the grid of patches."""
    table, (high, wide), dim = model.positions.detach(), model.config.grid, model.config.dim
    picture = table[1:].T.reshape(1, dim, high, wide)
    sizes = g.Concat([1, dim], g.Slice(g.Shape(grid), [2], [4]), axis=0)
    resized = g.Resize(picture, None, None, sizes, mode="cubic", cubic_coeff_a=-0.75)
    rows = g.Transpose(g.Reshape(resized, [1, dim, -1]), perm=[0, 2, 1])
    return g.Concat(table[None, :1], rows, axis=1)


def _features(model: Recogniser) -> Graph:
    """log max(floor, filters · |DFT(hann ⊙ frame)|²), the DFT as a convolution."""
    g, config = Graph("features"), model.config
    window, hop = audio.frame_sizes(config.sample_rate)
    fft = 1 << (window - 1).bit_length()
    angle = 2 * torch.pi / fft * torch.arange(fft // 2 + 1).double()[:, None] * torch.arange(window)
    waves = torch.cat([angle.cos(), angle.sin()]) * torch.hann_window(window, dtype=torch.float64)
    wave = g.Unsqueeze(g.input("wave", ["batch", "sample"]), [1])
    both = g.Conv(wave, waves.float()[:, None], strides=[hop])
    a, b = g.Split(both, count=2, axis=1, num_outputs=2)
    power = g.Transpose(g.Add(g.Mul(a, a), g.Mul(b, b)), perm=[0, 2, 1])
    filters = audio.mel_filters(config.n_mels, config.sample_rate, fft).float()
    frames = g.Log(g.Max(g.MatMul(power, filters.mT), FLOOR))
    g.output("frames", frames, ["batch", "time", config.n_mels])
    return g


def _recogniser_step(model: Recogniser, chunk: int, left: int) -> Graph:
    g, config, stack = Graph("step"), model.config, model.encoder
    x = g.input("frames", ["batch", "time", config.n_mels])
    convolutions = [cast(nn.Conv1d | TimeFrequencyConv, c) for c in model.subsample.convolutions]
    keep = model.subsample.left
    befores = [
        g.input(f"inputs.{n}", ["batch", c.in_channels, keep]) for n, c in enumerate(convolutions)
    ]
    past = g.input("past", emit.cache_axes(stack, "cached"))
    offset = g.input("offset", [1], integer=True)
    if config.cmvn_depth is not None:
        x = _online_cmvn(g, x, config.n_mels, config.cmvn_depth)
    x = g.Div(g.Sub(x, model.standardise.mean), model.standardise.std)
    x = g.Transpose(x, perm=[0, 2, 1])
    for n, (convolution, before) in enumerate(zip(convolutions, befores, strict=True)):
        x = g.Concat(before, x, axis=2)
        last = g.Slice(x, [-keep], [END], [2])
        g.output(f"inputs.{n}.next", last, ["batch", convolution.in_channels, keep])
        x = g.Gelu(emit.layer(g, x, convolution))
    x = emit.layer(g, g.Transpose(x, perm=[0, 2, 1]), model.subsample.out)
    first, new, cached = g.Squeeze(offset, [0]), emit.size(g, x, 1), emit.size(g, past, 4)
    mask = emit.chunk_mask(g, cached, g.Add(cached, new), chunk, left)
    context = emit.context(g, stack, first, g.Add(first, new), mask, past=past)
    x, cache = emit.stack(g, x, stack, context)
    log_probs = g.LogSoftmax(emit.layer(g, x, model.head), axis=-1)
    g.output("log_probs", log_probs, ["batch", "shorter", config.vocab])
    last = g.Slice(emit.join_layers(g, cache), [-chunk * left or END], [END], [4])
    g.output("past.next", last, emit.cache_axes(stack, "total"))
    g.output("offset.next", g.Add(offset, new), [1], integer=True)
    return g


def _online_cmvn(g: Graph, x: str, mels: int, depth: float) -> str:
    """`online_cmvn`; the recursions as one lower-triangular matrix, since ONNX has no scan op."""
    state, time = g.input("cmvn_state", ["batch", mels + 2]), emit.size(g, x, 1)
    place = g.Range(0, time, 1)
    since = g.Sub(g.Unsqueeze(place, [1]), g.Unsqueeze(place, [0]))  # negative: future frames
    ahead, loud = g.Less(since, 0), g.ReduceLogSumExp(x, [2], keepdims=0)
    fallen = g.Where(ahead, -torch.inf, g.Mul(g.Cast(since, to=1), -audio.LEVEL_DECAY))
    highest = g.ReduceMax(g.Add(g.Unsqueeze(loud, [1]), fallen), [2])
    first = g.Add(g.Unsqueeze(g.Slice(state, [0], [1], [1]), [1]), audio.MIN_LEVEL)
    decayed = g.Sub(
        first, g.Mul(g.Unsqueeze(g.Cast(g.Add(place, 1), to=1), [1]), audio.LEVEL_DECAY)
    )
    level = g.Max(highest, decayed, audio.MIN_LEVEL)
    sound = g.Cast(g.Greater(g.Unsqueeze(loud, [2]), g.Sub(level, audio.ACTIVE_MARGIN)), to=1)
    count = g.CumSum(sound, 1)
    row = g.Transpose(count, perm=[0, 2, 1])
    weights = g.Where(ahead, 0.0, g.Pow(audio.MEAN_DECAY, g.Sub(count, g.Where(ahead, 0.0, row))))
    weights = g.Mul(weights, g.Transpose(sound, perm=[0, 2, 1]))
    weight = g.ReduceSum(weights, [2])
    new = g.Concat(weight, g.MatMul(weights, x), axis=2)
    old = g.Unsqueeze(g.Slice(state, [1], [END], [1]), [1])
    sums = g.Add(new, g.Mul(g.Pow(audio.MEAN_DECAY, count), old))
    after = g.Slice(g.Concat(g.Sub(level, audio.MIN_LEVEL), sums, axis=2), [-1], [END], [1])
    g.output("cmvn_state.next", g.Squeeze(after, [1]), ["batch", mels + 2])
    total = g.Add(
        g.Slice(sums, [1], [END], [2]),
        g.Mul(g.Add(level, audio.PRIOR_MEAN), float(audio.PRIOR_FRAMES)),
    )
    mean = g.Div(total, g.Add(g.Slice(sums, [0], [1], [2]), float(audio.PRIOR_FRAMES)))
    return g.Sub(g.Max(x, g.Sub(level, depth)), mean)


def translator_graphs(model: Translator) -> list[Graph]:
    """`encoder`: tokens, lengths → memory; `step`: tokens, memory, lengths, past → logits, past."""
    memory_axes = emit.cache_axes(model.decoder, "source")
    g = encoder = Graph("encoder")
    tokens = g.input("tokens", ["batch", "source"], integer=True)
    lengths = g.input("lengths", ["batch"], integer=True)
    time = emit.size(g, tokens, 1)
    context = emit.context(g, model.encoder, 0, time, emit.padding_mask(g, lengths, time))
    x = emit.embedding(g, tokens, model.source_embedding, context.positions)
    x, _ = emit.stack(g, x, model.encoder, context)
    blocks = cast(Iterable[DecoderBlock], model.decoder.blocks)
    memory = [emit.keys_values(g, x, block.cross_attention) for block in blocks]
    g.output("memory", emit.join_layers(g, memory), memory_axes)

    g = step = Graph("step")
    tokens = g.input("tokens", ["batch", "time"], integer=True)
    memory = g.input("memory", memory_axes)
    lengths = g.input("lengths", ["batch"], integer=True)
    padding = emit.padding_mask(g, lengths, emit.size(g, memory, 4))
    parts = model.decoder, model.target_embedding, model.readout
    _step(g, tokens, *parts, memory=memory, memory_mask=padding)
    return [encoder, step]


def language_graphs(model: LanguageModel) -> list[Graph]:
    """`step`: tokens, past → logits, past; any number of tokens."""
    windows = set(model.config.resolved_window)
    if len(windows) > 1:
        raise ConfigError(f"window: needs one for all layers to export, got {model.config.window}")
    g = Graph("step")
    tokens = g.input("tokens", ["batch", "time"], integer=True)
    _step(g, tokens, model.decoder, model.embedding, model.readout, windows.pop())
    return [g]


def _step(
    g: Graph, tokens: str, stack: Encoder | Decoder, embedding: TokenEmbedding, readout: Readout,
    window: int | None = None, **memory: str,
) -> None:  # fmt: skip
    """The input `past`, and the outputs `logits` and `past.next`."""
    past = g.input("past", emit.cache_axes(stack))
    before = emit.size(g, past, 4)
    end = g.Add(before, emit.size(g, tokens, 1))
    mask = emit.chunk_mask(g, before, end, 1, None if window is None else window - 1)
    context = emit.context(g, stack, before, end, mask, past=past, **memory)
    x = emit.embedding(g, tokens, embedding, context.positions)
    x, cache = emit.stack(g, x, stack, context)
    weight = embedding.token_embeddings if readout.weight is None else readout.weight
    logits = emit.readout(g, x, readout, embedding.token_embeddings)
    g.output("logits", logits, ["batch", "time", len(weight)])
    g.output("past.next", emit.join_layers(g, cache), emit.cache_axes(stack, "total"))


def recurrent_graphs(model: RecurrentTranslator) -> list[Graph]:
    """`encoder`: tokens, lengths → values, keys, state; `step`: tokens, these → logits, state."""
    if model.config.attention == "hybrid":
        raise ConfigError(
            "attention: needs none, bahdanau or luong to export, got 'hybrid'; try one of these"
        )
    return [_recurrent_encoder(model), _recurrent_step(model)]


def _recurrent_encoder(model: RecurrentTranslator) -> Graph:
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


def _recurrent_step(model: RecurrentTranslator) -> Graph:
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
        return reorder_blocks(x.detach(), GATE_ORDER[kind], CELL_WEIGHTS[kind].torch_sign)

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
