"""Evaluation of a run on held-out data, with its mistakes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import nn

from regard.errors import ConfigError
from regard.runs.contents import RunContents
from regard.tasks import EvalSplit
from regard.tasks.pipeline import Device, model_on, require_verb
from regard.train import Calibration, Gradable, calibration_metrics
from regard.train.evaluation import run_evaluation
from regard.train.metrics import IsCorrect, Tally, Tallying, bootstrap_intervals

UNCALIBRATED = Calibration(slope=1.0, offset=0.0, threshold=0.0, examples=0)


class EvaluatedAnswer(NamedTuple):
    """A prediction with source and reference; `confidence` is its probability of being correct."""

    source: str
    reference: Any
    prediction: Any
    is_correct: bool
    confidence: float | None = None


class Evaluation(NamedTuple):
    """Scores of a run on a split, its answers, the quality of its confidence, 95% intervals.

    `answers` are those to all examples, where the task has single ones; `intervals` are (low, high)
    of the scores that are computed from statistics of single examples, or of windows of a text.

    >>> Evaluation("test", {"exact": 1.0}, []).mistakes
    []
    """

    split: EvalSplit
    scores: dict[str, Any]
    answers: list[EvaluatedAnswer]
    confidence: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    tally: Tally | None = None  # of the intervals

    @property
    def mistakes(self) -> list[EvaluatedAnswer]:
        """The answers that are not correct, by `Task.is_correct`."""
        return [answer for answer in self.answers if not answer.is_correct]


@runtime_checkable
class AnswerEvaluator(Protocol):
    """An evaluator whose predictions, texts or printable, can be compared one by one.

    >>> run = rg.load("phrases", device="cpu")
    >>> isinstance(run.data.evaluator(run.tokenizer, "valid"), AnswerEvaluator)
    True
    """

    @property
    def sources(self) -> list[str]: ...  # what each example is, for people
    @property
    def references(self) -> list[Any]: ...
    def predict(self, model: nn.Module) -> list[Any]: ...  # the answer to each example
    def score(self, model: nn.Module, answers: Sequence[Any]) -> dict[str, Any]: ...


def evaluate_run(
    run: RunContents,
    split: EvalSplit = "test",
    *,
    beam_width: int | None = None,
    device: Device | None = None,
) -> Evaluation:
    """Scores of a run on the valid or test split of its data.

    Args:
        run: the run to evaluate.
        split: "valid" or "test".
        beam_width: of the beam search; None takes the recipe's.
        device: where to evaluate, on a copy of the model; None is where the model is.

    >>> run = rg.load("phrases", device="cpu")
    >>> small = rg.runs.override_settings(run.recipe, ["valid_size=3"])
    >>> evaluate_run(replace(run, recipe=small), "valid").scores["exact"]
    1.0
    """
    require_verb(run, "evaluate")
    if split not in ("valid", "test"):
        raise ConfigError(f"split: needs one of valid, test, got {split!r}")
    evaluator: Any = run.data.evaluator(run.tokenizer, split)
    if beam_width is not None:
        if not hasattr(evaluator, "search"):
            kind = type(run.model).__name__
            raise ConfigError(f"beam_width: needs a run with a beam search, got one of a {kind}")
        evaluator.search = replace(evaluator.search, beam_width=beam_width)
    model = model_on(run.model, device)
    is_correct = run.data.is_correct
    result = evaluate_model(model, evaluator, split, is_correct, run.calibration)
    if run.calibration is None or not isinstance(evaluator, Gradable):
        return result
    graded = run_evaluation(model, partial(evaluator.grade, is_correct=is_correct))
    confidence = calibration_metrics(graded, run.calibration) if graded else {}
    return result._replace(confidence=confidence)


def evaluate_model(
    model: nn.Module,
    evaluator: Any,
    split: EvalSplit,
    is_correct: IsCorrect,
    calibration: Calibration | None = None,
) -> Evaluation:
    """Scores, answers with their confidence, and intervals, in one pass over the examples.

    >>> images, labels = torch.zeros(2, 1, 1, 2, dtype=torch.uint8), torch.tensor([0, 1])
    >>> evaluator = rg.tasks.ClassificationEvaluator(images, labels, ["cat", "dog"])
    >>> evaluate_model(torch.nn.Flatten(), evaluator, "test", str.__eq__).answers[1].prediction
    'cat'
    """
    if not isinstance(evaluator, AnswerEvaluator):
        if not isinstance(evaluator, Tallying):
            return Evaluation(split, run_evaluation(model, evaluator), [])
        tally = evaluator.tally(run_evaluation(model, evaluator.predict))
        return Evaluation(split, tally.scores(), [], {}, bootstrap_intervals(tally), tally)
    predictor: Any = evaluator

    def predict_and_score(model: nn.Module) -> tuple[list[Any], list[Any], dict[str, Any]]:
        if hasattr(predictor, "predict_scored"):
            scored = predictor.predict_scored(model)
            answers, raw = [answer for answer, _ in scored], [score for _, score in scored]
        else:
            answers = predictor.predict(model)
            raw = [None] * len(answers)
        return answers, raw, predictor.score(model, answers)

    answers, raw, scores = run_evaluation(model, predict_and_score)
    if calibration is None and not isinstance(evaluator, Gradable):
        calibration = UNCALIBRATED  # log-odds of a class are probabilities; other scores are none
    sure = [None if x is None or not calibration else calibration.confidence(x) for x in raw]
    rows = zip(evaluator.sources, evaluator.references, answers, sure, strict=True)
    results = [EvaluatedAnswer(a, b, c, is_correct(c, b), sure) for a, b, c, sure in rows]
    tally = predictor.tally(answers) if isinstance(predictor, Tallying) else None
    intervals = {} if tally is None else bootstrap_intervals(tally)
    return Evaluation(split, scores, results, intervals=intervals, tally=tally)
