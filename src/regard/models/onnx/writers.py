"""Models that write, as graphs: a Translator's encoder and step, a LanguageModel's step."""

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
    """`step`: tokens, past → logits, past; many tokens at once, or one.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> [graph.outputs for graph in language_graphs(model)]
    [['logits', 'past.next']]
    """
    g, stack = Graph("step"), model.decoder
    tokens = g.input("tokens", ["batch", "time"], whole=True)
    past = g.input("past", past_axes(stack))
    before = layers.size(g, past, 4)
    after = g.Add(before, layers.size(g, tokens, 1))
    allowed = looking_back(g, before, after, model.config.window)
    here = layers.standing(g, stack, before, after, allowed)
    x = layers.embed(g, tokens, model.embedding, here)
    held = layers.unstacked(g, past, len(stack.blocks))
    x, kept = layers.encode(g, x, stack, here, held)
    logits = layers.readout(g, x, model.readout, model.embedding.table)
    g.output("logits", logits, ["batch", "time", model.config.vocab])
    g.output("past.next", layers.stacked(g, kept), past_axes(stack, "after"))
    return [g]


def _encoder(model: Translator) -> Graph:
    g, stack = Graph("encoder"), model.encoder
    tokens = g.input("tokens", ["batch", "source"], whole=True)
    lengths = g.input("lengths", ["batch"], whole=True)
    time = layers.size(g, tokens, 1)
    here = layers.standing(g, stack, 0, time, layers.real(g, lengths, time))
    x, _ = layers.encode(g, layers.embed(g, tokens, model.source_embedding, here), stack, here)
    memory = layers.stacked(g, [layers.keys_values(g, x, site) for site in _across(model)])
    g.output("memory", memory, past_axes(model.decoder, "source"))
    return g


def _step(model: Translator) -> Graph:
    g, stack = Graph("step"), model.decoder
    tokens = g.input("tokens", ["batch", "time"], whole=True)
    memory = g.input("memory", past_axes(model.decoder, "source"))
    lengths = g.input("lengths", ["batch"], whole=True)
    past = g.input("past", past_axes(stack))
    before = layers.size(g, past, 4)
    after = g.Add(before, layers.size(g, tokens, 1))
    here = layers.standing(g, stack, before, after, looking_back(g, before, after))
    x = layers.embed(g, tokens, model.target_embedding, here)
    seen = layers.real(g, lengths, layers.size(g, memory, 4))
    held, read = (layers.unstacked(g, one, len(stack.blocks)) for one in (past, memory))
    x, kept = layers.decode(g, x, stack, here, held, read, seen)
    logits = layers.readout(g, x, model.readout, model.target_embedding.table)
    g.output("logits", logits, ["batch", "time", model.config.target_vocab])
    g.output("past.next", layers.stacked(g, kept), past_axes(stack, "after"))
    return g


def looking_back(g: Graph, before: str, after: str, window: int | None = None) -> str:
    """Which keys come no later than each new token, and inside the window, (time, key)."""
    query = g.Unsqueeze(g.Range(before, after, 1), [1])
    key = g.Unsqueeze(g.Range(0, after, 1), [0])
    allowed = g.LessOrEqual(key, query)
    if window is None:
        return allowed
    return g.And(allowed, g.Greater(key, g.Sub(query, window)))


def past_axes(stack: Encoder | Decoder, time: str = "past") -> list[str | int]:
    """The axes of keys and values of all layers, as one."""
    site = layers.first_site(stack)
    return [len(stack.blocks), 2, "batch", site.key_heads, time, layers.width(site)]


def _across(model: Translator) -> list[MultiHeadAttention]:
    blocks = [block for block in model.decoder.blocks if isinstance(block, DecoderBlock)]
    return [block.cross_attention for block in blocks]
