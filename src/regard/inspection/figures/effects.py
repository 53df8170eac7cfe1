"""Heat maps of signed numbers: effects of a patching sweep, differences of two sights."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.inspection.figures.canvas import (
    DIVERGING,
    MAX_CELLS,
    axis_inches,
    escape_mathtext,
    new_figure,
    save_figure,
    show_map,
    signed_scale,
)
from regard.inspection.record.sight_comparison import SightComparison
from regard.inspection.sites.labels import shorten_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DIVERGING", "draw_comparison", "draw_effects"]


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
    """Draw signed numbers as a heat map, white at 0.

    Args:
        effect: Two axes, rows and columns.
        rows: Label of each row.
        columns: Label of each column.
        x_label: Name of the columns.
        y_label: Name of the rows.
        title: Above the figure.
        path: A .png, .svg or .pdf file to write.

    >>> import torch
    >>> effect = torch.tensor([[0.5, -1.0]])
    >>> figure = draw_effects(effect, ["a"], ["x", "y"], "to", "from", "effects")
    >>> figure.axes[0].get_title()
    'effects'
    """
    height, width = effect.shape
    figure = new_figure(3.0 + axis_inches(width, 1.5, 12), 1.2 + axis_inches(height, 1.2, 12, 0.2))
    axes = figure.subplots()
    image = show_map(axes, effect, rows, columns, **signed_scale(effect))
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, label="effect")
    return save_figure(figure, path)


def draw_comparison(
    comparison: SightComparison, *, count: int = 4, path: str | Path | None = None
) -> "Figure":
    """Draw the heads that differ most in two sights: both maps and their difference.

    Rows and columns are the tokens of both texts, aligned; a query that only one has is blank.

    Args:
        comparison: Result of `compare_sights`.
        count: Number of heads.
        path: A .png, .svg or .pdf file to write.

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
