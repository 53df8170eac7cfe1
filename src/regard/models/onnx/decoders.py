"""ONNX graphs of autoregressive Transformers: Translator and LanguageModel."""

from regard.errors import ConfigError
from regard.models.language import LanguageModel
from regard.models.onnx import layers
from regard.models.onnx.graph import Graph
from regard.models.translator import Translator
from regard.nn import Decoder, DecoderBlock, Encoder, MultiHeadAttention


def translator_graphs(model: Translator) -> list[Graph]:
    """`encoder`: tokens, lengths → memory.   `step`: tokens, memory, lengths, past → logits, past.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval()
    >>> [graph.inputs for graph in translator_graphs(model)]
    [['tokens', 'lengths'], ['tokens', 'memory', 'lengths', 'past']]
    """
    return [_encoder(model), _step(model)]


def language_graphs(model: LanguageModel) -> list[Graph]:
    """`step`: tokens, past → logits, past; any number of tokens.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> [graph.outputs for graph in language_graphs(model)]
    [['logits', 'past.next']]
    """
    windows = set(model.config.windows)
    if len(windows) > 1:
        raise ConfigError(f"window: needs one for all layers to export, got {model.config.window}")
    g, stack = Graph("step"), model.decoder
    tokens = g.input("tokens", ["batch", "time"], integer=True)
    past = g.input("past", cache_axes(stack))
    before = layers.emit_size(g, past, 4)
    after = g.Add(before, layers.emit_size(g, tokens, 1))
    allowed = emit_causal_mask(g, before, after, windows.pop())
    here = layers.emit_context(g, stack, before, after, allowed)
    x = layers.emit_embedding(g, tokens, model.embedding, here)
    held = layers.emit_unstack_layers(g, past, len(stack.blocks))
    x, kept = layers.emit_encoder(g, x, stack, here, held)
    logits = layers.emit_readout(g, x, model.readout, model.embedding.token_embeddings)
    g.output("logits", logits, ["batch", "time", model.config.vocab])
    g.output("past.next", layers.emit_stack_layers(g, kept), cache_axes(stack, "total"))
    return [g]


def _encoder(model: Translator) -> Graph:
    g, stack = Graph("encoder"), model.encoder
    tokens = g.input("tokens", ["batch", "source"], integer=True)
    lengths = g.input("lengths", ["batch"], integer=True)
    time = layers.emit_size(g, tokens, 1)
    here = layers.emit_context(g, stack, 0, time, layers.emit_padding_mask(g, lengths, time))
    x, _ = layers.emit_encoder(
        g, layers.emit_embedding(g, tokens, model.source_embedding, here), stack, here
    )
    memory = layers.emit_stack_layers(
        g, [layers.emit_keys_values(g, x, site) for site in _cross_attentions(model)]
    )
    g.output("memory", memory, cache_axes(model.decoder, "source"))
    return g


def _step(model: Translator) -> Graph:
    g, stack = Graph("step"), model.decoder
    tokens = g.input("tokens", ["batch", "time"], integer=True)
    memory = g.input("memory", cache_axes(model.decoder, "source"))
    lengths = g.input("lengths", ["batch"], integer=True)
    past = g.input("past", cache_axes(stack))
    before = layers.emit_size(g, past, 4)
    after = g.Add(before, layers.emit_size(g, tokens, 1))
    here = layers.emit_context(g, stack, before, after, emit_causal_mask(g, before, after))
    x = layers.emit_embedding(g, tokens, model.target_embedding, here)
    seen = layers.emit_padding_mask(g, lengths, layers.emit_size(g, memory, 4))
    held, read = (layers.emit_unstack_layers(g, one, len(stack.blocks)) for one in (past, memory))
    x, kept = layers.emit_decoder(g, x, stack, here, held, read, seen)
    logits = layers.emit_readout(g, x, model.readout, model.target_embedding.token_embeddings)
    g.output("logits", logits, ["batch", "time", model.config.target_vocab])
    g.output("past.next", layers.emit_stack_layers(g, kept), cache_axes(stack, "total"))
    return g


def emit_causal_mask(g: Graph, before: str, end: str, window: int | None = None) -> str:
    """Causal mask of the new tokens, inside the window, (time, key)."""
    query = g.Unsqueeze(g.Range(before, end, 1), [1])
    key = g.Unsqueeze(g.Range(0, end, 1), [0])
    allowed = g.LessOrEqual(key, query)
    if window is None:
        return allowed
    return g.And(allowed, g.Greater(key, g.Sub(query, window)))


def cache_axes(stack: Encoder | Decoder, time: str = "cached") -> list[str | int]:
    """Axes of the stacked keys and values of all layers."""
    site = layers.first_attention(stack)
    return [len(stack.blocks), 2, "batch", site.kv_heads, time, layers.get_head_dim(site)]


def _cross_attentions(model: Translator) -> list[MultiHeadAttention]:
    blocks = [block for block in model.decoder.blocks if isinstance(block, DecoderBlock)]
    return [block.cross_attention for block in blocks]
