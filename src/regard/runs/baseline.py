"""The baseline of a training: a simple model of the same data, scored before the training begins.

A task says what it is (`Task.baseline`); `fit` runs it, `regard train --skip baseline` does not.
"""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.files import parse_json, read_text, write_text
from regard.tasks import Task
from regard.train.config import MINIMISED
from regard.train.metrics.intervals import Tally, Tallying, bootstrap_intervals

BASELINE_FILE = "baseline.json"


class BaselineScores(NamedTuple):
    """A baseline with its scores on the test split, and the statistics that they come from.

    >>> BaselineScores("majority class", 0.1, {"accuracy": 0.5}, [[1.0], [0.0]]).scores["accuracy"]
    0.5
    """

    name: str
    seconds: float
    scores: dict[str, float]
    rows: list[list[float]]  # of the tally, by example

    def compare(self, tally: Tally, score: str) -> dict[str, Any]:
        """A model beside the baseline, by their answers to the same examples; for result.json.

        The interval is that of the difference, by the bootstrap over examples: much narrower than
        those of the two scores.

        Args:
            tally: of the answers of the model.
            score: that decides.
        """
        width = tally.rows.shape[1]
        both = torch.cat([tally.rows.double(), torch.tensor(self.rows).double()], 1)

        def difference(sums: list[float]) -> dict[str, float]:
            model, baseline = tally.score(sums[:width]), tally.score(sums[width:])
            return {score: model[score] - baseline[score]}

        interval = bootstrap_intervals(Tally(both, difference), is_share=False).get(score)
        values = tally.scores()[score], self.scores[score]
        verdict = format_verdict(score, values, interval, self.name)
        return {"name": self.name, "scores": self.scores, "verdict": verdict}


def run_baseline(task: Task, evaluator: Any, folder: Path) -> BaselineScores | None:
    """The scores of a task's baseline, kept in the folder; None for a task without one."""
    path = folder / BASELINE_FILE
    if path.exists():  # of a resumed run
        return BaselineScores(**parse_json(read_text(path)))
    if not isinstance(evaluator, Tallying):
        return None
    started = time.monotonic()
    baseline = task.baseline("test")
    if baseline is None:
        return None
    name, answers = baseline
    seconds, tally = round(time.monotonic() - started, 1), evaluator.tally(answers)
    result = BaselineScores(name, seconds, tally.scores(), tally.rows.tolist())
    write_text(path, json.dumps(result._asdict()) + "\n")
    return result


def format_verdict(
    score: str, values: tuple[float, float], interval: tuple[float, float] | None, name: str
) -> str:
    """Whether a model is worth having: its score beside that of the baseline, in one line.

    >>> format_verdict("accuracy", (0.9, 0.8), (0.05, 0.15), "linear model")
    'accuracy 0.900, baseline 0.800 (linear model): better by 0.050 to 0.150'
    >>> format_verdict("error", (0.3, 0.2), (-0.05, 0.25), "linear model")
    'error 0.300, baseline 0.200 (linear model): not better, the difference is -0.050 to 0.250'
    """
    line = f"{score} {values[0]:.3f}, baseline {values[1]:.3f} ({name}): "
    if interval is None:
        return line + "too few examples to compare"
    low, high = interval
    if low <= 0 <= high:
        return line + f"not better, the difference is {low:.3f} to {high:.3f}"
    better = (high < 0) if score.endswith(MINIMISED) else (low > 0)
    near, far = sorted(map(abs, interval))
    return line + f"{'better' if better else 'worse'} by {near:.3f} to {far:.3f}"
