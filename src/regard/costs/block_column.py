"""A column of boxes from bottom to top, with sums around them and frames about them."""

from regard.costs.svg import Point, SvgCanvas

WIDE, TALL, SLIM, GAP = 210, 52, 28, 24
SIDE = 20  # how far a residual's way goes outside of the boxes


class BlockColumn:
    """Boxes on a wire that goes up; `y` is where the wire is now."""

    def __init__(self, sheet: SvgCanvas, x: float, start: str):
        self.sheet, self.x, self.y = sheet, x, 0.0
        self._from = 0.0  # where the wire left the last box
        sheet.text(x, 20, start)

    def box(self, kind: str, name: str, *lines: str, slim: bool = False, ports: int = 1) -> float:
        """One more box; its middle comes back. With three ports the wire comes in as q, k and v."""
        tall = SLIM if slim else TALL if len(lines) < 2 else TALL + 10
        bottom = self.y - GAP - (10 if ports == 3 else 0)
        middle = bottom - tall / 2
        self._rise(bottom)
        if ports == 3:
            split = bottom + 14
            self.sheet.dot(self.x, split)
            for aside, letter in ((-50, "q"), (50, "v")):
                points: list[Point] = [(self.x, split), (self.x + aside, split)]
                self.sheet.wire(*points, (self.x + aside, bottom))
                self.sheet.text(self.x + aside + 8, bottom + 11, letter, small=True)
            self.sheet.text(self.x + 8, bottom + 11, "k", small=True)
        self.sheet.box(self.x, middle, WIDE, tall, kind, name, *lines)
        self._from = self.y = bottom - tall
        return middle

    def branch(self) -> float:
        """Where a way around begins: just above the last box."""
        self.y -= 12
        return self.y

    def join(self, branch: float) -> None:
        """A sum with what branched off below, led around on the left."""
        middle = self.y - GAP - 4
        self._rise(middle + 10)
        out = self.x - WIDE / 2 - SIDE
        around = ((self.x, branch), (out, branch), (out, middle), (self.x - 10, middle))
        self.sheet.dot(self.x, branch)
        self.sheet.wire(*around, name="residual")
        self.sheet.node(self.x, middle, "+", "sum")
        self._from = self.y = middle - 10

    def open_frame(self) -> float:
        """Begin a frame here."""
        self.y -= 22
        return self.y

    def close_frame(self, start: float, label: str) -> None:
        """Draw the frame from where it began, and say how often its inside is repeated."""
        self.y -= 26
        left = self.x - WIDE / 2 - SIDE - 14
        self.sheet.frame(left, self.y, WIDE + SIDE + 28, start - self.y + 8)
        self.sheet.text(self.x + WIDE / 2 + 6, self.y + 18, label, at="end")

    def end(self, label: str) -> None:
        """Let the wire go out at the top."""
        self._rise(self.y - GAP)
        self.sheet.text(self.x, self.y - GAP - 8, label)

    def input_from_right(self, y: float, label: str) -> None:
        """Something that comes in from the right as keys and values."""
        edge = self.x + WIDE / 2
        for aside, letter in ((-8, "k"), (8, "v")):
            self.sheet.wire((edge + 60, y + aside), (edge, y + aside))
            self.sheet.text(edge + 14, y + aside - 3, letter, small=True)
        self.sheet.text(edge + 66, y + 5, label, at="start")

    def connect(self, other: "BlockColumn", heights: list[float], label: str) -> None:
        """Lead the top of this column to where another one asks: its keys and values."""
        edge, middle = other.x - WIDE / 2, (self.x + other.x) / 2 + 6
        top = self.y - GAP
        for y in heights:
            up: list[Point] = [(self.x, self._from), (self.x, top), (middle, top)]
            self.sheet.wire(*up, (middle, y + 8), (edge, y + 8), over=True, name="memory")
            self.sheet.wire((middle, y - 8), (edge, y - 8), over=True, name="memory")
            self.sheet.wire((middle, y - 14), (middle, y), arrow=False)  # its edge hid this
            self.sheet.dot(middle, y - 8)
            self.sheet.text(edge - 14, y - 12, "k", small=True)
            self.sheet.text(edge - 14, y + 20, "v", small=True)
        self.sheet.text(self.x + 8, top - 6, label, at="start")

    def _rise(self, to: float) -> None:
        self.sheet.wire((self.x, self._from), (self.x, to))
