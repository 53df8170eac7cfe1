"""The runs view: curves of the training runs in the served folders, also while they are written."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from regard.errors import ConfigError, FileError, check_choice
from regard.inspection.figures.canvas import new_figure
from regard.models.serialization import WEIGHTS_FILE
from regard.runs import list_runs
from regard.runs.contents import RESULT_FILE, read_recipe
from regard.runs.loading import CHECKPOINTS
from regard.runs.lock import is_locked
from regard.train.metrics import METRICS_FILE, read_metrics
from regard.web.explorer.catalog import CatalogEntry
from regard.web.explorer.explorer import Explorer, QueryRequest, Rows, finite, query
from regard.web.jobs import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS = 2000  # of a curve; longer ones are thinned
MAX_SHOWN = 12  # runs side by side
DEFAULT_RUNS = 4
VIEWS = {"text": ["text", "what-if", "atlas"], "image": ["image"], "sound": ["sound"]}
NOT_CURVES = {"step", "seconds", "epoch"}


class RunsRequest(QueryRequest):
    """Runs to overlay and what of them, names separated by commas; None takes the newest."""

    runs: str | None = Field(None, max_length=4_000)
    metrics: str | None = Field(None, max_length=1_000)
    smooth: float = Field(0.0, ge=0.0, le=0.99)
    log: bool = False  # of the page: the axis of its curves


def runs_table(response: dict[str, Any]) -> Rows:
    """One row per point of a curve."""
    rows: list[list[Any]] = [["metric", "run", "step", "value"]]
    for chart in response["charts"]:
        for curve in chart["curves"]:
            points = zip(curve["x"], curve["y"], strict=True)
            rows += [[chart["metric"], curve["run"], x, y] for x, y in points]
    return rows


def runs_figure(response: dict[str, Any]) -> "Figure":
    """One panel per metric, one curve per run."""
    charts = response["charts"]
    if not charts:
        raise ConfigError("runs: need curves, got none; try regard train phrases")
    figure = new_figure(6.4, 2.6 * len(charts))
    for axes, chart in zip(figure.subplots(len(charts), squeeze=False)[:, 0], charts, strict=True):
        for curve in chart["curves"]:
            values = [math.nan if y is None else y for y in curve["y"]]
            axes.plot(curve["x"], values, label=curve["run"], linewidth=1.2)
        axes.set_ylabel(chart["metric"], fontsize=9)
        axes.set_xlabel("step", fontsize=9)
        axes.legend(fontsize=8, frameon=False)
    return figure


@query("runs", RunsRequest, table=runs_table, figure=runs_figure, is_cached=False)
def answer_runs(explorer: Explorer, request: RunsRequest, job: Job) -> dict[str, Any]:
    """All runs with state and scores, and the curves of those that are chosen."""
    folders = explorer.catalog.run_folders()
    rows = _rows(explorer, folders, job)
    shown = _chosen(request.runs, [row["name"] for row in rows])
    lines = {name: _lines(folders[name]) for name in shown}
    names = {n for rows in lines.values() for x in rows for n, y in x.items() if _is_number(y)}
    known = sorted(
        names - NOT_CURVES, key=lambda n: (n != "loss", n != "valid_loss", "loss" not in n, n)
    )
    if request.metrics is None:
        valid = [n for n in known if n.startswith("valid_") and n != "valid_loss"][:1]
        picked = ["loss", "valid_loss", *valid]
    else:
        picked = dict.fromkeys(request.metrics.split(","))

    def curves(metric: str) -> list[dict[str, Any]]:
        return [{"run": name, **curve(lines[name], metric, request.smooth)} for name in shown]

    return {
        "folders": [folder.name for folder in explorer.catalog.folders],
        "runs": rows,
        "shown": shown,
        "metrics": known,
        # another choice of runs may have other metrics
        "charts": [{"metric": x, "curves": curves(x)} for x in picked if x in known],
        "stamp": _stamp(folders),
    }


@query("runs.stamp", QueryRequest, is_cached=False, priority=-1)
def answer_runs_stamp(explorer: Explorer, request: QueryRequest, job: Job) -> dict[str, Any]:
    """Changes when the files of a run do; nothing is read."""
    return {"stamp": _stamp(explorer.catalog.run_folders())}


def curve(lines: Sequence[dict[str, Any]], metric: str, smooth: float = 0.0) -> dict[str, Any]:
    """Steps and values of a metric, smoothed by an exponential mean without its bias.

    m_t = s m_{t-1} + (1 - s) y_t,   shown: m_t / (1 - sᵗ)

    >>> curve([{"step": 1, "loss": 4.0}, {"step": 2, "loss": 1.0}], "loss", smooth=0.5)
    {'x': [1, 2], 'y': [4.0, 2.0]}
    """
    points = [(x["step"], x[metric]) for x in lines if _is_number(x.get(metric))]
    values, mean, count = [], 0.0, 0
    for _, y in points:
        if math.isfinite(y):
            count += 1
            mean = smooth * mean + (1 - smooth) * y
        values.append(finite(mean / (1 - smooth**count)) if math.isfinite(y) else None)
    last, shown = len(points) - 1, min(len(points), MAX_POINTS)
    # evenly spaced, with the first and the last
    keep = [round(i * last / max(shown - 1, 1)) for i in range(shown)]
    return {"x": [points[i][0] for i in keep], "y": [values[i] for i in keep]}


# ---- folders


def _lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run; none of a damaged one, whose row has the reason."""
    try:
        return read_metrics(folder)
    except FileError:
        return []


def _stamp(folders: dict[str, Path]) -> str:
    """Sizes and times of the files that the view reads."""
    return repr([(name, *_file_states(folder)) for name, folder in folders.items()])


def _file_states(folder: Path) -> Iterator[tuple[int, int]]:
    for name in (METRICS_FILE, RESULT_FILE, WEIGHTS_FILE, ".lock"):
        state = (0, 0)  # of a file that is not there
        with suppress(OSError):
            facts = (folder / name).stat()
            state = facts.st_mtime_ns, facts.st_size
        yield state


def _rows(explorer: Explorer, folders: dict[str, Path], job: Job) -> list[dict[str, Any]]:
    """The rows of `list_runs`, the newest first."""
    entries, rows = explorer.catalog.entries, []
    for parent in explorer.catalog.folders:
        job.check()
        for row in list_runs(parent) if parent.is_dir() else []:
            name = f"{parent.name}/{row['run']}"
            if name in folders:
                rows.append(_row(name, row, folders[name], entries.get(name)))
    return sorted(rows, key=lambda row: row["changed"], reverse=True)


def _row(
    name: str, row: dict[str, Any], folder: Path, entry: CatalogEntry | None
) -> dict[str, Any]:
    can_open = (folder / WEIGHTS_FILE).is_file() or (folder / CHECKPOINTS).is_dir()
    state = row["state"]
    if state == "not finished" and is_locked(folder):
        state = "training"
    scores = {k: finite(float(x)) for k, x in row.get("scores", {}).items()}
    return {
        "name": name,
        **{x: row.get(x) for x in ("run", "recipe", "step", "steps", "seconds", "split")},
        "state": state.replace(str(folder.parent), "…"),
        "baseline": row.get("baseline", ""),
        "scores": scores,
        "differs": {k: str(x) for k, x in row.get("differs", {}).items()},
        "changed": max(time for time, _ in _file_states(folder)),
        "views": _views(folder, entry) if entry and can_open else [],
    }


def _views(folder: Path, entry: CatalogEntry) -> list[str]:
    """The views that can show the model of a run."""
    views = VIEWS.get(entry.reads, [])
    with suppress(FileError):
        if "Recurrent" in type(read_recipe(folder).model).__name__:
            return [*views, "time"]
    return views


# ---- choices


def _chosen(text: str | None, known: list[str]) -> list[str]:
    if text is None:
        return known[:DEFAULT_RUNS]
    names = list(dict.fromkeys(filter(None, text.split(","))))
    for name in names:
        check_choice("runs", name, known)
    if len(names) > MAX_SHOWN:
        raise ConfigError(f"runs: needs at most {MAX_SHOWN} at once, got {len(names)}")
    return names


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)
