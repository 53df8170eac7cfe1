"""A table of the runs in a folder: progress, scores, and the settings in which they differ."""

from pathlib import Path
from typing import Any

from regard.errors import FileError
from regard.runs.contents import RECIPE_FILE, read_recipe, read_result
from regard.runs.settings import iter_settings
from regard.train import read_metrics


def list_runs(folder: str | Path) -> list[dict[str, Any]]:
    """One row per run: name, recipe, step, state, scores, and the settings that differ.

    Scores are those on the test split for a finished run, else the latest on the valid split.

    >>> import tempfile
    >>> list_runs(tempfile.mkdtemp())
    []
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(f"{folder}: needs to be a folder with runs, got no such folder")
    rows, settings = [], dict[str, dict[str, Any]]()
    for run in sorted(file.parent for file in folder.glob(f"*/{RECIPE_FILE}")):
        try:
            rows.append(_row(run))
            settings[run.name] = dict(iter_settings(read_recipe(run)))
        except FileError as error:  # a damaged run does not hide the others
            rows.append({"run": run.name, "state": str(error)})
    names = {name for values in settings.values() for name in values}
    differ = sorted(n for n in names if len({repr(s.get(n)) for s in settings.values()}) > 1)
    for row in rows:
        values = settings.get(row["run"], {})
        row["differs"] = {name: values[name] for name in differ if name in values}
    return rows


def _row(run: Path) -> dict[str, Any]:
    recipe, result, metrics = read_recipe(run), read_result(run), read_metrics(run)
    valid = [line for line in metrics if "valid_loss" in line]
    last = {n.removeprefix("valid_"): x for n, x in (valid or [{}])[-1].items() if "valid_" in n}
    scores = result.get("test", last)
    return {
        "run": run.name,
        "recipe": recipe.name,
        "step": result.get("step", metrics[-1]["step"] if metrics else 0),
        "steps": recipe.train.steps,
        "state": result.get("reason", "not finished"),
        "split": "test" if result else "valid",
        "scores": {n: x for n, x in scores.items() if isinstance(x, int | float)},
        "seconds": result.get("seconds", metrics[-1]["seconds"] if metrics else 0.0),
    }
