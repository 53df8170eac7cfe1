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


@singledispatch
def diagram(model: nn.Module) -> Diagram:
    """Draw a block diagram of a block, stack, model or recurrent cell.

    >>> drawing = rg.costs.diagram(rg.nn.EncoderBlock(512, 8))
    >>> "8 heads of 64" in drawing.svg, "512 → 2048 → 512" in drawing.svg
    (True, True)
    """
    raise ConfigError(
        "model: needs a block, stack, cell, Translator, LanguageModel, Classifier or "
        f"VisionTransformer, got {type(model).__name__}; try one of its parts"
    )


@diagram.register
def _(model: RecurrentCell) -> Diagram:
    return draw_cell(model)


@diagram.register(Recurrent)
@diagram.register(AttentiveRecurrent)
def _(model: Recurrent | AttentiveRecurrent) -> Diagram:
    both = ", both directions" if getattr(model, "bidirectional", False) else ""
    return draw_cell(cast(RecurrentCell, model.cells[0]), f"; {model.layers} layers{both}")


@diagram.register(EncoderBlock)
@diagram.register(DecoderBlock)
@diagram.register(Encoder)
@diagram.register(Decoder)
def _(model: EncoderBlock | DecoderBlock | Encoder | Decoder) -> Diagram:
    is_stack = isinstance(model, Encoder | Decoder)
    block = cast(Any, model.blocks[0] if is_stack else model)
    width = block.self_attention.to_q.in_features
    column = BlockColumn(SvgCanvas(), 0, f"x (time, {width})")
    for y in _stack(column, model) if is_stack else _block(column, model):
        size = "" if is_stack else f" (key, {block.cross_attention.to_k.in_features})"
        column.input_from_right(y, f"memory{size}")
    column.end(f"y (time, {width})")
    size = f"{len(model.blocks)} blocks of {width}" if is_stack else f"dim {width}"
    return column.canvas.to_diagram(f"{type(model).__name__}, {size}")


@diagram.register
def _(model: models.Translator) -> Diagram:
    canvas, config = SvgCanvas(), model.config
    left, right = BlockColumn(canvas, 0, "source (M)"), BlockColumn(canvas, 330, "target (N)")
    _embedding(left, model.source_embedding)
    _stack(left, model.encoder)
    _embedding(right, model.target_embedding)
    inputs = _stack(right, model.decoder)
    _readout(right, model.readout, config.dim, config.target_vocab)
    left.connect(right, inputs, f"memory (M, {config.dim})")
    return _finish(right, f"logits (N, {config.target_vocab})", model)


@diagram.register
def _(model: models.LanguageModel) -> Diagram:
    column = BlockColumn(SvgCanvas(), 0, "tokens (time)")
    _embedding(column, model.embedding)
    _stack(column, model.decoder, causal=True)
    _readout(column, model.readout, model.config.dim, model.config.vocab)
    return _finish(column, f"logits (time, {model.config.vocab})", model)


@diagram.register
def _(model: models.Classifier) -> Diagram:
    config, column = model.config, BlockColumn(SvgCanvas(), 0, "tokens (time)")
    _embedding(column, model.embedding)
    _stack(column, model.encoder)
    shape = "time, " if config.pooling == "none" else ""
    if config.pooling != "none":
        pooled = "first token" if config.pooling == "first" else "mean over time"
        column.box("readout", "pool", f"{pooled}: ({config.dim})")
    if model.head is not None:
        column.box("readout", "linear", f"{config.dim} → {config.classes}")
    return _finish(column, f"({shape}{config.classes or config.dim})", model)


@diagram.register
def _(model: models.VisionTransformer) -> Diagram:
    config, side, patch = model.config, model.config.image_size, model.config.patch_size
    column = BlockColumn(SvgCanvas(), 0, f"image ({config.channels}, {side}, {side})")
    column.box("token", "patches", f"{patch}×{patch} each → {config.dim}")
    column.box("token", "class token, positions", f"({config.tokens}, {config.dim})")
    _stack(column, model.encoder)
    column.box("readout", "linear, class token", f"{config.dim} → {config.classes}")
    return _finish(column, f"({config.classes})", model)


def _finish(column: BlockColumn, label: str, model: nn.Module) -> Diagram:
    column.end(label)
    return column.canvas.to_diagram(f"{type(model).__name__}, {_count(model)} parameters")


def _stack(column: BlockColumn, stack: Encoder | Decoder, causal: bool = False) -> list[float]:
    """One block in a frame, for all; returns the heights of its cross-attention inputs."""
    start = column.branch(22)
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
        cross = block.cross_residual, block.cross_attention
        sources.append(_sublayer(column, *cross, "cross-attention"))
    _sublayer(column, block.feed_forward_residual, block.feed_forward, "feed-forward")
    return sources


def _sublayer(
    column: BlockColumn, around: Residual, layer: FeedForward | MultiHeadAttention, name: str
) -> float:
    """A sublayer with its norm and residual sum; returns the height of its box."""
    branch = column.branch()
    if around.norm_first:
        _norm(column, around.norm)
    if isinstance(layer, FeedForward):
        d, h = layer.to_hidden.in_features, layer.to_hidden.out_features
        gated = ", gated" if layer.to_gate is not None else ""
        shape = f"{d} → {h} → {d}, {layer.activation}{gated}"
        y = column.box("feed", name, shape, f"{_count(layer)} parameters")
    else:
        heads = f"{layer.heads} heads of {layer.to_q.out_features // layer.heads}"
        if layer.kv_heads != layer.heads:
            heads += f", {layer.kv_heads} of keys"
        kind, ports = ("cross", 1) if name.startswith("cross") else ("attention", 3)
        weights = f"W_q, W_k, W_v, W_o: {_count(layer)} parameters"
        y = column.box(kind, name, heads, weights, ports=ports)
    if around.skip:
        column.join(branch)
    if not around.norm_first:
        _norm(column, around.norm)
    return y


def _norm(column: BlockColumn, norm: Norm) -> None:
    if norm.kind != "none":
        column.box("norm", {"layer": "layer norm", "rms": "RMS norm"}[norm.kind], slim=True)


def _embedding(column: BlockColumn, layer: TokenEmbedding) -> None:
    vocab, width = layer.token_embeddings.shape
    column.box("token", "embedding", f"table {vocab} × {width}, positions {layer.positions}")


def _readout(column: BlockColumn, layer: Readout, width: int, vocab: int) -> None:
    tied = ", tied to the embedding" if layer.weight is None else ""
    column.box("readout", "readout", f"{width} → {vocab}{tied}")


def _count(module: nn.Module) -> str:
    return f"{sum(p.numel() for p in module.parameters()):,}"
