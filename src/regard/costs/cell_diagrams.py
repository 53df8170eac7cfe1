"""Recurrent cells drawn from the object, every gate with the shapes of its W and U."""

from regard.costs.svg import Diagram, SvgCanvas
from regard.nn import RecurrentCell

TOP, GATES, BUS = 60.0, 230.0, 310.0  # heights: the memory, the gates, what they read


def draw_cell(cell: RecurrentCell, note: str = "") -> Diagram:
    """The cell with its wires: RNN, GRU or LSTM."""
    sheet = SvgCanvas()
    title = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[cell.kind](sheet, cell)
    sheet.text(30, 0, title + note, at="start")
    w, u = f"W {cell.hidden}×{cell.dim}", f"U {cell.hidden}×{cell.hidden}"
    rows = f"each gate: {w}, {u}" + (", biases" if cell.w_bias is not None else "")
    sheet.text(
        30,
        16,
        f"{rows}; {sum(p.numel() for p in cell.parameters()):,} parameters",
        small=True,
        at="start",
    )
    return sheet.to_diagram(title + note)


def _gate(sheet: SvgCanvas, x: float, kind: str, squash: str, name: str) -> None:
    sheet.box(x, GATES, 56, 40, kind, squash, name)


def _rnn(sheet: SvgCanvas, cell: RecurrentCell) -> str:
    sheet.wire((30, 110), (172, 110))
    sheet.wire((230, 190), (230, 132))
    sheet.wire((288, 110), (430, 110))
    sheet.box(230, 110, 112, 44, "squash", "tanh", "W x + U h")
    sheet.text(30, 102, f"h_{{t-1}} ({cell.hidden})", at="start")
    sheet.text(238, 188, f"x_t ({cell.dim})", at="start")
    sheet.text(430, 102, f"h_t ({cell.hidden})", at="end")
    return f"RNN cell: x of {cell.dim}, h of {cell.hidden}"


def _gru(sheet: SvgCanvas, cell: RecurrentCell) -> str:
    # h runs along the top; below, two wires bring h and x to the gates
    sheet.wire((30, TOP), (290, TOP))
    sheet.wire((310, TOP), (410, TOP))
    sheet.wire((430, TOP), (560, TOP))
    sheet.wire((70, TOP), (70, BUS), (292, BUS), (292, 252))
    sheet.wire((142, BUS), (142, 252))
    sheet.wire((30, 340), (420, 340), (420, 252))
    sheet.wire((158, 340), (158, 252), over=True)
    sheet.wire((308, 340), (308, 252))
    sheet.wire((70, 150), (140, 150))  # U h, to be reset
    sheet.wire((150, 210), (150, 160))
    sheet.wire((300, 210), (300, TOP + 10))
    sheet.wire((160, 150), (360, 150), (360, GATES), (390, GATES), over=True)
    sheet.wire((300, 105), (410, 105))
    sheet.wire((420, 210), (420, 115))
    sheet.wire((420, 95), (420, TOP + 10))
    for x, y in ((70, TOP), (70, 150), (142, BUS), (158, 340), (308, 340), (300, 105)):
        sheet.dot(x, y)
    _gate(sheet, 150, "gate", "σ", "r")
    _gate(sheet, 300, "gate", "σ", "z")
    _gate(sheet, 420, "squash", "tanh", "ĥ")
    for x, y, sign in ((150, 150, "×"), (300, TOP, "×"), (420, 105, "×"), (420, TOP, "+")):
        sheet.node(x, y, sign)
    sheet.text(306, 86, "1 - z", small=True, at="start")
    sheet.text(350, 118, "z", small=True)
    sheet.text(78, 144, "U h", small=True, at="start")
    sheet.text(30, TOP - 8, f"h_{{t-1}} ({cell.hidden})", at="start")
    sheet.text(560, TOP - 8, f"h_t ({cell.hidden})", at="end")
    sheet.text(30, 358, f"x_t ({cell.dim})", at="start")
    return f"GRU cell: x of {cell.dim}, h of {cell.hidden}"


def _lstm(sheet: SvgCanvas, cell: RecurrentCell) -> str:
    # C runs along the top, untouched but for × f and + i c̃; h and x come in below
    sheet.wire((30, TOP), (140, TOP))
    sheet.wire((160, TOP), (290, TOP))
    sheet.wire((310, TOP), (620, TOP))
    sheet.wire((30, BUS), (450, BUS), (450, 252))
    sheet.wire((90, 350), (90, BUS), arrow=False)
    sheet.dot(90, BUS)
    sheet.dot(530, TOP)
    for x in (150, 250, 350):
        sheet.dot(x, BUS)
        sheet.wire((x, BUS), (x, 252))
    sheet.wire((150, 210), (150, TOP + 10))
    sheet.wire((250, 210), (250, 140), (290, 140))
    sheet.wire((350, 210), (350, 140), (310, 140))
    sheet.wire((300, 130), (300, TOP + 10))
    sheet.wire((530, TOP), (530, 98))
    sheet.wire((530, 132), (530, 180))
    sheet.wire((450, 210), (450, 190), (520, 190))
    sheet.wire((530, 200), (530, BUS), (620, BUS))
    for x, name in ((150, "f"), (250, "i"), (450, "o")):
        _gate(sheet, x, "gate", "σ", name)
    _gate(sheet, 350, "squash", "tanh", "c̃")
    sheet.box(530, 115, 56, 34, "squash", "tanh")
    for x, y, sign in ((150, TOP, "×"), (300, TOP, "+"), (300, 140, "×"), (530, 190, "×")):
        sheet.node(x, y, sign)
    sheet.text(30, TOP - 8, f"C_{{t-1}} ({cell.hidden})", at="start")
    sheet.text(620, TOP - 8, f"C_t ({cell.hidden})", at="end")
    sheet.text(30, BUS - 8, f"h_{{t-1}} ({cell.hidden})", at="start")
    sheet.text(620, BUS - 8, f"h_t ({cell.hidden})", at="end")
    sheet.text(98, 350, f"x_t ({cell.dim})", at="start")
    return f"LSTM cell: x of {cell.dim}, h and C of {cell.hidden}"
