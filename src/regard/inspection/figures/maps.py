"""Pictures of one map: a head, one token of it, an alignment, or patches on an image."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.figures.canvas import (
    MAX_AXIS_LABELS,
    MAX_CELLS,
    axis_inches,
    escape_mathtext,
    label_axis,
    new_figure,
    save_figure,
    show_matrix,
)
from regard.inspection.sites.labels import (
    as_site_list,
    key_labels,
    query_index,
    query_labels,
    quote_label,
)
from regard.inspection.sites.site import Site
from regard.ops.indices import resolve_index, resolve_slice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FigurePath = str | Path


@torch.no_grad()
def draw_map(
    site: Site,
    head: int = 0,
    *,
    batch: int = 0,
    rows: slice | int = slice(None),
    keys: slice | int = slice(None),
    path: FigurePath | None = None,
) -> "Figure":
    """The map of one head as a picture: a row a query, a column a key; long maps are pooled.

    >>> figure = rg.draw_map(rg.make_site(*torch.randn(2, 5, 4)))
    >>> figure.axes[0].get_xlabel()
    'key, what is looked at'
    """
    from matplotlib.colors import PowerNorm

    query_labels(site, batch)  # says so if this is no site, or has no such sequence
    rows, keys = _slice(rows, site.queries, "rows"), _slice(keys, site.keys, "keys")
    down, across = _labels(site, batch, rows, keys)
    pool = _pool(len(down), len(across))
    head = resolve_index("head", head, site.heads)
    w = site.window(head, rows, keys, pool)[batch]
    first = (rows.indices(site.queries)[0], keys.indices(site.keys)[0])
    figure = new_figure(axis_inches(len(across)) + 1.6, axis_inches(len(down)) + 1.0)
    axes = figure.subplots()
    # means of cells are small beside the largest; their root keeps them visible
    norm = None if pool == (1, 1) else PowerNorm(0.5, vmin=0)
    picture = show_matrix(axes, w, (len(down), len(across)), first, norm=norm)
    _name(axes, down, across, first)
    cell = "" if pool == (1, 1) else f", mean of {pool[0]}×{pool[1]}, colour by its root"
    figure.colorbar(picture, ax=axes, label=f"weight{cell}", shrink=0.8)
    axes.set_title(f"{site.name}, head {head}", fontsize=10)
    return save_figure(figure, path)


@torch.no_grad()
def draw_token(
    sites: Site | Iterable[Site],
    query: int | str,
    *,
    batch: int = 0,
    path: FigurePath | None = None,
) -> "Figure":
    """Where one token looks: a row a head, of one attention or of several, a column a key.

    `query` is its position, or the token itself where it stands once.

    >>> figure = rg.draw_token(rg.make_site(*torch.randn(2, 3, 5, 4)), query=2)
    >>> figure.axes[0].get_title()
    'where 2 looks'
    """
    chosen = as_site_list(sites)
    _check_alike(chosen)
    site, count = chosen[0], sum(s.heads for s in chosen)
    row = query_index(site, query, batch)
    at = slice(row, row + 1)
    wide = -(-site.keys // MAX_CELLS)
    named = query_labels(site, batch)[at.start]
    w = torch.cat([s.window(None, at, pool=(1, wide))[batch, :, 0] for s in chosen])
    figure = new_figure(
        axis_inches(site.keys) + 2.2, axis_inches(count, min_inches=1.2, inches_per_cell=0.22) + 1.2
    )
    axes = figure.subplots()
    picture = show_matrix(axes, w, (count, site.keys))
    label_axis(axes, "x", key_labels(site, batch))
    if site.kind == "self" and wide == 1:  # the token itself is marked by more than a colour
        axes.axvline(at.start + site.terms.offset, color="white", ls=":", lw=1)
    _name_heads(axes, chosen)
    axes.set_xlabel("key, what is looked at")
    axes.set_title(escape_mathtext(f"where {quote_label(named)} looks"), fontsize=10)
    cell = "" if wide == 1 else f", mean of {wide} keys"
    figure.colorbar(picture, ax=axes, label=f"weight{cell}", shrink=0.8)
    return save_figure(figure, path)


@torch.no_grad()
def draw_alignment(
    site: Site, head: int | None = None, *, batch: int = 0, path: FigurePath | None = None
) -> "Figure":
    """Which source each target looks at: the map with a ring on the heaviest key of each query.

    Without a head it is the mean over heads.

    >>> figure = rg.draw_alignment(rg.make_site(torch.randn(3, 4), torch.randn(5, 4)))
    >>> len(figure.axes[0].collections[0].get_offsets())
    3
    """
    query_labels(site, batch)  # says so if this is no site, or has no such sequence
    if max(site.queries, site.keys) > MAX_CELLS:
        raise ShapeError(
            f"site: needs at most {MAX_CELLS} queries and keys, got {site.queries} by {site.keys}; "
            "try draw_map, which pools"
        )
    down, across = query_labels(site, batch), key_labels(site, batch)
    w = site.window(head)[batch].float().cpu()
    w = w.mean(0) if head is None else w
    figure = new_figure(axis_inches(len(across)) + 1.6, axis_inches(len(down)) + 1.2)
    axes = figure.subplots()
    picture = show_matrix(axes, w, (site.queries, site.keys))
    seen = w.sum(-1) > 0
    at = w.argmax(-1)[seen].numpy(), torch.arange(site.queries)[seen].numpy()
    for colour, width in (("white", 3), ("black", 1)):  # one of the two is seen on any cell
        axes.scatter(*at, s=40, facecolors="none", edgecolors=colour, linewidths=width)
    _name(axes, down, across)
    of = "mean of heads" if head is None else f"head {head}"
    axes.set_title(f"{site.name}, {of}", fontsize=10)
    figure.colorbar(picture, ax=axes, label="weight, ○ largest of its row", shrink=0.8)
    return save_figure(figure, path)


@torch.no_grad()
def draw_overlay(
    site: Site,
    image: Float[Tensor, "channel height width"],
    head: int | None = None,
    *,
    query: int | str = 0,
    batch: int = 0,
    path: FigurePath | None = None,
) -> "Figure":
    """Where a token of a vision model looks, laid over the image; query 0 is the class token.

    Patches are row by row, after the class token if their count with it is one more than a grid's.

    >>> site = rg.make_site(*torch.randn(2, 17, 4))            # a class token and 4 × 4 patches
    >>> figure = rg.draw_overlay(site, torch.rand(3, 32, 32))
    >>> len(figure.axes)
    3
    """
    query_labels(site, batch)  # says so if there is no such sequence
    if not isinstance(image, Tensor) or image.ndim != 3:
        got = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise ShapeError(f"image: needs a tensor (channel, height, width), got {got}")
    grid = _grid(site.keys, image.shape[-2], image.shape[-1])
    query = query_index(site, query, batch)
    w = site.window(head, query)[batch].float().cpu()[..., 0, :]
    w = (w.mean(0) if head is None else w)[-grid[0] * grid[1] :].view(grid)
    shown = _as_picture(image.float().cpu())
    figure = new_figure(8.6, 4)
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.imshow(shown.numpy(), cmap="gray")
        axes.set_axis_off()
    alpha = (0.2 + 0.6 * w / w.max().clamp(min=1e-30)).numpy()  # little weight hides little
    size = (image.shape[-2], image.shape[-1])
    picture = show_matrix(right, w, size, alpha=alpha, aspect="equal")
    left.set_title("image", fontsize=9)
    who = "class token" if query == 0 else f"token {query}"
    of = "mean of heads" if head is None else f"head {head}"
    right.set_title(f"where the {who} looks\n{site.name}, {of}", fontsize=9)
    figure.colorbar(picture, ax=right, label="weight of a patch", shrink=0.8)
    return save_figure(figure, path)


def _labels(site: Site, batch: int, rows: slice, keys: slice) -> tuple[list[str], list[str]]:
    return query_labels(site, batch)[rows], key_labels(site, batch)[keys]


def _pool(down: int, across: int) -> tuple[int, int]:
    return max(1, -(-down // MAX_CELLS)), max(1, -(-across // MAX_CELLS))


def _name(
    axes: "Axes", down: list[str], across: list[str], first: tuple[int, int] = (0, 0)
) -> None:
    """Tokens on both axes, and the convention: a row a query, a column a key."""
    label_axis(axes, "y", down, first[0])
    label_axis(axes, "x", across, first[1])
    axes.set_xlabel("key, what is looked at")
    axes.set_ylabel("query, who looks (a row sums to 1)")


def _name_heads(axes: "Axes", sites: list[Site]) -> None:
    several = len(sites) > 1
    names = [f"{s.name} {h}" if several else f"head {h}" for s in sites for h in range(s.heads)]
    if len(names) <= MAX_AXIS_LABELS:
        axes.set_yticks(range(len(names)), names, fontsize=7 if len(names) > 16 else 9)
    else:
        starts = [sum(s.heads for s in sites[:at]) for at in range(len(sites))]
        axes.set_yticks(starts, [s.name for s in sites], fontsize=7)


def _slice(part: slice | int, count: int, name: str) -> slice:
    found = resolve_slice(part, count, name)
    return slice(found.start, found.stop)


def _check_alike(sites: list[Site]) -> None:
    shapes = {(site.queries, site.keys) for site in sites}
    if len(shapes) != 1:
        raise ShapeError(
            f"sites: needs one or more with the same queries and keys, got {sorted(shapes)}; "
            "try look(model, at='encoder.*')"
        )


def _grid(keys: int, height: int, width: int) -> tuple[int, int]:
    """Patches down and across that the keys make on an image of these proportions."""
    for patches in (keys - 1, keys):
        down = round((patches * height / width) ** 0.5) if patches > 0 else 0
        if down and patches % down == 0 and down * width == patches // down * height:
            return down, patches // down
    raise ShapeError(
        f"image: needs the proportions of the {keys} keys' grid, got {height} by {width}; "
        "try the image as the model saw it"
    )


def _as_picture(image: Tensor) -> Tensor:
    """Channels last and between 0 and 1, however the image was normalised."""
    low, high = image.min(), image.max()
    image = (image - low) / (high - low).clamp(min=1e-6)
    return image[0] if image.shape[0] != 3 else image.permute(1, 2, 0)
