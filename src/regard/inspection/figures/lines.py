"""Attention as lines from queries to keys, as BertViz shows it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.errors import ShapeError
from regard.inspection.figures.canvas import as_slice, escape_mathtext, new_figure, save_figure
from regard.inspection.sites.labels import key_labels, query_index, query_labels, shorten_label
from regard.inspection.sites.site import Site
from regard.ops.indices import as_ints, resolve_index

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINE_TOKENS = 80  # per side; more are not readable
MIN_LINE_WEIGHT = 0.02  # lighter lines are not drawn
HEAD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("solid", "dashed", "dotted", "dashdot")
LEGEND: dict[str, Any] = {
    "loc": "lower center",
    "bbox_to_anchor": (0.5, 1.02),
    "ncols": 4,
    "fontsize": 7,
    "frameon": False,
}


@torch.no_grad()
def draw_lines(
    site: Site,
    heads: int | Sequence[int] = 0,
    *,
    query: int | str | None = None,
    batch: int = 0,
    rows: slice | int = slice(None),
    keys: slice | int = slice(None),
    path: str | Path | None = None,
) -> "Figure":
    """Draw attention weights as lines from queries to keys, wider for larger weights.

    Heads differ in colour and line style. Weights below 0.02 are not drawn.

    Args:
        site: The site.
        heads: One head or several.
        query: One query, by index or by a token that occurs once; all by default.
        batch: Index of the sequence.
        rows: Queries to draw.
        keys: Keys to draw.
        path: File to write: .png, .svg or .pdf.

    >>> figure = rg.draw.lines(rg.make_site(*torch.zeros(2, 3, 4), tokens=["a", "b", "c"]))
    >>> len(figure.axes[0].collections[0].get_segments())
    9
    """
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    query_labels(site, batch)  # checks site and batch
    chosen = [resolve_index("heads", head, site.heads) for head in as_ints("heads", heads)]
    query = None if query is None else query_index(site, query, batch)
    rows, keys = as_slice(rows, site.queries, "rows"), as_slice(keys, site.keys, "keys")
    left, right = query_labels(site, batch)[rows], key_labels(site, batch)[keys]
    _check(site, left, right, query, rows)
    styles = [
        (HEAD_COLOURS[i % len(HEAD_COLOURS)], STYLES[i % len(STYLES)]) for i in range(len(chosen))
    ]
    figure = new_figure(4.2, 0.24 * max(len(left), len(right), 4) + 0.9)
    axes = figure.subplots()
    for head, (colour, style) in zip(chosen, styles, strict=True):
        w = site.window(head, rows, keys)[batch].float().cpu()
        if query is not None:
            is_query = torch.arange(len(w)) == query - rows.start
            w = w * is_query[:, None]
        pairs = (w >= MIN_LINE_WEIGHT).nonzero().tolist()
        if not pairs:
            continue
        weights = [min(1.0, w[i, j].item()) for i, j in pairs]  # half precision may round above 1
        lines = [((0.0, i), (1.0, j)) for i, j in pairs]
        widths = [0.3 + 2.5 * x for x in weights]
        axes.add_collection(
            LineCollection(lines, colors=colour, alpha=weights, linewidths=widths, linestyles=style)
        )
    _write_tokens(axes, left, right)
    if len(chosen) > 1:
        marks = [Line2D([], [], color=colour, ls=style) for colour, style in styles]
        axes.legend(marks, [f"head {head}" for head in chosen], **LEGEND)
    head_name = f", head {chosen[0]}" if len(chosen) == 1 else ""
    figure.suptitle(f"{site.name}{head_name}", fontsize=10)
    return save_figure(figure, path)


def _write_tokens(axes: "Axes", left: list[str], right: list[str]) -> None:
    for x, heading, side, labels in ((-0.03, "query", "right", left), (1.03, "key", "left", right)):
        axes.text(x, -1.0, heading, ha=side, va="center", fontsize=8, style="italic")
        for y, label in enumerate(labels):
            text = escape_mathtext(shorten_label(label, 16))
            axes.text(x, y, text, ha=side, va="center", fontsize=9)
    axes.set(xlim=(-0.6, 1.6), ylim=(max(len(left), len(right)) - 0.5, -1.5))
    axes.set_axis_off()


def _check(site: Site, left: list[str], right: list[str], query: int | None, rows: slice) -> None:
    if max(len(left), len(right)) > MAX_LINE_TOKENS:
        raise ShapeError(
            f"site: needs at most {MAX_LINE_TOKENS} queries and keys to be drawn as lines, got "
            f"{len(left)} and {len(right)}; try rows=slice(0, {MAX_LINE_TOKENS}), "
            f"keys=slice(0, {MAX_LINE_TOKENS})"
        )
    if query is not None and query not in range(site.queries)[rows]:
        raise ShapeError(f"query: needs to be among the rows drawn, got {query}")
