"""Queries on the left, keys on the right, a line for each weight: the view BertViz made known."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.errors import ShapeError
from regard.inspection.figures.canvas import escape_mathtext, new_figure, save_figure
from regard.inspection.sites.labels import key_labels, query_index, query_labels, shorten_label
from regard.inspection.sites.site import Site
from regard.ops.indices import as_ints, resolve_index, resolve_slice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINE_TOKENS = 80  # tokens on a side; more cannot be read as lines
MIN_LINE_WEIGHT = 0.02  # a lighter line is not drawn
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
    """Weights as lines from queries to keys, the thicker the heavier; one query, or all.

    Heads differ in colour and in the style of their lines. Weights under 0.02 are left out.

    >>> figure = rg.draw_lines(rg.make_site(*torch.zeros(2, 3, 4), tokens=["a", "b", "c"]))
    >>> len(figure.axes[0].collections[0].get_segments())
    9
    """
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    query_labels(site, batch)  # says so if this is no site, or has no such sequence
    chosen = [resolve_index("heads", head, site.heads) for head in as_ints("heads", heads)]
    query = None if query is None else query_index(site, query, batch)
    down, across = resolve_slice(rows, site.queries, "rows"), resolve_slice(keys, site.keys, "keys")
    rows, keys = slice(down.start, down.stop), slice(across.start, across.stop)
    left, right = query_labels(site, batch)[rows], key_labels(site, batch)[keys]
    _check(site, left, right, query, rows)
    looks = [
        (HEAD_COLOURS[at % len(HEAD_COLOURS)], STYLES[at % len(STYLES)])
        for at in range(len(chosen))
    ]
    figure = new_figure(4.2, 0.24 * max(len(left), len(right), 4) + 0.9)
    axes = figure.subplots()
    for head, (colour, style) in zip(chosen, looks, strict=True):
        w = site.window(head, rows, keys)[batch].float().cpu()
        if query is not None:
            asked = torch.arange(len(w)) == query % site.queries - rows.indices(site.queries)[0]
            w = w * asked[:, None]
        pairs = (w >= MIN_LINE_WEIGHT).nonzero().tolist()
        if not pairs:
            continue
        heavy = [min(1.0, w[i, j].item()) for i, j in pairs]  # half precision may round past 1
        lines = [((0.0, i), (1.0, j)) for i, j in pairs]
        widths = [0.3 + 2.5 * x for x in heavy]
        axes.add_collection(
            LineCollection(lines, colors=colour, alpha=heavy, linewidths=widths, linestyles=style)
        )
    _write(axes, left, right)
    if len(chosen) > 1:
        marks = [Line2D([], [], color=colour, ls=style) for colour, style in looks]
        axes.legend(marks, [f"head {head}" for head in chosen], **LEGEND)
    one = f", head {chosen[0]}" if len(chosen) == 1 else ""
    figure.suptitle(f"{site.name}{one}", fontsize=10)
    return save_figure(figure, path)


def _write(axes: "Axes", left: list[str], right: list[str]) -> None:
    for at, label in enumerate(left):
        axes.text(
            -0.03,
            at,
            escape_mathtext(shorten_label(label, 16)),
            ha="right",
            va="center",
            fontsize=9,
        )
    for at, label in enumerate(right):
        axes.text(
            1.03, at, escape_mathtext(shorten_label(label, 16)), ha="left", va="center", fontsize=9
        )
    for x, name, where in ((-0.03, "query", "right"), (1.03, "key", "left")):
        axes.text(x, -1.0, name, ha=where, va="center", fontsize=8, style="italic")
    axes.set(xlim=(-0.6, 1.6), ylim=(max(len(left), len(right)) - 0.5, -1.5))
    axes.set_axis_off()


def _check(site: Site, left: list[str], right: list[str], query: int | None, rows: slice) -> None:
    if max(len(left), len(right)) > MAX_LINE_TOKENS:
        raise ShapeError(
            f"site: needs at most {MAX_LINE_TOKENS} queries and keys to be drawn as lines, got {len(left)} "
            f"and {len(right)}; try rows=slice(0, {MAX_LINE_TOKENS}), keys=slice(0, {MAX_LINE_TOKENS})"
        )
    if query is not None and query % max(1, site.queries) not in range(site.queries)[rows]:
        raise ShapeError(f"query: needs to be among the rows drawn, got {query}")
