"""Diagrams of blocks, stacks, models and recurrent cells, drawn from the object with its shapes."""

from functools import singledispatch
from typing import Any, cast

from torch import nn

from regard import models
from regard import nn as ours
from regard.costs.svg import BlockColumn, Diagram, Point, SvgCanvas
from regard.errors import ConfigError, counted


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
def _(model: ours.RecurrentCell) -> Diagram:
    return draw_cell(model)


@diagram.register
def _(model: ours.Recurrent | ours.AttentiveRecurrent) -> Diagram:
    both = ", both directions" if getattr(model, "bidirectional", False) else ""
    return draw_cell(cast(ours.RecurrentCell, model.cells[0]), f"; {model.layers} layers{both}")


@diagram.register
def _(model: ours.EncoderBlock | ours.DecoderBlock | ours.Encoder | ours.Decoder) -> Diagram:
    is_stack = isinstance(model, ours.Encoder | ours.Decoder)
    block = cast(Any, model.blocks[0] if is_stack else model)
    width = block.self_attention.to_q.in_features
    column = BlockColumn(SvgCanvas(), 0, f"x (time, {width})")
    for y in _stack(column, model) if is_stack else _block(column, model):
        size = "" if is_stack else f" (key, {block.cross_attention.to_k.in_features})"
        column.input_from_right(y, f"memory{size}")
    column.end(f"y (time, {width})")
    size = f"{counted(len(model.blocks), 'block')} of {width}" if is_stack else f"dim {width}"
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


def _stack(
    column: BlockColumn, stack: ours.Encoder | ours.Decoder, causal: bool = False
) -> list[float]:
    """One block in a frame, for all; returns the heights of its cross-attention inputs."""
    start = column.branch(22)
    sources = _block(column, cast(Any, stack.blocks[0]), causal)
    column.close_frame(start, f"× {len(stack.blocks)}")
    if stack.norm is not None:
        _norm(column, stack.norm)
    return sources


def _block(
    column: BlockColumn, block: ours.EncoderBlock | ours.DecoderBlock, causal: bool = False
) -> list[float]:
    if block.parallel:
        raise ConfigError("parallel: needs False to be drawn, got True")
    if not isinstance(block.self_attention, ours.MultiHeadAttention):
        mixer = block.self_attention.mixer
        raise ConfigError(f"mixer: needs 'attention' to be drawn, got {mixer!r}")
    is_decoder = isinstance(block, ours.DecoderBlock)
    name = "masked self-attention" if is_decoder or causal else "self-attention"
    _sublayer(column, block.self_residual, block.self_attention, name)
    sources = []
    if is_decoder:
        cross = block.cross_residual, block.cross_attention
        sources.append(_sublayer(column, *cross, "cross-attention"))
    _sublayer(column, block.feed_forward_residual, block.feed_forward, "feed-forward")
    return sources


def _sublayer(
    column: BlockColumn,
    around: ours.Residual,
    layer: ours.FeedForward | ours.MultiHeadAttention,
    name: str,
) -> float:
    """A sublayer with its norm and residual sum; returns the height of its box."""
    branch = column.branch()
    if around.norm_first:
        _norm(column, around.norm)
    if isinstance(layer, ours.FeedForward):
        d, h = layer.to_hidden.in_features, layer.to_hidden.out_features
        gated = ", gated" if layer.to_gate is not None else ""
        shape = f"{d} → {h} → {d}, {layer.activation}{gated}"
        y = column.box("feed", name, shape, f"{_count(layer)} parameters")
    else:
        heads = f"{layer.heads} heads of {layer.to_q.out_features // layer.heads}"
        if layer.kv_heads != layer.heads:
            heads += f", {layer.kv_heads} of keys"
        if layer.q_norm is not None:
            heads += ", q and k normed"
        kind, ports = ("cross", 1) if name.startswith("cross") else ("attention", 3)
        weights = f"W_q, W_k, W_v, W_o: {_count(layer)} parameters"
        y = column.box(kind, name, heads, weights, ports=ports)
    if around.output_norm is not None:
        _norm(column, around.output_norm)
    if around.skip:
        column.join(branch)
    if not around.norm_first:
        _norm(column, around.norm)
    return y


def _norm(column: BlockColumn, norm: ours.Norm) -> None:
    if norm.kind != "none":
        column.box("norm", {"layer": "layer norm", "rms": "RMS norm"}[norm.kind], slim=True)


def _embedding(column: BlockColumn, layer: ours.TokenEmbedding) -> None:
    vocab, width = layer.token_embeddings.shape
    column.box("token", "embedding", f"table {vocab} × {width}, positions {layer.positions}")


def _readout(column: BlockColumn, layer: ours.Readout, width: int, vocab: int) -> None:
    tied = ", tied to the embedding" if layer.weight is None else ""
    column.box("readout", "readout", f"{width} → {vocab}{tied}")


def _count(module: nn.Module) -> str:
    return f"{sum(p.numel() for p in module.parameters()):,}"


TOP, GATES, BUS = 60.0, 230.0, 310.0  # heights of the state, the gates, and their inputs


def draw_cell(cell: ours.RecurrentCell, note: str = "") -> Diagram:
    """Draw an RNN, GRU or LSTM cell."""
    canvas = SvgCanvas()
    title = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[cell.kind](canvas, cell)
    canvas.text(30, 0, title + note, at="start")
    w, u = f"W {cell.hidden}×{cell.dim}", f"U {cell.hidden}×{cell.hidden}"
    rows = f"each gate: {w}, {u}" + (", biases" if cell.w_bias is not None else "")
    count = sum(p.numel() for p in cell.parameters())
    canvas.text(30, 16, f"{rows}; {counted(count, 'parameter')}", small=True, at="start")
    return canvas.to_diagram(title + note)


def _gate(canvas: SvgCanvas, x: float, kind: str, function: str, name: str) -> None:
    canvas.box(x, GATES, 56, 40, kind, function, name)


def _wires(canvas: SvgCanvas, *paths: tuple[Point, ...]) -> None:
    for path in paths:
        canvas.wire(*path)


def _rnn(canvas: SvgCanvas, cell: ours.RecurrentCell) -> str:
    _wires(canvas, ((30, 110), (172, 110)), ((230, 190), (230, 132)), ((288, 110), (430, 110)))
    canvas.box(230, 110, 112, 44, "squash", "tanh", "W x + U h")
    canvas.text(30, 102, f"h_{{t-1}} ({cell.hidden})", at="start")
    canvas.text(238, 188, f"x_t ({cell.dim})", at="start")
    canvas.text(430, 102, f"h_t ({cell.hidden})", at="end")
    return f"RNN cell: x of {cell.dim}, h of {cell.hidden}"


def _gru(canvas: SvgCanvas, cell: ours.RecurrentCell) -> str:
    # h runs along the top; below, two wires bring h and x to the gates
    _wires(canvas, ((30, TOP), (290, TOP)), ((310, TOP), (410, TOP)), ((430, TOP), (560, TOP)))
    _wires(canvas, ((70, TOP), (70, BUS), (292, BUS), (292, 252)), ((142, BUS), (142, 252)))
    canvas.wire((30, 340), (420, 340), (420, 252))
    canvas.wire((158, 340), (158, 252), over=True)
    _wires(
        canvas, ((308, 340), (308, 252)), ((70, 150), (140, 150))
    )  # the second: U h, to be reset
    _wires(canvas, ((150, 210), (150, 160)), ((300, 210), (300, TOP + 10)))
    canvas.wire((160, 150), (360, 150), (360, GATES), (390, GATES), over=True)
    _wires(canvas, ((300, 105), (410, 105)), ((420, 210), (420, 115)), ((420, 95), (420, TOP + 10)))
    for x, y in ((70, TOP), (70, 150), (142, BUS), (158, 340), (308, 340), (300, 105)):
        canvas.dot(x, y)
    _gate(canvas, 150, "gate", "σ", "r")
    _gate(canvas, 300, "gate", "σ", "z")
    _gate(canvas, 420, "squash", "tanh", "ĥ")
    for x, y, sign in ((150, 150, "×"), (300, TOP, "×"), (420, 105, "×"), (420, TOP, "+")):
        canvas.node(x, y, sign)
    canvas.text(306, 86, "1 - z", small=True, at="start")
    canvas.text(350, 118, "z", small=True)
    canvas.text(78, 144, "U h", small=True, at="start")
    canvas.text(30, TOP - 8, f"h_{{t-1}} ({cell.hidden})", at="start")
    canvas.text(560, TOP - 8, f"h_t ({cell.hidden})", at="end")
    canvas.text(30, 358, f"x_t ({cell.dim})", at="start")
    return f"GRU cell: x of {cell.dim}, h of {cell.hidden}"


def _lstm(canvas: SvgCanvas, cell: ours.RecurrentCell) -> str:
    # C runs along the top, untouched but for × f and + i c̃; h and x come in below
    _wires(canvas, ((30, TOP), (140, TOP)), ((160, TOP), (290, TOP)), ((310, TOP), (620, TOP)))
    canvas.wire((30, BUS), (450, BUS), (450, 252))
    canvas.wire((90, 350), (90, BUS), arrow=False)
    canvas.dot(90, BUS)
    canvas.dot(530, TOP)
    for x in (150, 250, 350):
        canvas.dot(x, BUS)
        canvas.wire((x, BUS), (x, 252))
    _wires(canvas, ((150, 210), (150, TOP + 10)), ((250, 210), (250, 140), (290, 140)))
    _wires(canvas, ((350, 210), (350, 140), (310, 140)), ((300, 130), (300, TOP + 10)))
    _wires(canvas, ((530, TOP), (530, 98)), ((530, 132), (530, 180)))
    _wires(canvas, ((450, 210), (450, 190), (520, 190)), ((530, 200), (530, BUS), (620, BUS)))
    for x, name in ((150, "f"), (250, "i"), (450, "o")):
        _gate(canvas, x, "gate", "σ", name)
    _gate(canvas, 350, "squash", "tanh", "c̃")
    canvas.box(530, 115, 56, 34, "squash", "tanh")
    for x, y, sign in ((150, TOP, "×"), (300, TOP, "+"), (300, 140, "×"), (530, 190, "×")):
        canvas.node(x, y, sign)
    for y, name in ((TOP - 8, "C"), (BUS - 8, "h")):
        canvas.text(30, y, f"{name}_{{t-1}} ({cell.hidden})", at="start")
        canvas.text(620, y, f"{name}_t ({cell.hidden})", at="end")
    canvas.text(98, 350, f"x_t ({cell.dim})", at="start")
    return f"LSTM cell: x of {cell.dim}, h and C of {cell.hidden}"
