"""Inline SVG of a report: line charts and attention maps, in the colours of the page."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 620, 240  # of a chart
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 16, 48  # margins around its plot
LOG_RATIO = 20  # of the largest to the smallest value, from which the axis is logarithmic
CELL, LABEL = 20, 7.2  # side of a map's cell, and width of a character, in pixels

Points = list[tuple[float, float]]


class Series(NamedTuple):
    """One line of a chart: its name and points; the lines of a chart differ in dashes too."""

    name: str
    points: Points


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    mark: float | None = None,
    log: bool = False,
) -> str:
    """A chart of lines over a common x axis.

    Args:
        title: above the chart.
        series: one or two lines.
        x_label: of the x axis.
        mark: where to draw a vertical line.
        log: a logarithmic y axis, where the values span more than a factor of 20.

    >>> line_chart("loss", [Series("train", [(0, 2.0), (10, 1.0)])], x_label="update")[:11]
    '<figure><sv'
    """
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    is_log = log and min(ys) > 0 and max(ys) / min(ys) > LOG_RATIO
    y_ticks = _log_ticks(min(ys), max(ys)) if is_log else _ticks(min(ys), max(ys))
    to_scale = math.log if is_log else float
    low, high = to_scale(min(*ys, *y_ticks)), to_scale(max(*ys, *y_ticks))
    first, last = min(xs), max(xs)

    def at(x: float, y: float) -> tuple[float, float]:
        right = (x - first) / (last - first or 1) * (WIDTH - LEFT - RIGHT)
        up = (to_scale(y) - low) / (high - low or 1) * (HEIGHT - TOP - BOTTOM)
        return LEFT + right, HEIGHT - BOTTOM - up

    parts = []
    for value in y_ticks:
        y = at(first, value)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 5:.1f}" text-anchor="end">{value:g}</text>')
    for value in _ticks(first, last):
        if first <= value <= last:
            x = at(value, ys[0])[0]
            label = f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">'
            parts.append(f"{label}{value:,.10g}</text>")
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{x_label}</text>')
    if mark is not None:
        x = at(mark, ys[0])[0]
        parts.append(f'<path class="mark" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
    for number, line in enumerate(series):
        places = [at(*point) for point in line.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path class="line line{number}" d="M{path}"/>')
        if len(places) <= 30:
            dots = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
            parts.append(f'<g class="dot{number}">{"".join(dots)}</g>')
    ends = "; ".join(
        f"{line.name} from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}" for line in series
    )
    keys = "".join(
        f'<span class="key"><svg width="28" height="8" aria-hidden="true">'
        f'<path class="line line{n}" d="M0 4H28"/></svg> {escape(line.name)}</span>'
        for n, line in enumerate(series)
    )
    scale = " (logarithmic)" if is_log else ""
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(f"{title} by {x_label}: {ends}")}">{"".join(parts)}</svg>'
        f"<figcaption><b>{escape(title)}</b>{scale} {keys}</figcaption></figure>"
    )


def attention_map(
    title: str, rows: Sequence[str], columns: Sequence[str], weights: Sequence[Sequence[float]]
) -> str:
    """Attention weights as shaded cells: one row per query, one column per key.

    >>> "<title>b attends to c: 0.75" in attention_map("", ["b"], ["a", "c"], [[0.25, 0.75]])
    True
    """
    left, top = (10 + LABEL * max(len(label) for label in labels) for labels in (rows, columns))
    width, height = left + CELL * len(columns) + 4, top + CELL * len(rows) + 4
    parts = []
    for n, label in enumerate(columns):
        x = left + CELL * (n + 0.5) + 4
        place = f'x="{x:.1f}" y="{top - 5:.1f}" transform="rotate(-90 {x:.1f} {top - 5:.1f})"'
        parts.append(f"<text {place}>{escape(label)}</text>")
    for n, (label, row) in enumerate(zip(rows, weights, strict=True)):
        y = top + CELL * n
        parts.append(
            f'<text x="{left - 5:.1f}" y="{y + 14:.1f}" text-anchor="end">{escape(label)}</text>'
        )
        for m, weight in enumerate(row):
            parts.append(
                f'<rect class="cell" x="{left + CELL * m:.1f}" y="{y:.1f}" width="{CELL - 1}" '
                f'height="{CELL - 1}" fill-opacity="{min(1.0, max(0.0, weight)) ** 0.5:.2f}">'
                f"<title>{escape(f'{label} attends to {columns[m]}: {weight:.2f}')}</title></rect>"
            )
    strongest = "; ".join(
        f"{label} to {columns[max(range(len(row)), key=row.__getitem__)]}"
        for label, row in zip(rows, weights, strict=True)
    )
    return (
        f'<figure><svg class="map" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(f"{title}. Most attended: {strongest}")}">{"".join(parts)}</svg>'
        f"<figcaption>{escape(title)}</figcaption></figure>"
    )


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from at most `low` to at least `high`.

    >>> _ticks(0.2, 3.9)
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    if high <= low:
        return [low]
    rough = (high - low) / (count - 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= 0.99 * rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 10) for n in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten; powers alone over more than three decades."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if len(powers) > 4 else (1, 2, 5)
    values = [float(f"{n}e{power}") for power in powers for n in factors]
    inside = [value for value in values if low / 2 <= value <= high * 2]
    return inside or [low, high]
