"""Figures of many heads, gates, effects of a sweep, and the difference of two sights."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d

from regard.errors import ShapeError
from regard.inspection.figures.canvas import (
    MAX_CELLS,
    axis_inches,
    escape_mathtext,
    label_axis,
    new_figure,
    save_figure,
    show_map,
    show_matrix,
    signed_scale,
)
from regard.inspection.heads.head_table import HeadTable
from regard.inspection.record.routers import Router
from regard.inspection.record.sight import missing_note
from regard.inspection.record.sight_comparison import SightComparison
from regard.inspection.sites.labels import as_site_list, key_labels, query_labels, shorten_label
from regard.inspection.sites.site import Site
from regard.ops.indices import resolve_index

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

THUMBNAIL_CELLS = 48  # on each side
MAX_STRIP_CELLS = 512
MAX_SITE_LETTERS, INCHES_PER_LETTER = 44, 0.085

# colour-blind safe colours of Okabe and Ito; the hatch is redundant with the colour
TYPE_STYLES = {
    "identity": ("#0072B2", ""),
    "previous": ("#56B4E9", "//"),
    "next": ("#56B4E9", "\\\\"),
    "offset": ("#56B4E9", "xx"),
    "local": ("#009E73", ""),
    "permutation": ("#009E73", ".."),
    "hard": ("#009E73", "++"),
    "sink": ("#D55E00", ""),
    "separator": ("#D55E00", "//"),
    "alignment": ("#CC79A7", ""),
    "induction": ("#E69F00", ""),
    "duplicate": ("#E69F00", "//"),
    "diffuse": ("#F0E442", ""),
    "mixed": ("#DDDDDD", ""),
    "forced": ("#FFFFFF", ""),
}


@torch.no_grad()
def draw_heads(
    sites: Site | Iterable[Site], *, batch: int = 0, path: str | Path | None = None
) -> "Figure":
    """Draw every head as a thumbnail: one row per site, one column per head, each on its own scale.

    >>> figure = rg.draw.heads(rg.make_site(*torch.randn(2, 3, 5, 4)))
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['0', '1', '2']
    """
    chosen = as_site_list(sites)
    if not chosen:
        raise ShapeError("sites: needs at least one, got none")
    columns, step = max(site.heads for site in chosen), THUMBNAIL_CELLS + 4
    sheet = torch.full((len(chosen) * step - 4, columns * step - 4), torch.nan)
    for row, site in enumerate(chosen):
        for head, thumb in enumerate(_thumbnails(site, batch)):
            top, left = row * step, head * step
            sheet[top : top + THUMBNAIL_CELLS, left : left + THUMBNAIL_CELLS] = thumb
    names = [_site_label(s.name) + (f" ({s.call})" if s.call else "") for s in chosen]
    beside = INCHES_PER_LETTER * max(map(len, names))
    width = max(4.0, min(14, 0.85 * columns) + beside)  # the caption needs 4 inches
    figure = new_figure(width, min(40, 1.2 + 0.85 * len(chosen)))
    figure.set_layout_engine("compressed")  # for equal axes; else names are cropped
    axes = figure.subplots()
    show_matrix(axes, sheet.sqrt(), (sheet.shape[0], sheet.shape[1]), aspect="equal")
    _label_cells(axes, columns, names, step, THUMBNAIL_CELLS / 2)
    axes.set_xlabel("head", fontsize=8)
    figure.supxlabel(
        "rows: queries, columns: keys; square-root colour scale,"
        "\neach map relative to its largest weight",
        fontsize=8,
    )
    return save_figure(figure, path, missing_note(sites))


def _thumbnails(site: Site, batch: int) -> Tensor:
    """The maps of all heads pooled to one size, the largest cell of each scaled to 1."""
    query_labels(site, batch)  # checks site and batch
    size = THUMBNAIL_CELLS
    cells = (min(size, site.queries), min(size, site.keys))
    pooled = site.survey(statistics=["pooled_map"], pooled_size=cells).pooled_map
    maps = pooled[batch].float().cpu()
    maps = maps / maps.amax((-2, -1), keepdim=True).clamp(min=1e-30)
    rows, columns = (torch.arange(size) * count // size for count in cells)
    return maps[:, rows][:, :, columns]


@torch.no_grad()
def draw_statistics(site: Site, *, batch: int = 0, path: str | Path | None = None) -> "Figure":
    """Draw entropy and first-key share of each query and mass received by each key, per head.

    >>> figure = rg.draw.statistics(rg.make_site(*torch.randn(2, 3, 5, 4)))
    >>> [axes.get_title() for axes in figure.axes[:3]]
    ['entropy of each query, nats', 'share on the first key', 'received by each key']
    """
    queries = query_labels(site, batch)
    survey = site.survey(statistics=["entropy", "first_share", "received"], first_keys=1)
    strips = {
        "entropy of each query, nats": (survey.entropy, queries),
        "share on the first key": (survey.first_share, queries),
        "received by each key": (survey.received, key_labels(site, batch)),
    }
    height = axis_inches(site.heads, min_inches=0.9, max_inches=4, inches_per_cell=0.16)
    width = axis_inches(max(site.queries, site.keys), min_inches=4)
    figure = new_figure(width + 1.6, 3 * height + 2.6)
    for axes, (title, (x, labels)) in zip(figure.subplots(3, 1), strips.items(), strict=True):
        strip = x[batch].float()
        if strip.shape[-1] > MAX_STRIP_CELLS:
            strip = adaptive_avg_pool1d(strip[None], MAX_STRIP_CELLS)[0]
        image = show_matrix(axes, strip, (site.heads, len(labels)))
        label_axis(axes, "x", labels)
        axes.set_title(title, fontsize=9)
        axes.set_ylabel("head")
        figure.colorbar(image, ax=axes)
    figure.suptitle(site.name, fontsize=10)
    return save_figure(figure, path)


def draw_head_types(heads: HeadTable, *, path: str | Path | None = None) -> "Figure":
    """Draw the types of heads: one row per site, one column per head, one colour per type.

    >>> row = rg.inspection.HeadRow(site="a", call=0, head=0, query_count=3)
    >>> figure = rg.draw.head_types(HeadTable([row]))
    >>> figure.axes[0].texts[0].get_text()
    'mixed'
    """
    from matplotlib.patches import Rectangle

    sites = list(dict.fromkeys((row.site, row.call) for row in heads))
    columns = 1 + max((row.head for row in heads), default=0)
    figure = new_figure(1.8 + 0.8 * columns, 1.0 + 0.42 * len(sites))
    axes = figure.subplots()
    for row in heads:
        y = sites.index((row.site, row.call))
        colour, hatch = TYPE_STYLES[row.type.split()[0]]
        axes.add_patch(Rectangle((row.head, y), 1, 1, fc=colour, ec="white", hatch=hatch, lw=2))
        box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
        middle = row.head + 0.5, y + 0.5
        axes.text(*middle, row.type, ha="center", va="center", fontsize=6, bbox=box)
    axes.set(xlim=(0, columns), ylim=(len(sites), 0), xlabel="head")
    _label_cells(axes, columns, [name for name, _ in sites], 1, 0.5)
    return save_figure(figure, path, heads.note)


def draw_head_scores(
    heads: HeadTable, by: str | None = None, *, path: str | Path | None = None
) -> "Figure":
    """Draw heat maps of the columns of a table, or of one: a row per site, a column per head.

    >>> row = rg.inspection.HeadRow(site="a", call=0, head=0, query_count=3, peak=0.5)
    >>> rg.draw.head_scores(HeadTable([row]), "peak").axes[0].get_title()
    'peak'
    """
    names = [*heads.columns] if by is None else [by]
    if not len(heads):
        raise ShapeError("heads: needs at least one, got none")
    fields = [heads.field_name(name) for name in names]
    sites = list(dict.fromkeys((row.site, row.call) for row in heads))
    columns = 1 + max(row.head for row in heads)
    across = min(5, len(names))
    down = -(-len(names) // across)
    width, height = axis_inches(columns, 1.8, 6), axis_inches(len(sites), 1.0, 8, 0.18)
    figure = new_figure(1.6 + across * (width + 0.9), down * (height + 0.7))
    grid = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for axes, field in zip(grid, fields, strict=False):
        values = torch.full((len(sites), columns), torch.nan)  # white: not measured
        for row in heads:
            x = getattr(row, field)
            values[sites.index((row.site, row.call)), row.head] = torch.nan if x is None else x
        # scores are shares: one scale from 0 to 1 makes the panels comparable
        top = max(1.0, float(values.nan_to_num(0).max()))
        image = show_matrix(axes, values, (len(sites), columns), vmax=top)
        title = heads.columns.get(field, field).replace("_", " ")
        axes.set(title=title, xlabel="head")
        axes.title.set_fontsize(10)
        axes.tick_params(labelsize=7)
        axes.set_xticks(range(0, columns, -(-columns // 16)))
        figure.colorbar(image, ax=axes)
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    shown = range(0, len(sites), -(-len(sites) // 40))
    grid[0].set_yticks(shown, [_site_label(sites[i][0]) for i in shown])
    return save_figure(figure, path)


def draw_gates(
    gates: Mapping[str, Float[Tensor, "time hidden"]],
    *,
    tokens: Sequence[str] | None = None,
    path: str | Path | None = None,
) -> "Figure":
    """Draw gates and states of a recurrent cell: one panel each, units as rows, steps as columns.

    >>> figure = rg.draw.gates({"forget": torch.rand(5, 3), "state": torch.randn(5, 3)})
    >>> len(figure.axes)
    4
    """
    if not gates:
        raise ShapeError("gates: needs at least one, got none")
    sizes = {tuple(x.shape) for x in gates.values()}
    if len(sizes) > 1 or any(len(size) != 2 for size in sizes):
        raise ShapeError(f"gates: needs (time, hidden), the same for all, got {sorted(sizes)}")
    ((time, hidden),) = sizes
    height = axis_inches(hidden, min_inches=1.1, max_inches=3, inches_per_cell=0.1)
    figure = new_figure(axis_inches(time, min_inches=4) + 1.6, (height + 0.7) * len(gates))
    panels = figure.subplots(len(gates), 1, squeeze=False)[:, 0]
    for axes, (name, x) in zip(panels, gates.items(), strict=True):
        is_signed = x.numel() and x.min() < 0  # states; gates are not
        top = {"vmax": max(1.0, float(x.max()) if x.numel() else 0.0)}
        options: dict[str, Any] = signed_scale(x, 1e-6) if is_signed else top
        image = show_matrix(axes, x.mT, (hidden, time), **options)
        label_axis(axes, "x", [str(t) for t in range(time)] if tokens is None else tokens)
        axes.set(title=escape_mathtext(name), ylabel="unit")
        axes.title.set_fontsize(9)
        figure.colorbar(image, ax=axes)
    panels[-1].set_xlabel("step" if tokens is None else "token")
    return save_figure(figure, path)


def _site_label(name: str) -> str:
    """The name of a site, or the end of a long one, which has the number of the layer."""
    return name if len(name) <= MAX_SITE_LETTERS else f"…{name[1 - MAX_SITE_LETTERS :]}"


def _label_cells(axes: "Axes", columns: int, names: list[str], step: int, middle: float) -> None:
    """Number the columns and name the rows of a table of cells."""
    axes.set_xticks([h * step + middle for h in range(columns)], [str(h) for h in range(columns)])
    axes.set_yticks([i * step + middle for i in range(len(names))], names, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_effects(
    effect: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    x_label: str,
    y_label: str,
    title: str,
    *,
    path: str | Path | None = None,
) -> "Figure":
    """Draw signed numbers as a heat map with labels of rows and columns, white at 0.

    >>> effect = torch.tensor([[0.5, -1.0]])
    >>> figure = draw_effects(effect, ["a"], ["x", "y"], "to", "from", "effects")
    >>> figure.axes[0].get_title()
    'effects'
    """
    figure = _heat_map(effect, rows, columns, "effect", **signed_scale(effect))
    figure.axes[0].set(xlabel=x_label, ylabel=y_label)
    figure.axes[0].set_title(title, fontsize=10)
    return save_figure(figure, path)


def _heat_map(
    x: Tensor, rows: Sequence[str], columns: Sequence[str], label: str, **options: Any
) -> "Figure":
    height, width = x.shape
    figure = new_figure(3.0 + axis_inches(width, 1.5, 12), 1.2 + axis_inches(height, 1.2, 12, 0.2))
    axes = figure.subplots()
    figure.colorbar(show_map(axes, x, rows, columns, **options), ax=axes, label=label)
    return figure


def draw_experts(router: Router, *, batch: int = 0, path: str | Path | None = None) -> "Figure":
    """Draw the weight of every expert for every token of a sequence: one row per expert.

    >>> chosen, weights = torch.tensor([[[0, 2], [2, 1]]]), torch.full((1, 2, 2), 0.5)
    >>> figure = rg.draw.experts(rg.inspection.Router("decoder.0", chosen, weights, 4))
    >>> figure.axes[0].get_title()
    'decoder.0: largest load 0.50 (expert 2)'
    """
    at = resolve_index("batch", batch, len(router.experts))
    weights, load = router.map[at].mT.cpu(), router.load
    count, time = weights.shape
    labels = [*map(str, range(time))] if router.labels is None else router.labels[at]
    figure = _heat_map(weights, [*map(str, range(count))], labels, "weight")
    figure.axes[0].set(xlabel="token", ylabel="expert")
    top = f"largest load {float(load.max()):.2f} (expert {int(load.argmax())})"
    figure.axes[0].set_title(f"{router.name}: {top}", fontsize=10)
    return save_figure(figure, path)


def draw_comparison(
    comparison: SightComparison, *, count: int = 4, path: str | Path | None = None
) -> "Figure":
    """Draw the heads that differ most in two sights: both maps and their difference.

    Rows and columns are the tokens of both texts, aligned; a query that only one has is blank.

    >>> sights = [rg.Sight([rg.make_site(x, x)]) for x in torch.randn(2, 5, 4)]
    >>> figure = rg.draw.comparison(rg.inspection.compare_sights(*sights))
    >>> [axes.get_title() for axes in figure.axes[:3]]
    ['first', 'second', 'difference']
    """
    from matplotlib.colors import PowerNorm

    rows = comparison.top(count)
    pairs = [comparison.pairs[row.site] for row in rows]
    side = max(axis_inches(max(len(p.queries), len(p.keys)), 2.2, 5.0, 0.2) for p in pairs)
    figure = new_figure(3 * side + 2.5, len(rows) * (side + 0.4))
    grid = figure.subplots(len(rows), 3, squeeze=False)
    for row, pair, panels in zip(rows, pairs, grid, strict=True):
        queries, keys = ([t.label for t in side] for side in (pair.queries, pair.keys))
        pool = -(-len(queries) // MAX_CELLS), -(-len(keys) // MAX_CELLS)
        pooled = pool != (1, 1)
        cell = f" (mean of {pool[0]}×{pool[1]}, weights on a square-root scale)" if pooled else ""
        maps = comparison.maps(row.site, row.head, pool)
        top = max(1e-12, float(maps[:2].nan_to_num(0).max()))
        weight: dict[str, Any] = {"norm": PowerNorm(0.5 if pooled else 1.0, vmin=0, vmax=top)}
        scales = (weight, weight, signed_scale(maps[2]))
        for axes, x, options in zip(panels, maps, scales, strict=True):
            image = show_map(axes, x, queries, keys, **options)
            axes.tick_params(labelsize=6)
            if axes is not panels[0]:
                figure.colorbar(image, ax=axes, shrink=0.8)
            axes.set_xlabel(f"key{cell}", fontsize=8)
        panels[0].set_ylabel(f"{row.site}, head {row.head}\nquery", fontsize=8)
    for axes, title in zip(grid[0], (*comparison.names, "difference"), strict=True):
        axes.set_title(
            escape_mathtext(shorten_label(" ".join(title.split()), int(12 * side))), fontsize=9
        )
    return save_figure(figure, path, comparison.missing)
