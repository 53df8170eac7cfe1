"""Diagrams of RNN, GRU and LSTM cells, with the shapes of their weights."""

from regard.costs.svg import Diagram, Point, SvgCanvas
from regard.nn import RecurrentCell

TOP, GATES, BUS = 60.0, 230.0, 310.0  # heights of the state, the gates, and their inputs


def draw_cell(cell: RecurrentCell, note: str = "") -> Diagram:
    """Draw an RNN, GRU or LSTM cell."""
    canvas = SvgCanvas()
    title = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[cell.kind](canvas, cell)
    canvas.text(30, 0, title + note, at="start")
    w, u = f"W {cell.hidden}×{cell.dim}", f"U {cell.hidden}×{cell.hidden}"
    rows = f"each gate: {w}, {u}" + (", biases" if cell.w_bias is not None else "")
    count = sum(p.numel() for p in cell.parameters())
    canvas.text(30, 16, f"{rows}; {count:,} parameters", small=True, at="start")
    return canvas.to_diagram(title + note)


def _gate(canvas: SvgCanvas, x: float, kind: str, function: str, name: str) -> None:
    canvas.box(x, GATES, 56, 40, kind, function, name)


def _wires(canvas: SvgCanvas, *paths: tuple[Point, ...]) -> None:
    for path in paths:
        canvas.wire(*path)


def _rnn(canvas: SvgCanvas, cell: RecurrentCell) -> str:
    _wires(canvas, ((30, 110), (172, 110)), ((230, 190), (230, 132)), ((288, 110), (430, 110)))
    canvas.box(230, 110, 112, 44, "squash", "tanh", "W x + U h")
    canvas.text(30, 102, f"h_{{t-1}} ({cell.hidden})", at="start")
    canvas.text(238, 188, f"x_t ({cell.dim})", at="start")
    canvas.text(430, 102, f"h_t ({cell.hidden})", at="end")
    return f"RNN cell: x of {cell.dim}, h of {cell.hidden}"


def _gru(canvas: SvgCanvas, cell: RecurrentCell) -> str:
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


def _lstm(canvas: SvgCanvas, cell: RecurrentCell) -> str:
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
