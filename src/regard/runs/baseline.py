"""The baseline of a training: a simple model of the same data, scored before the training begins.

A task has it (`Task.fit_baseline`; `Task.baseline` where it is no model): `fit` runs
it, `regard train --skip baseline` does not, `regard train --baseline-only` keeps it as a run.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.errors import FileError
from regard.files import parse_json, read_text, write_text
from regard.tasks import Recipe, Task
from regard.train.config import MINIMISED
from regard.train.metrics import Tally, Tallying, bootstrap_intervals

BASELINE_FILE = "baseline.json"
KEEP = "; regard train … --baseline-only keeps the simpler one"


class BaselineScores(NamedTuple):
    """A baseline with its scores on the test split, and the statistics that they come from."""

    name: str
    seconds: float
    scores: dict[str, float]
    rows: list[list[float]]  # of the tally, by example
    intervals: dict[str, tuple[float, float]] = {}
    curve: str = ""  # what twice the data may bring, if it was measured

    def __str__(self) -> str:
        intervals = self.intervals
        shown = (f"{x} {format_score(y, intervals.get(x))}" for x, y in self.scores.items())
        return f"baseline, {self.name}: {', '.join(shown)} on test, in {self.seconds:.0f} s"

    def compare(
        self,
        tally: Tally,
        score: str,
        own: tuple[float, float] | None = None,
        *,
        can_keep: bool = False,
    ) -> dict[str, Any]:
        """A model beside the baseline, by their answers to the same examples; for result.json.

        The verdict is by the interval of the difference, by the bootstrap over examples: much
        narrower than those of the two scores.

        Args:
            tally: of the answers of the model.
            score: that decides.
            own: interval of the model's score.
            can_keep: name the way to the baseline where the model is not better.
        """
        width = tally.rows.shape[1]
        both = torch.cat([tally.rows.double(), torch.tensor(self.rows).double()], 1)

        def difference(sums: list[float]) -> dict[str, float]:
            model, baseline = tally.score(sums[:width]), tally.score(sums[width:])
            return {score: model[score] - baseline[score]}

        interval = bootstrap_intervals(Tally(both, difference), is_share=False).get(score)
        model = format_score(tally.scores()[score], own)
        baseline = format_score(self.scores[score], self.intervals.get(score))
        verdict = format_verdict(score, (model, baseline), interval, self.name)
        if can_keep and "): better" not in verdict and not self.name.startswith("xz"):
            verdict += KEEP
        result = {"name": self.name, "scores": self.scores, "intervals": self.intervals}
        return {**result, "verdict": verdict} | ({"curve": self.curve} if self.curve else {})


def run_baseline(task: Task, evaluator: Any, folder: Path | None = None) -> BaselineScores | None:
    """The scores of a task's baseline, kept in the folder of a run; None for a task without one."""
    if folder is not None and (known := read_baseline(folder)):  # of a resumed run
        return known
    if not isinstance(evaluator, Tallying):
        return None
    started = time.monotonic()
    baseline = task.baseline("test")
    if baseline is None:
        return None
    name, answers = baseline
    seconds, tally = round(time.monotonic() - started, 1), evaluator.tally(answers)
    rows, intervals = tally.rows.tolist(), bootstrap_intervals(tally)
    result = BaselineScores(name, seconds, tally.scores(), rows, intervals)
    if folder is not None:
        write_baseline(result, folder)
    return result


def write_baseline(baseline: BaselineScores, folder: Path) -> None:
    """Keep the scores of a baseline in the folder of a run."""
    write_text(folder / BASELINE_FILE, json.dumps(baseline._asdict()) + "\n")


def score_baseline(recipe: Recipe) -> BaselineScores | None:
    """The scores of the baseline of a recipe, without a run; None for data without one."""
    seed = recipe.train.seed
    task = recipe.data.fit(seed)
    if all(getattr(type(task), x) is getattr(Task, x) for x in ("baseline", "fit_baseline")):
        return None
    return run_baseline(task, task.evaluator(task.tokenizer(seed), "test"))


def read_baseline(folder: Path) -> BaselineScores | None:
    """The baseline that was scored when a run began; None without one."""
    path = folder / BASELINE_FILE
    if not path.exists():
        return None
    try:
        return BaselineScores(**parse_json(read_text(path)))
    except TypeError as error:
        raise FileError(f"{path}: needs name, seconds, scores and rows, got {error}") from None


def format_score(value: float, interval: Sequence[float] | None) -> str:
    """A score with half of its interval.

    >>> format_score(0.9, (0.85, 0.93))
    '0.900 ± 0.040'
    """
    return f"{value:.3f}" + (f" ± {(interval[1] - interval[0]) / 2:.3f}" if interval else "")


def format_verdict(
    score: str, values: tuple[str, str], interval: tuple[float, float] | None, name: str
) -> str:
    """Whether a model is worth having: its score beside that of the baseline, in one line.

    >>> format_verdict("accuracy", ("0.900", "0.800"), (0.05, 0.15), "linear model")
    'accuracy 0.900, baseline 0.800 (linear model): better by 0.050 to 0.150'
    >>> format_verdict("error", ("0.300", "0.200"), (-0.05, 0.25), "linear model")
    'error 0.300, baseline 0.200 (linear model): not better, the difference is -0.050 to 0.250'
    """
    line = f"{score} {values[0]}, baseline {values[1]} ({name}): "
    if interval is None:
        return line + "too few examples to compare"
    low, high = interval
    if low <= 0 <= high:
        return line + f"not better, the difference is {low:.3f} to {high:.3f}"
    better = (high < 0) if score.endswith(MINIMISED) else (low > 0)
    near, far = sorted(map(abs, interval))
    return line + f"{'better' if better else 'worse'} by {near:.3f} to {far:.3f}"
