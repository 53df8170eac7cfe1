"""Diagrams of blocks, stacks and models, drawn from the object with its shapes."""

from functools import singledispatch
from typing import Any, cast

from torch import nn

from regard import models
from regard.costs.block_column import BlockColumn
from regard.costs.cell_diagrams import draw_cell
from regard.costs.svg import Diagram, SvgCanvas
from regard.errors import ConfigError
from regard.nn import (
    AttentiveRecurrent,
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    Norm,
    Readout,
    Recurrent,
    RecurrentCell,
    Residual,
    TokenEmbedding,
)


def diagram(model: nn.Module) -> Diagram:
    """Draw a block diagram of a block, stack, model or recurrent cell.

    Norm placement, heads, widths and connections come from the object.

    >>> drawing = rg.costs.diagram(rg.nn.EncoderBlock(512, 8))
    >>> "8 heads of 64" in drawing.svg, "512 → 2048 → 512" in drawing.svg
    (True, True)
    """
    return _draw(model)


@singledispatch
def _draw(model: nn.Module) -> Diagram:
    raise ConfigError(
        "model: needs a block, stack, cell, Translator, LanguageModel, Classifier or "
        f"VisionTransformer, got {type(model).__name__}; try one of its parts"
    )


@_draw.register
def _(model: RecurrentCell) -> Diagram:
    return draw_cell(model)


@_draw.register(Recurrent)
@_draw.register(AttentiveRecurrent)
def _(model: Recurrent | AttentiveRecurrent) -> Diagram:
    both = ", both directions" if getattr(model, "bidirectional", False) else ""
    return draw_cell(cast(RecurrentCell, model.cells[0]), f"; {model.layers} layers{both}")


@_draw.register(EncoderBlock)
@_draw.register(DecoderBlock)
def _(model: EncoderBlock | DecoderBlock) -> Diagram:
    canvas, width = SvgCanvas(), model.self_attention.to_q.in_features
    column = BlockColumn(canvas, 0, f"x (time, {width})")
    sources = _block(column, model)
    column.end(f"y (time, {width})")
    for y in sources:
        cross = cast(DecoderBlock, model).cross_attention
        column.input_from_right(y, f"memory (key, {cross.to_k.in_features})")
    return canvas.to_diagram(f"{type(model).__name__}, dim {width}")


@_draw.register(Encoder)
@_draw.register(Decoder)
def _(model: Encoder | Decoder) -> Diagram:
    canvas, width = SvgCanvas(), _width(model)
    column = BlockColumn(canvas, 0, f"x (time, {width})")
    for y in _stack(column, model):
        column.input_from_right(y, "memory")
    column.end(f"y (time, {width})")
    return canvas.to_diagram(f"{type(model).__name__}, {len(model.blocks)} blocks of {width}")


@_draw.register
def _(model: models.Translator) -> Diagram:
    canvas, width = SvgCanvas(), model.config.dim
    left, right = BlockColumn(canvas, 0, "source (M)"), BlockColumn(canvas, 330, "target (N)")
    _embedding(left, model.source_embedding)
    _stack(left, model.encoder)
    _embedding(right, model.target_embedding)
    inputs = _stack(right, model.decoder)
    _readout(right, model.readout, width, model.config.target_vocab)
    right.end(f"logits (N, {model.config.target_vocab})")
    left.connect(right, inputs, f"memory (M, {width})")
    return canvas.to_diagram(f"Translator, {_count(model)} parameters")


@_draw.register
def _(model: models.LanguageModel) -> Diagram:
    canvas = SvgCanvas()
    column = BlockColumn(canvas, 0, "tokens (time)")
    _embedding(column, model.embedding)
    _stack(column, model.decoder, causal=True)
    _readout(column, model.readout, model.config.dim, model.config.vocab)
    column.end(f"logits (time, {model.config.vocab})")
    return canvas.to_diagram(f"LanguageModel, {_count(model)} parameters")


@_draw.register
def _(model: models.Classifier) -> Diagram:
    canvas, config = SvgCanvas(), model.config
    column = BlockColumn(canvas, 0, "tokens (time)")
    _embedding(column, model.embedding)
    _stack(column, model.encoder)
    pooled = "first token" if config.pooling == "first" else "mean over time"
    column.box("readout", "pool", f"{pooled}: ({config.dim})")
    if model.head is not None:
        column.box("readout", "linear", f"{config.dim} → {config.classes}")
    column.end(f"({config.classes or config.dim})")
    return canvas.to_diagram(f"Classifier, {_count(model)} parameters")


@_draw.register
def _(model: models.VisionTransformer) -> Diagram:
    canvas, config = SvgCanvas(), model.config
    column = BlockColumn(
        canvas, 0, f"image ({config.channels}, {config.image_size}, {config.image_size})"
    )
    column.box("token", "patches", f"{config.patch_size}×{config.patch_size} each → {config.dim}")
    column.box("token", "class token, positions", f"({config.tokens}, {config.dim})")
    _stack(column, model.encoder)
    column.box("readout", "linear, class token", f"{config.dim} → {config.classes}")
    column.end(f"({config.classes})")
    return canvas.to_diagram(f"VisionTransformer, {_count(model)} parameters")


def _stack(column: BlockColumn, stack: Encoder | Decoder, causal: bool = False) -> list[float]:
    """One block in a frame, for all; returns the heights of its cross-attention inputs."""
    start = column.open_frame()
    sources = _block(column, cast(Any, stack.blocks[0]), causal)
    column.close_frame(start, f"× {len(stack.blocks)}")
    if stack.norm is not None:
        _norm(column, stack.norm)
    return sources


def _block(
    column: BlockColumn, block: EncoderBlock | DecoderBlock, causal: bool = False
) -> list[float]:
    is_decoder = isinstance(block, DecoderBlock)
    name = "masked self-attention" if is_decoder or causal else "self-attention"
    _sublayer(column, block.self_residual, block.self_attention, name)
    sources = []
    if is_decoder:
        sources.append(
            _sublayer(column, block.cross_residual, block.cross_attention, "cross-attention")
        )
    _sublayer(column, block.feed_forward_residual, block.feed_forward, "feed-forward")
    return sources


def _sublayer(column: BlockColumn, around: Residual, inside: nn.Module, name: str) -> float:
    """A sublayer with its norm and residual sum; returns the height of its box."""
    branch = column.branch()
    if around.norm_first:
        _norm(column, around.norm)
    if isinstance(inside, FeedForward):
        y = column.box("feed", name, *_feed_forward_lines(inside))
    else:
        assert isinstance(inside, MultiHeadAttention)
        kind = "cross" if name.startswith("cross") else "attention"
        y = column.box(kind, name, *_attention_lines(inside), ports=1 if kind == "cross" else 3)
    if around.skip:
        column.join(branch)
    if not around.norm_first:
        _norm(column, around.norm)
    return y


def _attention_lines(layer: MultiHeadAttention) -> tuple[str, ...]:
    head_dim = layer.to_q.out_features // layer.heads
    heads = f"{layer.heads} heads of {head_dim}"
    if layer.kv_heads != layer.heads:
        heads += f", {layer.kv_heads} of keys"
    return heads, f"W_q, W_k, W_v, W_o: {_count(layer)} parameters"


def _feed_forward_lines(layer: FeedForward) -> tuple[str, ...]:
    d, h = layer.to_hidden.in_features, layer.to_hidden.out_features
    gated = ", gated" if layer.to_gate is not None else ""
    return f"{d} → {h} → {d}, {layer.activation}{gated}", f"{_count(layer)} parameters"


def _norm(column: BlockColumn, norm: Norm) -> None:
    if norm.kind != "none":
        column.box("norm", {"layer": "layer norm", "rms": "RMS norm"}[norm.kind], slim=True)


def _embedding(column: BlockColumn, layer: TokenEmbedding) -> None:
    vocab, width = layer.token_embeddings.shape
    column.box("token", "embedding", f"table {vocab} × {width}, positions {layer.positions}")


def _readout(column: BlockColumn, layer: Readout, width: int, vocab: int) -> None:
    tied = ", tied to the embedding" if layer.weight is None else ""
    column.box("readout", "readout", f"{width} → {vocab}{tied}")


def _width(stack: Encoder | Decoder) -> int:
    return cast(Any, stack.blocks[0]).self_attention.to_q.in_features


def _count(module: nn.Module) -> str:
    return f"{sum(p.numel() for p in module.parameters()):,}"
