"""A minimal SVG canvas, and a column of boxes with residual connections and frames."""

import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from regard.errors import FileError
from regard.files import write_text

Point = tuple[float, float]

FILL_COLOURS = {
    "attention": "#fde2c4",
    "cross": "#fbd0c9",
    "feed": "#cfe3f7",
    "norm": "#f2f0b6",
    "token": "#e6dcf5",
    "readout": "#d3eed2",
    "gate": "#fde2c4",
    "squash": "#cfe3f7",
}
INK, PALE = "#222222", "#666666"


@dataclass(frozen=True)
class Diagram:
    """A drawing that notebooks show and `save` writes as SVG.

    >>> diagram = rg.costs.diagram(rg.nn.RecurrentCell(3, 4, "lstm"))
    >>> diagram.svg.startswith("<svg"), diagram.title
    (True, 'LSTM cell: x of 3, h and C of 4')
    """

    title: str
    svg: str

    def save(self, path: str | Path) -> Path:
        """Write the SVG file."""
        path = Path(path)
        if path.suffix != ".svg":
            raise FileError(f"{path}: needs a path that ends in .svg, got {path.suffix or 'none'}")
        if not path.parent.is_dir():
            raise FileError(f"{path}: needs an existing folder, got {path.parent}; try mkdir")
        return write_text(path, self.svg)

    def _repr_svg_(self) -> str:
        return self.svg


@dataclass
class SvgCanvas:
    """Collects shapes; y grows downwards, and wires lie under boxes."""

    wires: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)  # what the drawing has to show

    def box(self, x: float, y: float, w: float, h: float, kind: str, *lines: str) -> None:
        """A box centred at (x, y); the first line is the title, the others are small."""
        self.points += (x - w / 2, y - h / 2), (x + w / 2, y + h / 2)
        self.shapes.append(
            f'<rect class="{kind}" x="{x - w / 2:g}" y="{y - h / 2:g}" width="{w:g}" '
            f'height="{h:g}" rx="7" fill="{FILL_COLOURS[kind]}" stroke="{INK}"/>'
        )
        top = y + 5 - 7 * (len(lines) - 1)
        for i, line in enumerate(lines):
            self.text(x, top + 14 * i + (1 if i else 0), line, small=i > 0)

    def node(self, x: float, y: float, sign: str, name: str = "joint") -> None:
        """A small circle with a sign, + or ×, where wires meet."""
        self.points += (x - 10, y - 10), (x + 10, y + 10)
        self.shapes.append(
            f'<circle class="{name}" cx="{x:g}" cy="{y:g}" r="10" fill="white" stroke="{INK}"/>'
        )
        self.text(x, y + 5, sign)

    def wire(
        self, *points: Point, arrow: bool = True, over: bool = False, name: str = "wire"
    ) -> None:
        """A line along points; `over` gives it a white outline where it crosses earlier wires."""
        self.points += points
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        if over:
            self.wires.append(f'<path d="{path}" fill="none" stroke="white" stroke-width="6"/>')
        tip = ' marker-end="url(#tip)"' if arrow else ""
        self.wires.append(
            f'<path class="{name}" d="{path}" fill="none" stroke="{INK}" '
            f'stroke-width="1.3" stroke-linejoin="round"{tip}/>'
        )

    def dot(self, x: float, y: float) -> None:
        """A dot where a wire branches."""
        self.wires.append(f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="2.6" fill="{INK}"/>')

    def frame(self, x: float, y: float, w: float, h: float) -> None:
        """A dashed frame; (x, y) is its upper left corner."""
        self.points += (x, y), (x + w, y + h)
        self.wires.insert(
            0,
            f'<rect class="frame" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="12" '
            f'fill="#fafafa" stroke="{PALE}" stroke-dasharray="5 4"/>',
        )

    def text(
        self, x: float, y: float, label: str, *, small: bool = False, at: str = "middle"
    ) -> None:
        """Text with baseline y, anchored at x by `at`; h_{t-1} gets a subscript."""
        wide = len(re.sub(r"[_{}]", "", label)) * (5.6 if small else 7.2)
        left = {"start": 0.0, "middle": wide / 2, "end": wide}[at]
        self.points += (x - left, y - 12), (x - left + wide, y + 4)
        look = f'font-size="10" fill="{PALE}"' if small else f'font-size="13" fill="{INK}"'
        lowered = r'<tspan dy="3" font-size="75%">\1\2</tspan><tspan dy="-3">&#8203;</tspan>'
        content = re.sub(r"_(?:\{([^}]*)\}|(\w))", lowered, escape(label))
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{at}" {look}>{content}</text>')

    def to_diagram(self, title: str) -> Diagram:
        """The drawing, cropped to its content."""
        axes = list(zip(*self.points, strict=True))
        left, top = (min(axis) - 16 for axis in axes)
        wide, high = (max(axis) - min(axis) + 32 for axis in axes)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:g} {top:g} {wide:g} {high:g}" '
            f'width="{wide:g}" height="{high:g}" role="img" '
            'font-family="Helvetica, Arial, sans-serif">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker>'
            "</defs>",
            f'<rect x="{left:g}" y="{top:g}" width="{wide:g}" height="{high:g}" fill="white"/>',
            *self.wires,
            *self.shapes,
            "</svg>",
        ]
        return Diagram(title, "\n".join(parts) + "\n")


WIDE, TALL, SLIM, GAP = 210, 52, 28, 24
SIDE = 20  # distance of a residual connection from the boxes


class BlockColumn:
    """Boxes on a wire that goes up; `y` is the current end of the wire."""

    def __init__(self, canvas: SvgCanvas, x: float, start: str):
        self.canvas, self.x, self.y = canvas, x, 0.0
        self._from = 0.0  # top of the last box
        canvas.text(x, 20, start)

    def box(self, kind: str, name: str, *lines: str, slim: bool = False, ports: int = 1) -> float:
        """Add a box and return its middle; with three ports the wire splits into q, k and v."""
        tall = SLIM if slim else TALL if len(lines) < 2 else TALL + 10
        bottom = self.y - GAP - (10 if ports == 3 else 0)
        middle = bottom - tall / 2
        self._rise(bottom)
        if ports == 3:
            split = bottom + 14
            self.canvas.dot(self.x, split)
            for aside, letter in ((-50, "q"), (50, "v")):
                points: list[Point] = [(self.x, split), (self.x + aside, split)]
                self.canvas.wire(*points, (self.x + aside, bottom))
                self.canvas.text(self.x + aside + 8, bottom + 11, letter, small=True)
            self.canvas.text(self.x + 8, bottom + 11, "k", small=True)
        self.canvas.box(self.x, middle, WIDE, tall, kind, name, *lines)
        self._from = self.y = bottom - tall
        return middle

    def branch(self, above: float = 12) -> float:
        """Start a residual connection or a frame above the last box, and return its height."""
        self.y -= above
        return self.y

    def join(self, branch: float) -> None:
        """Add a sum with the residual connection that starts at `branch`."""
        middle = self.y - GAP - 4
        self._rise(middle + 10)
        out = self.x - WIDE / 2 - SIDE
        around = ((self.x, branch), (out, branch), (out, middle), (self.x - 10, middle))
        self.canvas.dot(self.x, branch)
        self.canvas.wire(*around, name="residual")
        self.canvas.node(self.x, middle, "+", "sum")
        self._from = self.y = middle - 10

    def close_frame(self, start: float, label: str) -> None:
        """Draw the frame from `start` to here, with a label."""
        self.y -= 26
        left = self.x - WIDE / 2 - SIDE - 14
        self.canvas.frame(left, self.y, WIDE + SIDE + 28, start - self.y + 8)
        self.canvas.text(self.x + WIDE / 2 + 6, self.y + 18, label, at="end")

    def end(self, label: str) -> None:
        """End the column at the top with a label."""
        self._rise(self.y - GAP)
        self.canvas.text(self.x, self.y - GAP - 8, label)

    def input_from_right(self, y: float, label: str) -> None:
        """An input from the right, as keys and values."""
        edge = self.x + WIDE / 2
        for aside, letter in ((-8, "k"), (8, "v")):
            self.canvas.wire((edge + 60, y + aside), (edge, y + aside))
            self.canvas.text(edge + 14, y + aside - 3, letter, small=True)
        self.canvas.text(edge + 66, y + 5, label, at="start")

    def connect(self, other: "BlockColumn", heights: list[float], label: str) -> None:
        """Connect the top of this column to another one at some heights, as keys and values."""
        edge, middle = other.x - WIDE / 2, (self.x + other.x) / 2 + 6
        top = self.y - GAP
        for y in heights:
            up: list[Point] = [(self.x, self._from), (self.x, top), (middle, top)]
            self.canvas.wire(*up, (middle, y + 8), (edge, y + 8), over=True, name="memory")
            self.canvas.wire((middle, y - 8), (edge, y - 8), over=True, name="memory")
            # redraw what the white outline hid
            self.canvas.wire((middle, y - 14), (middle, y), arrow=False)
            self.canvas.dot(middle, y - 8)
            self.canvas.text(edge - 14, y - 12, "k", small=True)
            self.canvas.text(edge - 14, y + 20, "v", small=True)
        self.canvas.text(self.x + 8, top - 6, label, at="start")

    def _rise(self, to: float) -> None:
        self.canvas.wire((self.x, self._from), (self.x, to))
