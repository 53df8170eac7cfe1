"""Attention as lines from queries to keys, as BertViz shows it."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.errors import ShapeError
from regard.inspection.figures.canvas import as_slice, escape_mathtext, new_figure, save_figure
from regard.inspection.sites.labels import key_labels, query_index, query_labels, shorten_label
from regard.inspection.sites.site import Site
from regard.ops.indices import as_ints, resolve_index

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LINE_TOKENS = 80  # per side; more are not readable
MIN_LINE_WEIGHT = 0.02  # lighter lines are not drawn
HEAD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("solid", "dashed", "dotted", "dashdot")


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

    left, right = query_labels(site, batch), key_labels(site, batch)
    chosen = [resolve_index("heads", head, site.heads) for head in as_ints("heads", heads)]
    query = None if query is None else query_index(site, query, batch)
    rows, keys = as_slice(rows, site.queries, "rows"), as_slice(keys, site.keys, "keys")
    left, right = left[rows], right[keys]
    longest = max(len(left), len(right))
    if longest > MAX_LINE_TOKENS:
        raise ShapeError(
            f"site: needs at most {MAX_LINE_TOKENS} queries and keys to be drawn as lines, got "
            f"{len(left)} and {len(right)}; try rows=slice(0, {MAX_LINE_TOKENS}), "
            f"keys=slice(0, {MAX_LINE_TOKENS})"
        )
    if query is not None and query not in range(site.queries)[rows]:
        raise ShapeError(f"query: needs to be among the rows drawn, got {query}")
    styles = list(zip(chosen, cycle(HEAD_COLOURS), cycle(STYLES), strict=False))
    figure = new_figure(4.2, 0.24 * max(longest, 4) + 0.9)
    axes = figure.subplots()
    for head, colour, style in styles:
        w = site.window(head, rows, keys)[batch].float().cpu()
        if query is not None:
            w = w * (torch.arange(len(w)) == query - rows.start)[:, None]
        pairs = (w >= MIN_LINE_WEIGHT).nonzero().tolist()
        if not pairs:
            continue
        weights = [min(1.0, w[i, j].item()) for i, j in pairs]  # half precision may round above 1
        lines = [((0.0, i), (1.0, j)) for i, j in pairs]
        widths = [0.3 + 2.5 * x for x in weights]
        looks = {"colors": colour, "alpha": weights, "linewidths": widths, "linestyles": style}
        axes.add_collection(LineCollection(lines, **looks))
    for x, heading, side, labels in ((-0.03, "query", "right", left), (1.03, "key", "left", right)):
        axes.text(x, -1.0, heading, ha=side, va="center", fontsize=8, style="italic")
        for y, label in enumerate(labels):
            text = escape_mathtext(shorten_label(label, 16))
            axes.text(x, y, text, ha=side, va="center", fontsize=9)
    axes.set(xlim=(-0.6, 1.6), ylim=(longest - 0.5, -1.5))
    axes.set_axis_off()
    if len(chosen) > 1:
        marks = [Line2D([], [], color=colour, ls=style) for _, colour, style in styles]
        names, above = [f"head {head}" for head in chosen], {"bbox_to_anchor": (0.5, 1.02)}
        axes.legend(marks, names, loc="lower center", ncols=4, fontsize=7, frameon=False, **above)
    head_name = f", head {chosen[0]}" if len(chosen) == 1 else ""
    figure.suptitle(f"{site.name}{head_name}", fontsize=10)
    return save_figure(figure, path)
