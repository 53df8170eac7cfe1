"""What `fit` does before and after a training, by step; `skip` names the steps to leave out.

    rg.runs.fit(recipe, "runs/mine", skip=["card", "report"])

A step is a function of the `Training`; one more step is one more entry of `POST_STEPS`.
"""

import json
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import models
from regard.data import Tokenizer
from regard.errors import ConfigError, suggestion
from regard.files import write_text
from regard.runs.baseline import BaselineScores, format_score, run_baseline, write_baseline
from regard.runs.contents import BASELINE, RESULT_FILE
from regard.runs.data_curve import data_curve
from regard.runs.evaluate import Evaluation, evaluate_model
from regard.runs.report.facts import CARD_FILE, RunFacts, collect_facts, model_card
from regard.runs.report.page import REPORT_FILE, render_page
from regard.runs.run import load_run
from regard.tasks import Recipe, Task
from regard.tasks.base import Evaluator
from regard.train import Calibration, Gradable, Outcome, Trainer, calibrate, save_calibration
from regard.train.config import TrainConfig
from regard.train.evaluation import run_evaluation
from regard.train.metrics import read_metrics

EARLY = 0.2  # of the steps: a best evaluation before it
RISING = 0.1  # of the gain since the first evaluation, in the last fifth of the steps
MIN_EVALUATIONS = 4
TOKEN_CACHE = "cache"  # the encoded train split: reused by resume, removed when training ends


class FittedModel(NamedTuple):
    """A baseline in the place of a trainer: what the steps need of either."""

    model: nn.Module
    evaluate: Evaluator
    show: bool
    device: torch.device = torch.device("cpu")

    def run(self) -> Outcome:
        """Nothing but the scores on the valid split."""
        scores = run_evaluation(self.model, self.evaluate)
        return Outcome(0, BASELINE, scores, weights_step=0)


@dataclass
class Training:
    """A training in its run folder, and what the steps after it add."""

    folder: Path
    recipe: Recipe
    tokenizer: Tokenizer | None
    trainer: Trainer | FittedModel
    outcome: Outcome = Outcome(0, "not begun", {})
    seconds: float = 0.0
    baseline: BaselineScores | None = None
    calibration: Calibration | None = None
    evaluation: Evaluation = field(default_factory=lambda: Evaluation("test", {}, []))

    @cached_property
    def evaluator(self) -> Evaluator:
        """The evaluation on the test split, which the report shows examples of."""
        return self.recipe.data.evaluator(self.tokenizer, "test")

    @cached_property
    def facts(self) -> RunFacts:
        """What the card and the report state, of the run as it was written."""
        run = load_run(self.folder, device=self.trainer.device)
        return collect_facts(run, self.evaluation, self.evaluator)


def run_baseline_step(training: Training, skip: Collection[str] = (), curve: bool = False) -> None:
    """Score the baseline of the task, on the test split, before the training begins.

    With `curve` it is also fitted to a quarter and a half of the train split.
    """
    if not {"baseline", "evaluate"}.isdisjoint(skip):
        return
    training.baseline = run_baseline(training.recipe.data, training.evaluator, training.folder)
    if training.baseline is not None and curve:
        measured = data_curve(training.recipe)
        training.baseline = training.baseline._replace(curve=measured.verdict)
        write_baseline(training.baseline, training.folder)
    if training.baseline is not None and training.trainer.show:
        for line in filter(None, (training.baseline, training.baseline.curve)):
            print(f"{training.folder}: {line}")


def run_post_steps(training: Training, skip: Collection[str] = ()) -> dict[str, Any]:
    """Run the steps but those of `skip`; returns the scores on the test split, if evaluated."""
    for name, step in POST_STEPS.items():
        if name not in skip:
            step(training)
    return training.evaluation.scores


def check_skip(skip: Collection[str]) -> None:
    """Raise a ConfigError for a name that is not a step which can be skipped.

    >>> check_skip(["x"])
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: skip: needs baseline, calibrate, evaluate, card, report, got 'x'
    """
    names = ["baseline", *(name for name in POST_STEPS if name not in REQUIRED)]
    for name in [skip] if isinstance(skip, str) else skip:
        if name not in names or isinstance(skip, str):
            hint = f"; try [{skip!r}]" if skip in names else suggestion(name, names)
            raise ConfigError(f"skip: needs {', '.join(names)}, got {name!r}{hint}")


def _calibrate(training: Training) -> None:
    """Fit the confidence on the valid split, which is loaded for the training."""
    trainer = training.trainer
    if not isinstance(trainer.evaluate, Gradable):
        return
    grade = partial(trainer.evaluate.grade, is_correct=training.recipe.data.is_correct)
    if graded := run_evaluation(trainer.model, grade):
        training.calibration = calibrate(graded)
        save_calibration(training.folder, training.calibration)
    elif trainer.show:
        print(f"{training.folder}: warning: no confidence, as the model answers nothing yet")


def _evaluate(training: Training) -> None:
    is_correct, model = training.recipe.data.is_correct, training.trainer.model
    training.evaluation = evaluate_model(
        model, training.evaluator, "test", is_correct, training.calibration
    )


def _write_result(training: Training) -> None:
    """Write result.json, which makes the run a finished one."""
    outcome = training.outcome
    result = {"step": outcome.step, "reason": outcome.reason, "seconds": training.seconds}
    result |= {"weights_step": outcome.weights_step, "valid": outcome.scores}
    evaluation = training.evaluation
    result |= {"test": evaluation.scores, "intervals": evaluation.intervals}
    if training.baseline is not None and evaluation.tally is not None:
        scores, monitor = evaluation.tally.scores(), training.recipe.train.monitor
        names = [name for name in scores if name != "loss"]
        score = monitor if monitor in names else names[0]
        own = evaluation.intervals.get(score)
        if outcome.reason == BASELINE:
            value, name = format_score(scores[score], own), training.baseline.name
            result["baseline"] = {"name": name, "verdict": f"{score} {value}: the baseline, {name}"}
        else:
            can_keep = type(training.recipe.data).fit_baseline is not Task.fit_baseline
            result["baseline"] = training.baseline.compare(
                evaluation.tally, score, own, can_keep=can_keep
            )
        if training.trainer.show:
            print(f"{training.folder}: {result['baseline']['verdict']}")
    lines = read_metrics(training.folder)
    result["warnings"] = curve_warnings(lines, training.recipe.train, training.folder)
    if training.trainer.show:
        for line in result["warnings"]:
            print(f"{training.folder}: warning: {line}")
    write_text(training.folder / RESULT_FILE, json.dumps(result, indent=1) + "\n")
    shutil.rmtree(training.folder / TOKEN_CACHE, ignore_errors=True)  # only training reads it


def curve_warnings(
    metrics: Sequence[dict[str, Any]], config: TrainConfig, folder: str | Path
) -> list[str]:
    """What is odd about the validation curve of a training that ended, each with a way out.

    Args:
        metrics: the lines of metrics.jsonl.
        config: of the training.
        folder: of the run, for the way out.

    >>> config = TrainConfig(steps=100)
    >>> losses = [{"step": 10 * n, "valid_loss": 5 - 0.4 * n} for n in range(1, 11)]
    >>> curve_warnings(losses, config, "runs/a")[0].partition(";")[0]
    'loss was still getting better at step 100: 1.8 at step 80, 1 at the end'
    >>> losses = [{"step": 10 * n, "valid_loss": 5 + 0.4 * n} for n in range(1, 11)]
    >>> curve_warnings(losses, config, "runs/a")[0].partition(";")[0]
    'the best loss was at step 10 of 100, 5.4, and 9 at the end: it overfits'
    """
    name = config.monitor
    known = [(x["step"], x[f"valid_{name}"]) for x in metrics if f"valid_{name}" in x]
    if len(known) < MIN_EVALUATIONS:
        return []
    best, value = known[0]
    for step, other in known[1:]:
        if config.is_better(other, value):
            best, value = step, other
    last, final = known[-1]
    if best == 0:
        return [
            f"the best {name} was {value:.4g}, before the first update, and {final:.4g} at the "
            "end; try a lower --set lr=…, or regard train … --baseline-only"
        ]
    if best <= EARLY * last and final != value:
        more = f"--set steps={max(1, round(1.5 * best))}, a higher dropout or weight_decay"
        return [
            f"the best {name} was at step {best:,} of {last:,}, {value:.4g}, and {final:.4g} at "
            f"the end: it overfits; try regard train … {more}, or more data"
        ]
    before = next(x for x in reversed(known) if x[0] <= (1 - EARLY) * last or x is known[0])
    gain, whole = abs(final - before[1]), abs(final - known[0][1])
    if best == last and before[0] < last and gain > RISING * whole:
        return [
            f"{name} was still getting better at step {last:,}: {before[1]:.4g} at step "
            f"{before[0]:,}, {final:.4g} at the end; try regard resume {folder} --set "
            f"steps={2 * last}"
        ]
    return []


POST_STEPS: dict[str, Callable[[Training], object]] = {
    "weights": lambda x: models.save(x.trainer.model, x.folder),
    "calibrate": _calibrate,
    "evaluate": _evaluate,
    "result": _write_result,
    "card": lambda x: write_text(x.folder / CARD_FILE, model_card(x.facts)),
    "report": lambda x: write_text(x.folder / REPORT_FILE, render_page(x.facts)),
}
REQUIRED = ("weights", "result")  # without them a run is not finished
