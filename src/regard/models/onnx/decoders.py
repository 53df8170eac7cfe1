"""ONNX graphs of autoregressive Transformers: Translator and LanguageModel."""

from collections.abc import Iterable
from typing import cast

from regard.errors import ConfigError
from regard.models.language import LanguageModel
from regard.models.onnx import emit
from regard.models.onnx.graph import Graph
from regard.models.translator import Translator
from regard.nn import Decoder, DecoderBlock, Encoder, Readout, TokenEmbedding


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
    seen = emit.padding_mask(g, lengths, emit.size(g, memory, 4))
    parts = model.decoder, model.target_embedding, model.readout
    _step(g, tokens, *parts, memory=memory, memory_mask=seen)
    return [encoder, step]


def language_graphs(model: LanguageModel) -> list[Graph]:
    """`step`: tokens, past → logits, past; any number of tokens."""
    windows = set(model.config.windows)
    if len(windows) > 1:
        raise ConfigError(f"window: needs one for all layers to export, got {model.config.window}")
    g = Graph("step")
    tokens = g.input("tokens", ["batch", "time"], integer=True)
    _step(g, tokens, model.decoder, model.embedding, model.readout, windows.pop())
    return [g]


def _step(
    g: Graph,
    tokens: str,
    stack: Encoder | Decoder,
    embedding: TokenEmbedding,
    readout: Readout,
    window: int | None = None,
    **memory: str,
) -> None:
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
