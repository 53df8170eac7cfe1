"""Evaluation of a run on held-out data, with its mistakes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import nn

from regard.errors import ConfigError
from regard.runs.contents import Device, RunContents, require_verb
from regard.runs.text_model import model_on
from regard.tasks import EvalSplit, TranslationEvaluator
from regard.train import Gradable, calibration_metrics
from regard.train.evaluation import run_evaluation


class Mistake(NamedTuple):
    """A source with its reference and a prediction that differs from it.

    >>> Mistake("de: two days", "zwei Tage", "zwei Tag").prediction
    'zwei Tag'
    """

    source: str
    reference: str
    prediction: str


class Evaluation(NamedTuple):
    """Scores of a run on a split, its mistakes (of text output), the quality of its confidence.

    >>> Evaluation("test", {"exact": 1.0}, []).scores["exact"]
    1.0
    """

    split: EvalSplit
    scores: dict[str, Any]
    mistakes: list[Mistake]
    confidence: dict[str, float] = {}


@runtime_checkable
class AnswerEvaluator(Protocol):
    """An evaluator whose predictions, texts or printable, can be compared one by one.

    >>> run = rg.load("phrases", device="cpu")
    >>> isinstance(run.data.evaluator(run.tokenizer, "valid"), AnswerEvaluator)
    True
    """

    @property
    def sources(self) -> list[str]: ...

    @property
    def references(self) -> list[Any]: ...

    def predict(self, model: nn.Module) -> list[Any]: ...

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
    evaluator = run.data.evaluator(run.tokenizer, split)
    if beam_width is not None:
        if not isinstance(evaluator, TranslationEvaluator):
            kind = type(run.model).__name__
            raise ConfigError(f"beam_width: needs a run with a beam search, got one of a {kind}")
        evaluator.search = replace(evaluator.search, beam_width=beam_width)
    model = model_on(run.model, device)
    confidence = _confidence(run, model, evaluator)
    if not isinstance(evaluator, AnswerEvaluator):
        return Evaluation(split, run_evaluation(model, evaluator), [], confidence)
    answers: list[Any] = []

    def predict_and_score(model: nn.Module) -> dict[str, Any]:
        answers.extend(evaluator.predict(model))
        return evaluator.score(model, answers)

    scores = run_evaluation(model, predict_and_score)
    rows = zip(evaluator.sources, evaluator.references, answers, strict=True)
    mistakes = [Mistake(*map(str, row)) for row in rows if row[1] != row[2]]
    return Evaluation(split, scores, mistakes, confidence)


def _confidence(run: RunContents, model: nn.Module, evaluator: object) -> dict[str, float]:
    if run.calibration is None or not isinstance(evaluator, Gradable):
        return {}
    return calibration_metrics(run_evaluation(model, evaluator.grade), run.calibration)
