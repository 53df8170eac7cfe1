"""The figure of the text view, drawn from its response."""

from typing import TYPE_CHECKING, Any

import torch

from regard.inspection.figures.canvas import axis_inches, label_axis, new_figure, show_matrix
from regard.web.explorer.queries import unpack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS, GAP = 48, 4  # pixels of a map on the sheet of all heads, and between two


def draw_answer(response: dict[str, Any]) -> "Figure":
    """The map of the chosen head, or the maps of all heads."""
    return _draw_map(response["map"]) if "map" in response else _draw_heads(response["sites"])


def _draw_map(found: dict[str, Any]) -> "Figure":
    w, (high, wide) = unpack(found["map"]), found["pool"]
    queries, keys = w.shape[0] * high, w.shape[1] * wide
    figure = new_figure(axis_inches(keys) + 1.6, axis_inches(queries) + 1.0)
    axes = figure.subplots()
    image = show_matrix(axes, w, (queries, keys))
    if high == wide == 1:
        label_axis(axes, "y", found["query_tokens"])
        label_axis(axes, "x", found["key_tokens"])
    title = f"{found['site']}, head {found['head']}"
    axes.set(xlabel="key", ylabel="query (rows sum to 1)")
    axes.set_title(title, fontsize=10)
    cell = "weight" if high == wide == 1 else f"weight, mean of {high}×{wide}"
    figure.colorbar(image, ax=axes, label=cell, shrink=0.8)
    return figure


def _draw_heads(sites: list[dict[str, Any]]) -> "Figure":
    """One row per attention, one column per head, each map relative to its largest cell."""
    columns, step = max((x["heads"] for x in sites), default=1), CELLS + GAP
    sheet = torch.full((max(1, len(sites)) * step - GAP, columns * step - GAP), torch.nan)
    for row, site in enumerate(sites):
        maps = unpack(site["maps"])
        maps = maps / maps.amax((-2, -1), keepdim=True).clamp(min=1e-30)
        at = [torch.arange(CELLS) * count // CELLS for count in maps.shape[1:]]
        for head, thumbnail in enumerate(maps[:, at[0]][:, :, at[1]]):
            top, left = row * step, head * step
            sheet[top : top + CELLS, left : left + CELLS] = thumbnail
    figure = new_figure(min(14, 1.6 + 0.85 * columns), min(40, 0.8 + 0.85 * max(1, len(sites))))
    axes = figure.subplots()
    show_matrix(axes, sheet.sqrt(), (sheet.shape[0], sheet.shape[1]), aspect="equal")
    centre = CELLS / 2
    axes.set_xticks(
        [centre + step * n for n in range(columns)], [*map(str, range(columns))], fontsize=8
    )
    names = [site["name"] for site in sites]
    axes.set_yticks([centre + step * n for n in range(len(sites))], names, fontsize=8)
    axes.set_xlabel("head (rows of a map: queries, columns: keys)", fontsize=8)
    return figure
