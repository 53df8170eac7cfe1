"""Figures of one attention map: a head, one token, an alignment, lines, or an image overlay."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.figures.canvas import (
    COLOURS,
    MAX_AXIS_LABELS,
    MAX_CELLS,
    as_slice,
    axis_inches,
    escape_mathtext,
    label_axis,
    new_figure,
    save_figure,
    show_map,
    show_matrix,
    signed_scale,
)
from regard.inspection.record.sight import missing_note
from regard.inspection.sites.labels import (
    as_site_list,
    key_labels,
    query_index,
    query_labels,
    quote_label,
    shorten_label,
)
from regard.inspection.sites.mixer_site import MixerSite, mixer_labels
from regard.inspection.sites.patches import place_patches
from regard.inspection.sites.site import PatchGrid, Site
from regard.ops.indices import as_ints, resolve_index

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINE_TOKENS = 80  # per side; more are not readable
MIN_LINE_WEIGHT = 0.02  # lighter lines are not drawn
STYLES = ("solid", "dashed", "dotted", "dashdot")


@torch.no_grad()
def draw_map(
    site: Site | MixerSite,
    head: int = 0,
    *,
    batch: int = 0,
    rows: slice | int = slice(None),
    keys: slice | int = slice(None),
    path: str | Path | None = None,
) -> "Figure":
    """Draw the map of one head: one row per query, one column per key.

    Maps of more than 256 queries or keys are pooled. That of a linear mixer is signed: red above 0,
    blue below. `path` ends in .png, .svg or .pdf.

    >>> figure = rg.draw.map(rg.make_site(*torch.randn(2, 5, 4)))
    >>> figure.axes[0].get_xlabel()
    'key'
    """
    from matplotlib.colors import PowerNorm

    if is_signed := isinstance(site, MixerSite):
        queries, key_names = mixer_labels(site, batch)
    else:
        queries, key_names = query_labels(site, batch), key_labels(site, batch)
    rows, keys = as_slice(rows, site.queries, "rows"), as_slice(keys, site.keys, "keys")
    queries, key_names = queries[rows], key_names[keys]
    pool = -(-len(queries) // MAX_CELLS), -(-len(key_names) // MAX_CELLS)
    head = resolve_index("head", head, site.heads)
    w = site.window(head, rows, keys, pool)[batch]
    # means of pooled cells are small beside the largest; a square-root scale shows them
    norm = None if pool == (1, 1) or is_signed else PowerNorm(0.5, vmin=0)
    cell = "" if pool == (1, 1) else f", mean of {pool[0]}×{pool[1]}"
    cell += "" if norm is None else ", square-root scale"
    options: dict[str, Any] = signed_scale(w) if is_signed else {"norm": norm}
    label = f"{'signed ' if is_signed else ''}weight{cell}"
    starts = (rows.start, keys.start)
    figure = _draw_matrix(w, queries, key_names, starts, options, label)
    if is_signed:
        figure.axes[0].set_ylabel("query")
    figure.axes[0].set_title(f"{site.name}, head {head}", fontsize=10)
    return save_figure(figure, path)


@torch.no_grad()
def draw_token(
    sites: Site | Iterable[Site],
    query: int | str,
    *,
    batch: int = 0,
    path: str | Path | None = None,
) -> "Figure":
    """Draw the attention of one query: one row per head of the sites, one column per key.

    `query` is an index, or a token that occurs once.

    >>> figure = rg.draw.token(rg.make_site(*torch.randn(2, 3, 5, 4)), query=2)
    >>> figure.axes[0].get_title()
    'attention of 2'
    """
    chosen = as_site_list(sites)
    shapes = {(site.queries, site.keys) for site in chosen}
    if len(shapes) != 1:
        raise ShapeError(
            f"sites: needs one or more with the same queries and keys, got {sorted(shapes)}; "
            "try look(model, at='encoder.*')"
        )
    site, count = chosen[0], sum(s.heads for s in chosen)
    batch = resolve_index("batch", batch, min(s.batch for s in chosen))
    row = query_index(site, query, batch)
    pool = -(-site.keys // MAX_CELLS)
    w = torch.cat([s.window(None, row, pool=(1, pool))[batch, :, 0] for s in chosen])
    height = axis_inches(count, min_inches=1.2, inches_per_cell=0.22)
    figure = new_figure(axis_inches(site.keys) + 2.2, height + 1.2)
    axes = figure.subplots()
    image = show_matrix(axes, w, (count, site.keys))
    label_axis(axes, "x", key_labels(site, batch))
    if site.kind == "self" and pool == 1:  # mark the query's own position
        axes.axvline(row + site.terms.offset, color="white", ls=":", lw=1)
    names = [f"{s.name if len(chosen) > 1 else 'head'} {h}" for s in chosen for h in range(s.heads)]
    if count <= MAX_AXIS_LABELS:
        axes.set_yticks(range(count), names, fontsize=7 if count > 16 else 9)
    else:
        starts = accumulate((s.heads for s in chosen[:-1]), initial=0)
        axes.set_yticks(list(starts), [s.name for s in chosen], fontsize=7)
    axes.set_xlabel("key")
    label = quote_label(query_labels(site, batch)[row])
    axes.set_title(escape_mathtext(f"attention of {label}"), fontsize=10)
    cell = "" if pool == 1 else f", mean of {pool} keys"
    figure.colorbar(image, ax=axes, label=f"weight{cell}", shrink=0.8)
    return save_figure(figure, path, missing_note(sites))


@torch.no_grad()
def draw_alignment(
    site: Site, head: int | None = None, *, batch: int = 0, path: str | Path | None = None
) -> "Figure":
    """Draw a soft alignment: the map of a head, with the largest weight of each query circled.

    Without a head, the mean over heads.

    >>> figure = rg.draw.alignment(rg.make_site(torch.randn(3, 4), torch.randn(5, 4)))
    >>> len(figure.axes[0].collections[0].get_offsets())
    3
    """
    queries, keys = query_labels(site, batch), key_labels(site, batch)
    if max(site.queries, site.keys) > MAX_CELLS:
        raise ShapeError(
            f"site: needs at most {MAX_CELLS} queries and keys, got {site.queries} by {site.keys}; "
            "try draw.map, which pools"
        )
    w = site.window(head)[batch].float().cpu()
    w = w.mean(0) if head is None else w
    label = "weight, ○ largest of the row"
    figure = _draw_matrix(w, queries, keys, (0, 0), {}, label, margin=1.2)
    nonzero = w.sum(-1) > 0
    points = w.argmax(-1)[nonzero].numpy(), torch.arange(site.queries)[nonzero].numpy()
    axes = figure.axes[0]
    for colour, width in (("white", 3), ("black", 1)):  # visible on light and dark cells
        axes.scatter(*points, s=40, facecolors="none", edgecolors=colour, linewidths=width)
    axes.set_title(f"{site.name}, {_describe_head(site, head)}", fontsize=10)
    return save_figure(figure, path)


@torch.no_grad()
def draw_image_attention(
    site: Site, head: int | None, query: int | str, image: Any, *, batch: int = 0,
    path: str | Path | None = None,
) -> "Figure":  # fmt: skip
    """Draw which patches of a picture a query attends to, over the picture.

    The patches are those that `look` found (`site.patches`), of a vision encoder or of the image
    tokens in a text; without them, a grid of the picture's proportions, after a class token if the
    number of keys is one more.

    Args:
        site: A site whose keys are patches.
        head: The head; None is the mean over heads.
        query: Index or token: 0 is a vision encoder's class token; a word of a text.
        image: The picture: a tensor (channel, height, width) in any range, or one of Pillow; a list
            with one for each picture or crop of the sequence.
        batch: Index of the sequence.
        path: File to write: .png, .svg or .pdf.

    >>> site = rg.make_site(*torch.randn(2, 17, 4))            # a class token and 4 × 4 patches
    >>> figure = rg.draw.image_attention(site, None, 0, torch.rand(3, 32, 32))
    >>> len(figure.axes)
    3
    """
    label = query_labels(site, batch)  # checks site and batch
    pictures = [_as_pixels(x) for x in (image if isinstance(image, list | tuple) else [image])]
    grids = [grid for grid in site.patches if grid.batch == batch]
    if not site.patches:
        rows, columns = _patch_grid(site.keys, *pictures[0].shape[-2:])
        grids = [PatchGrid(site.keys - rows * columns, rows, columns, batch)]
    if len(pictures) != len(grids) or not grids:
        raise ShapeError(
            f"image: needs one for each of the {len(grids)} pictures of sequence {batch}, "
            f"got {len(pictures)}"
        )
    query = query_index(site, query, batch)
    w = site.window(head, query)[batch].float().cpu()[..., 0, :]
    w = w.mean(0) if head is None else w
    placed = [place_patches(grid, w) for grid in grids]
    most = torch.cat([x.flatten() for x in placed]).max().clamp(min=1e-30)
    figure, weights = new_figure(0.6 + 4 * (len(grids) + 1), 4), None
    first, *others = figure.subplots(1, len(grids) + 1)
    _show_pixels(first, pictures[0])
    first.set_title("image", fontsize=9)
    for axes, pixels, values in zip(others, pictures, placed, strict=True):
        _show_pixels(axes, pixels)
        alpha = 0.2 + 0.6 * values / most  # small weights leave the image visible
        size, limit = (pixels.shape[-2], pixels.shape[-1]), float(most)
        options = {"alpha": alpha.numpy(), "aspect": "equal", "vmax": limit}
        weights = show_matrix(axes, values, size, **options)
        axes.set_title(f"{float(values.sum()):.2f} of the weight", fontsize=9)
    token = quote_label(label[query]) if site.query_tokens is not None else f"token {query}"
    token = "class token" if query == 0 and site.query_tokens is None and grids[0].first else token
    title = f"attention of {token}, {site.name}, {_describe_head(site, head)}"
    figure.suptitle(escape_mathtext(title), fontsize=9)
    assert weights is not None
    figure.colorbar(weights, ax=others[-1], label="weight per patch", shrink=0.8)
    return save_figure(figure, path)


def _as_pixels(image: Any) -> Tensor:
    """A picture as (channel, height, width), from 0 to 1."""
    if hasattr(image, "getbands"):  # of Pillow
        import numpy as np

        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1) / 255
    if not isinstance(image, Tensor) or image.ndim != 3:
        got = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise ShapeError(f"image: needs a tensor (channel, height, width), got {got}")
    image = image.float().cpu()
    low, high = image.min(), image.max()
    return (image - low) / (high - low).clamp(min=1e-6)


def _show_pixels(axes: "Axes", pixels: Tensor) -> None:
    shown = pixels.permute(1, 2, 0) if len(pixels) == 3 else pixels[0]
    axes.imshow(shown.numpy(), cmap="gray")
    axes.set_axis_off()


@torch.no_grad()
def draw_lines(
    site: Site, heads: int | Sequence[int] = 0, *, query: int | str | None = None, batch: int = 0,
    rows: slice | int = slice(None), keys: slice | int = slice(None),
    path: str | Path | None = None,
) -> "Figure":  # fmt: skip
    """Draw attention weights as lines from queries to keys, wider for larger weights.

    Heads differ in colour and line style. Weights below 0.02 are not drawn. A query is given by its
    index or by a token that occurs once.

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
    styles = list(zip(chosen, cycle(COLOURS), cycle(STYLES), strict=False))
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


def _describe_head(site: Site, head: int | None) -> str:
    return "mean of heads" if head is None else f"head {resolve_index('head', head, site.heads)}"


def _draw_matrix(
    w: Tensor, queries: list[str], keys: list[str], first: tuple[int, int],
    options: dict[str, Any], label: str, margin: float = 1.0,
) -> "Figure":  # fmt: skip
    """A map with labelled axes, which count from `first`, and a colour bar."""
    figure = new_figure(axis_inches(len(keys)) + 1.6, axis_inches(len(queries)) + margin)
    axes = figure.subplots()
    image = show_map(axes, w, queries, keys, first, **options)
    axes.set(xlabel="key", ylabel="query (rows sum to 1)")
    figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    return figure


def _patch_grid(keys: int, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of patches on an image of these proportions."""
    for patches in (keys - 1, keys):
        rows = round((patches * height / width) ** 0.5) if patches > 0 else 0
        if rows and patches % rows == 0 and rows * width == patches // rows * height:
            return rows, patches // rows
    raise ShapeError(
        f"image: needs the proportions of the {keys} keys' grid, got {height} by {width}; "
        "try the image that the model got"
    )
