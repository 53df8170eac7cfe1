"""Draw the results of recipes: learning curves, and accuracy by the number of images.

python benchmarks/results_figures.py docs/results/figures/*.json    # writes one .svg per file

A file holds `panels`, each with `lines`. A value is a number, or a list with one number per seed;
then the mean is drawn, with its 95% interval by Student's t. `--show` also prints these numbers.
"""

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.inspection.figures.canvas import new_figure, save_figure

# Okabe and Ito's colours: distinct under colour blindness; markers and dashes differ too
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000", "#e69f00")
MARKERS = "osD^vPX"
DASHES = ("-", "--", "-.", ":")
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5%, 1 freedom on


def main(
    results: Annotated[list[Path], typer.Argument(help="JSON files of results.")],
    show: Annotated[bool, typer.Option(help="Also print the numbers.")] = False,
) -> None:
    for file in results:
        content = json.loads(file.read_text(encoding="utf-8"))
        if "panels" not in content:
            continue  # the data of another figure
        save_figure(drawn(content), file.with_suffix(".svg"))
        print(file.with_suffix(".svg"))
        if show:
            print(table(content))


def interval(values: list[float]) -> tuple[float, float]:
    """Mean over seeds, and half the width of its 95% interval.

    mean ± t · s / √n,   t of n - 1 degrees of freedom

    >>> interval([1.0, 2.0, 3.0, 4.0, 5.0])
    (3.0, 1.963...)
    """
    if len(values) < 2:
        return values[0], 0.0
    spread = statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values), STUDENT[len(values) - 2] * spread


def points(line: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Points of a line: x, y, and half the width of y's interval."""
    values = [y if isinstance(y, list) else [y] for y in line["y"]]
    return [(x, *interval(y)) for x, y in zip(line["x"], values, strict=True)]


def drawn(content: dict[str, Any]) -> Any:
    """A figure with its panels side by side."""
    panels = content["panels"]
    figure = new_figure(4.6 * len(panels), 3.7)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for n, line in enumerate(panel["lines"]):
            lay(axes, line, n)
        for n, (name, y) in enumerate(panel.get("targets", {}).items()):
            axes.axhline(y, color="#555555", lw=1, ls=DASHES[1 + n % 3])
            at = panel.get("named_at", 0.99)  # position of the label along the line
            side = "right" if at > 0.5 else "left"
            axes.annotate(name, (at, y), xycoords=("axes fraction", "data"), fontsize=8, ha=side,
                          va="bottom", color="#555555")  # fmt: skip
        dress(axes, panel)
    return figure


def lay(axes: Any, line: dict[str, Any], number: int) -> None:
    x, y, half = zip(*points(line), strict=True)
    look = {"color": COLOURS[number % len(COLOURS)], "ls": DASHES[number % len(DASHES)], "lw": 1.6}
    axes.plot(x, y, marker=MARKERS[number % len(MARKERS)], ms=4, label=line["name"], **look)
    if any(half):
        low, high = ([b + sign * h for b, h in zip(y, half, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=look["color"], alpha=0.2, lw=0)


def dress(axes: Any, panel: dict[str, Any]) -> None:
    axes.set_title(panel["title"], fontsize=10, loc="left")
    axes.set_xlabel(panel["x"], fontsize=9)
    axes.set_ylabel(panel["y"], fontsize=9)
    axes.set_xscale(panel.get("xscale", "linear"))
    axes.set_yscale(panel.get("yscale", "linear"))
    if "ylim" in panel:
        axes.set_ylim(*panel["ylim"])
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(panel["lines"]) > 1:
        axes.legend(fontsize=8, frameon=False, loc=panel.get("legend", "best"))


def table(content: dict[str, Any]) -> str:
    """The numbers of the figure as text."""
    rows = []
    for panel in content["panels"]:
        rows.append(f"{panel['title']}: {panel['y']} by {panel['x']}")
        for line in panel["lines"]:
            cells = [f"{x:g}: {y:.4g}" + (f" ± {h:.2g}" if h else "") for x, y, h in points(line)]
            rows.append(f"  {line['name']}: " + ", ".join(cells))
    return "\n".join(rows)


if __name__ == "__main__":
    typer.run(main)
