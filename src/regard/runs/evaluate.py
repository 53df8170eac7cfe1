"""A run scored again: on either part, with another search, with what it got wrong."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from regard.errors import ConfigError
from regard.runs.run import Run
from regard.tasks.recipe import EvalSplit
from regard.tasks.translation.evaluator import TranslationEvaluator
from regard.train.evaluation import run_evaluation
from regard.train.metrics.calibration import Gradable, calibration_metrics


class Mistake(NamedTuple):
    """What was asked, what is right, and what the model said.

    >>> Mistake("de: two days", "zwei Tage", "zwei Tag").prediction
    'zwei Tag'
    """

    source: str
    reference: str
    prediction: str


class Evaluation(NamedTuple):
    """The scores of a run on a part, and its mistakes in order, where it gives answers.

    `confidence` is how well the calibrated confidence does there, where the run has one.

    >>> Evaluation("test", {"exact": 1.0}, []).scores["exact"]
    1.0
    """

    split: EvalSplit
    scores: dict[str, Any]
    mistakes: list[Mistake]
    confidence: dict[str, float] = {}


@runtime_checkable
class AnswerEvaluator(Protocol):
    """Scores of answers in words, which can be shown one by one.

    >>> pairs = rg.data.InMemorySource(valid=[rg.data.Pair("two", "zwei", "de")])
    >>> words = rg.data.ByteTokenizer(languages=("de",))
    >>> isinstance(rg.tasks.TranslationEvaluator(pairs, words, split="valid"), AnswerEvaluator)
    True
    """

    @property
    def sources(self) -> list[str]: ...

    @property
    def references(self) -> list[str]: ...

    def predict(self, model: nn.Module) -> list[str]: ...

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]: ...


def evaluate_run(
    run: Run, split: EvalSplit = "test", *, beam_width: int | None = None
) -> Evaluation:
    """The scores of a run on a part of its data, as when it ended, or with a beam of `width`.

    >>> import tempfile
    >>> small = ["steps=2", "vocab_texts=99", "valid_size=2", "test_size=2", "max_new_tokens=5"]
    >>> small += ["dim=16", "device=cpu"]
    >>> recipe = rg.runs.override_settings(rg.tasks.recipe("phrases"), small)
    >>> folder = tempfile.mkdtemp()
    >>> scores = rg.runs.start_run(recipe, folder).scores
    >>> evaluate_run(rg.runs.load_run(folder)).scores == scores
    True
    """
    scorer = run.recipe.data.evaluator(run.tokenizer, split)
    if beam_width is not None:
        if not isinstance(scorer, TranslationEvaluator):
            kind = type(run.model).__name__
            raise ConfigError(f"width: needs a run that searches for words, got one of a {kind}")
        if beam_width < 1:
            raise ConfigError(f"width: needs 1 or more, got {beam_width}")
        scorer.search = replace(scorer.search, beam_width=beam_width)
    model = run.model.to("cuda" if torch.cuda.is_available() else "cpu")
    sure = _confidence(run, model, scorer)
    if not isinstance(scorer, AnswerEvaluator):
        return Evaluation(split, run_evaluation(model, scorer), [], sure)
    answers: list[str] = []

    def judged(model: nn.Module) -> dict[str, Any]:
        answers.extend(scorer.predict(model))
        return scorer.score(model, answers)

    scores = run_evaluation(model, judged)
    both = zip(scorer.sources, scorer.references, answers, strict=True)
    return Evaluation(split, scores, [Mistake(*one) for one in both if one[1] != one[2]], sure)


def _confidence(run: Run, model: nn.Module, scorer: object) -> dict[str, float]:
    if run.calibration is None or not isinstance(scorer, Gradable):
        return {}
    return calibration_metrics(run_evaluation(model, scorer.grade), run.calibration)
