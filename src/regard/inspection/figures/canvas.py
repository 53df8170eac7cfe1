"""Shared by all figures: creation, saving, colours and axis labels."""

import warnings
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.errors import FileError
from regard.files import atomic_write
from regard.inspection.sites.labels import shorten_label
from regard.ops.indices import resolve_slice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

COLORMAP = "cividis"  # same with and without colour blindness, and monotone in grey
DIVERGING = "PuOr"  # distinguishable with colour blindness; white is 0
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe-Ito
SUFFIXES = (".png", ".svg", ".pdf")
MAX_AXIS_LABELS = 48  # axes with more tokens show positions
MAX_CELLS = 256  # larger maps are pooled


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, sizes in inches; it belongs to no GUI, so nothing has to be closed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _notebook_figure()(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


@cache
def _notebook_figure() -> "type[Figure]":
    """A figure that notebooks show without pyplot."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            file = BytesIO()
            render(self, file, format="png", dpi=100)
            return file.getvalue()

    return NotebookFigure


def save_figure(figure: "Figure", path: str | Path | None, note: str = "") -> "Figure":
    """Write the figure if a path is given, in the format of its suffix; a note goes below it."""
    if note:
        lines = [x for x in (figure.get_supxlabel(), *wrap(escape_mathtext(note), 60)) if x]
        figure.supxlabel("\n".join(lines), fontsize=7)
    if path is None:
        return figure
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise FileError(f"{path}: needs to end in .png, .svg or .pdf, got {path.suffix!r}")
    if not path.resolve().parent.is_dir():
        raise FileError(f"{path}: needs an existing folder, got none of that name")
    import matplotlib

    # text stays text in vector files, and the same figure gives the same bytes
    settings = matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regard"})
    with settings, atomic_write(path) as file:
        metadata: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        render(figure, file, format=suffix[1:], dpi=150, metadata=metadata.get(suffix))
    return figure


def render(figure: "Figure", file: Any, **options: Any) -> None:
    """`figure.savefig`, without a warning for each character that the font does not have."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(file, **options)


def as_slice(span: slice | int, count: int, name: str) -> slice:
    """A slice or an index as a slice with explicit bounds."""
    resolved = resolve_slice(span, count, name)
    return slice(resolved.start, resolved.stop)


def show_matrix(
    axes: "Axes", w: Tensor, size: tuple[int, int], first: tuple[int, int] = (0, 0), **options: Any
) -> "AxesImage":
    """Show a matrix as an image; ticks count unpooled rows and columns from `first`."""
    (top, left), (rows, columns) = first, size
    extent = (left - 0.5, left + columns - 0.5, top + rows - 0.5, top - 0.5)
    options = {"cmap": COLORMAP, "aspect": "auto", "interpolation": "nearest", **options}
    if options.get("norm") is None:
        options.setdefault("vmin", 0)
    return axes.imshow(w.detach().float().cpu().numpy(), extent=extent, **options)


def signed_scale(x: Tensor, least: float = 1e-12) -> dict[str, Any]:
    """Options of `show_matrix` for signed numbers, white at 0."""
    limit = max(least, float(x.nan_to_num(0).abs().max()))
    return {"cmap": DIVERGING, "vmin": -limit, "vmax": limit}


def show_map(
    axes: "Axes",
    w: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    first: tuple[int, int] = (0, 0),
    **options: Any,
) -> "AxesImage":
    """`show_matrix` with a label on each row and column, which may be pooled."""
    image = show_matrix(axes, w, (len(rows), len(columns)), first, **options)
    label_axis(axes, "y", rows, first[0])
    label_axis(axes, "x", columns, first[1])
    return image


def label_axis(axes: "Axes", which: str, labels: Sequence[str], first: int = 0) -> None:
    """Write tokens along an axis; if there are too many, show positions."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if len(labels) > MAX_AXIS_LABELS:
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(8, integer=True))
        return
    rotated = which == "x" and max(map(len, labels), default=0) > 2
    axis.set_ticks(
        range(first, first + len(labels)),
        [escape_mathtext(shorten_label(label)) for label in labels],
        fontsize=9 if len(labels) <= 24 else 6,
        rotation=90 if rotated else 0,
    )


def escape_mathtext(label: str) -> str:
    """Escape dollar signs, which would start matplotlib's math text."""
    return label.replace("$", r"\$")


def axis_inches(
    count: int, min_inches: float = 2.2, max_inches: float = 6.5, inches_per_cell: float = 0.26
) -> float:
    """Length of an axis with `count` cells, within limits."""
    return min(max_inches, max(min_inches, inches_per_cell * count))
