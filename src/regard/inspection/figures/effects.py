"""Heat map of signed effects, such as those of a patching sweep."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from regard.inspection.figures.canvas import (
    axis_inches,
    label_axis,
    new_figure,
    save_figure,
    show_matrix,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIVERGING = "PuOr"  # distinguishable with colour blindness; white is 0


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
    limit = max(1e-12, float(effect.nan_to_num(0).abs().max()))
    limits = {"cmap": DIVERGING, "vmin": -limit, "vmax": limit}
    image = show_matrix(axes, effect, (height, width), **limits)
    label_axis(axes, "x", columns)
    label_axis(axes, "y", rows)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, label="effect")
    return save_figure(figure, path)
