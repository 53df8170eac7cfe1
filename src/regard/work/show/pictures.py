"""Pictures of worked maps: one panel per matrix, the number of each entry in its cell."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.errors import WorkError
from regard.files import atomic_write
from regard.work.exact import format_decimal, to_float
from regard.work.shapes import COLUMN_CONVENTION
from regard.work.show.text import check_names, detect_convention, matches_any
from regard.work.solution import Solution, Step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg")
MAX_CELLS = 256  # per matrix; more could not be read
MAX_PANELS = 12
MAPS = ("A", "A_*")  # what is drawn unless steps are named
DARK = 0.6  # of the way to the largest: from here on the number is white


def as_picture(path: Path | None) -> Path | None:
    """The path, if it is that of a picture.

    >>> as_picture(Path("map.svg")), as_picture(Path("map.html"))
    (PosixPath('map.svg'), None)
    """
    return path if path is not None and path.suffix.lower() in PICTURES else None


def draw_maps(solution: Solution, only: Sequence[str] = ()) -> "Figure":
    """Draw the attention maps of a solution, or the steps that `only` names.

    >>> solution = rg.work.solve({"given": {"X": [[1, 0], [0, 2]]}})
    >>> [axes.get_title() for axes in draw_maps(solution).axes]
    ['A: the weights: they sum to 1 for each query']
    """
    from matplotlib.figure import Figure

    check_names(only, solution)
    chosen = (one for one in solution.steps if matches_any(one.name, only or MAPS))
    steps = [one for one in chosen if _is_drawable(one)]
    if not 1 <= len(steps) <= MAX_PANELS:
        rule = f"1 to {MAX_PANELS} matrices of finite numbers, at most {MAX_CELLS} each, to draw"
        raise WorkError(f"only: needs {rule}, got {len(steps)}; try --only with names of steps")
    sides = "key", "query"
    if detect_convention(solution) == COLUMN_CONVENTION:
        sides = "query", "key"
    figure = Figure(figsize=(4 * min(len(steps), 4), 3.6 * -(-len(steps) // 4)), layout="tight")
    for n, step in enumerate(steps, 1):
        axes = figure.add_subplot(-(-len(steps) // 4), min(len(steps), 4), n)
        numbers = np.array([[to_float(x) for x in row] for row in step.value.tolist()])
        low = min(0.0, numbers.min())
        axes.imshow(numbers, cmap="Blues", vmin=low)
        for (i, j), x in np.ndenumerate(numbers):
            dark = low + DARK * (numbers.max() - low)
            text = f"{x:.3f}" if abs(x) < 1 else format_decimal(step.value[i, j], 3)
            color = "white" if x > dark else "black"
            axes.text(j, i, text, ha="center", va="center", color=color)
        is_map = matches_any(step.name, MAPS)
        axes.set_xlabel(sides[0] if is_map else "column")
        axes.set_ylabel(sides[1] if is_map else "row")
        for ticks, count in (
            (axes.set_xticks, step.value.cols),
            (axes.set_yticks, step.value.rows),
        ):
            ticks(range(count), [str(k + 1) for k in range(count)])
        axes.set_title(f"{step.name}: {step.title}", fontsize=9, wrap=True)
    return figure


def write_picture(solution: Solution, path: Path, only: Sequence[str] = ()) -> Path:
    """Write the picture of `draw_maps` as PNG or SVG."""
    figure = draw_maps(solution, only)
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix.lower()[1:], dpi=150)
    return path


def _is_drawable(step: Step) -> bool:
    is_number = all(x.is_number and x.is_finite for x in step.value)
    return is_number and 1 < len(step.value) <= MAX_CELLS
