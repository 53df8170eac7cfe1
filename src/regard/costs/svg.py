"""A minimal SVG canvas: boxes, nodes, wires and text."""

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
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{at}" {look}>{_with_subscripts(label)}</text>'
        )

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


def _with_subscripts(label: str) -> str:
    """Escaped text with `_x` and `_{…}` as subscripts."""
    lowered = r'<tspan dy="3" font-size="75%">\1\2</tspan><tspan dy="-3">&#8203;</tspan>'
    return re.sub(r"_(?:\{([^}]*)\}|(\w))", lowered, escape(label))
