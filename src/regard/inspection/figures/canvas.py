"""What every figure shares: paper without a window, colours that all can tell apart, labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.errors import FileError
from regard.files import atomic_write
from regard.inspection.sites.labels import shorten_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

COLORMAP = "cividis"  # alike for readers with and without colour blindness; grey prints keep order
SUFFIXES = (".png", ".svg", ".pdf")
MAX_AXIS_LABELS = 48  # tokens that are written out along an axis; beyond that positions are
MAX_CELLS = 256  # a map larger than this is pooled


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure in inches; it belongs to no window, so nothing has to be closed.

    >>> new_figure(4, 3).get_size_inches().tolist()
    [4.0, 3.0]
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: str | Path | None) -> "Figure":
    """Write the figure where a path is given; the suffix says how.

    >>> float(save_figure(new_figure(1, 1), None).get_figwidth())
    1.0
    """
    if path is None:
        return figure
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise FileError(f"{path}: needs to end in .png, .svg or .pdf, got {path.suffix!r}")
    if not path.resolve().parent.is_dir():
        raise FileError(f"{path}: needs a folder that exists, got none of that name")
    import matplotlib

    # text stays text in a vector picture, and the same figure gives the same file
    suffix = path.suffix.lower()
    settings = matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regard"})
    with settings, atomic_write(path) as place:
        dated: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(place, format=suffix[1:], dpi=150, metadata=dated.get(suffix))
    return figure


def show_matrix(
    axes: "Axes",
    w: Tensor,
    size: tuple[int, int],
    first: tuple[int, int] = (0, 0),
    **how: Any,
) -> "AxesImage":
    """Lay numbers down as cells; ticks count rows and columns from `first`, pooled or not."""
    (top, left), (down, across) = first, size
    extent = (left - 0.5, left + across - 0.5, top + down - 0.5, top - 0.5)
    how = {"cmap": COLORMAP, "aspect": "auto", "interpolation": "nearest", **how}
    if how.get("norm") is None:
        how.setdefault("vmin", 0)
    return axes.imshow(w.detach().float().cpu().numpy(), extent=extent, **how)


def label_axis(axes: "Axes", which: str, labels: Sequence[str], first: int = 0) -> None:
    """Write tokens along an axis; where there are too many, positions stay."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if len(labels) > MAX_AXIS_LABELS:
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(8, integer=True))
        return
    turned = which == "x" and max(map(len, labels), default=0) > 2
    axis.set_ticks(
        range(first, first + len(labels)),
        [escape_mathtext(shorten_label(label)) for label in labels],
        fontsize=9 if len(labels) <= 24 else 6,
        rotation=90 if turned else 0,
    )


def escape_mathtext(label: str) -> str:
    """A token as it is written: a dollar sign must not start mathematics.

    >>> escape_mathtext("$5")
    '\\\\$5'
    """
    return label.replace("$", r"\$")


def axis_inches(
    count: int, min_inches: float = 2.2, max_inches: float = 6.5, inches_per_cell: float = 0.26
) -> float:
    """Inches for so many cells: each wide enough for its label, within limits.

    >>> axis_inches(10), axis_inches(1000)
    (2.6, 6.5)
    """
    return min(max_inches, max(min_inches, inches_per_cell * count))
