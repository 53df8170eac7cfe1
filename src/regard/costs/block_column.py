"""A column of boxes from bottom to top, with residual connections and frames."""

from regard.costs.svg import Point, SvgCanvas

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
