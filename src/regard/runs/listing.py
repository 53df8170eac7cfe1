"""All runs in a folder side by side: how far, how good, and in which settings they differ."""

from pathlib import Path
from typing import Any

from regard.errors import FileError
from regard.runs.run import RECIPE_FILE, read_recipe, read_result
from regard.runs.settings import iter_settings
from regard.train.metrics.log import read_metrics


def list_runs(folder: str | Path) -> list[dict[str, Any]]:
    """A row for each run: its name, recipe, step, how it ended, its scores, what is its own.

    The scores are those on the test part where it has ended, else the last on the valid part.

    >>> import tempfile
    >>> list_runs(tempfile.mkdtemp())
    []
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(f"{folder}: needs to be a folder with runs, got nothing there")
    rows, settings = [], {}
    for place in sorted(file.parent for file in folder.glob(f"*/{RECIPE_FILE}")):
        try:
            rows.append(_row(place))
            settings[place.name] = dict(iter_settings(read_recipe(place)))
        except FileError as error:  # one that cannot be read does not hide the others
            rows.append({"run": place.name, "state": str(error)})
    known = {name for one in settings.values() for name in one}
    differ = sorted(n for n in known if len({repr(s.get(n)) for s in settings.values()}) > 1)
    for row in rows:
        own = settings.get(row["run"], {})
        row["differs"] = {name: own[name] for name in differ if name in own}
    return rows


def _row(place: Path) -> dict[str, Any]:
    recipe, result, metrics = read_recipe(place), read_result(place), read_metrics(place)
    valid = [line for line in metrics if "valid_loss" in line]
    last = {n.removeprefix("valid_"): x for n, x in (valid or [{}])[-1].items() if "valid_" in n}
    scores = result.get("test", last)
    return {
        "run": place.name,
        "recipe": recipe.name,
        "step": result.get("step", metrics[-1]["step"] if metrics else 0),
        "steps": recipe.train.steps,
        "state": result.get("reason", "not finished"),
        "part": "test" if result else "valid",
        "scores": {n: x for n, x in scores.items() if isinstance(x, int | float)},
        "seconds": result.get("seconds", metrics[-1]["seconds"] if metrics else 0.0),
    }
