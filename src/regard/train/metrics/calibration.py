"""Calibrated confidence: the probability that an answer is right, and when to warn about it."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from regard.errors import FileError, ShapeError
from regard.files import parse_json, write_text

CALIBRATION_FILE = "calibration.json"
KEEP = 0.95  # the threshold may warn about one right answer in twenty, not more
LOWEST = -1e4  # stands for -inf, the score of an answer that the model holds impossible
STEPS = 50  # of Newton's method; it converges in about ten


class GradedAnswer(NamedTuple):
    """An answer on held-out data: its raw score, and whether it was right.

    The answer to an input that has none, such as noise, is graded as not right.

    >>> GradedAnswer(score=-0.1, correct=True).correct
    True
    """

    score: float
    correct: bool


@runtime_checkable
class Gradable(Protocol):
    """Scores of a held-out split that can also grade every single answer, for calibration.

    >>> pairs = rg.data.InMemorySource(valid=[rg.data.Pair("two", "zwei", "de")])
    >>> words = rg.data.ByteTokenizer(languages=("de",))
    >>> isinstance(rg.train.TranslationEvaluator(pairs, words, split="valid"), Gradable)
    True
    """

    def grade(self, model: nn.Module) -> list[GradedAnswer]:
        """Every answer of the split, and of inputs that have no right answer."""
        ...


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Platt scaling of a raw score, and the confidence below which to warn.

    confidence = 1 / (1 + exp(-(slope · score + offset)))

    >>> sure = Calibration(slope=1.0, offset=0.0, threshold=0.5, examples=2)
    >>> sure.confidence(0.0), sure.is_unsure(-1.0)
    (0.5, True)
    """

    slope: float
    offset: float
    threshold: float
    examples: int  # held-out answers that it was fitted on

    def confidence(self, score: float) -> float:
        """The probability that an answer of this raw score is right."""
        logit = self.slope * max(LOWEST, score) + self.offset
        return float(torch.tensor(logit, dtype=torch.float64).sigmoid())

    def is_unsure(self, score: float) -> bool:
        """Whether the answer deserves a warning."""
        return self.confidence(score) < self.threshold


def calibrate(answers: Sequence[GradedAnswer]) -> Calibration:
    """Fit Platt scaling on held-out answers, and choose the threshold on the same ones.

    The targets are Platt's smoothed ones, (N₊ + 1) / (N₊ + 2) and 1 / (N₋ + 2), so that a split
    without a mistake does not promise certainty. The threshold flags as many wrong answers as it
    can while it keeps 95% of the right ones.

    >>> fitted = calibrate([GradedAnswer(-5.0, False), GradedAnswer(-4.0, False), GradedAnswer(-0.1, True)] * 9)
    >>> fitted.is_unsure(-4.0), fitted.is_unsure(-0.1)
    (True, False)
    """
    answers = [one for one in answers if not math.isnan(one.score)]
    if not answers:
        raise ShapeError("graded: needs 1 or more answers, got none")
    scores = torch.tensor([one.score for one in answers], dtype=torch.float64)
    scores = scores.clamp(min=LOWEST)
    right = torch.tensor([one.correct for one in answers])
    slope, offset = _platt(scores, right)
    cut = _cut(scores, right)
    threshold = float(torch.sigmoid(torch.tensor(slope * cut + offset, dtype=torch.float64)))
    if not right.any():
        threshold = 1.0  # a model that is never right deserves every warning
    return Calibration(slope=slope, offset=offset, threshold=threshold, examples=len(answers))


def _platt(scores: torch.Tensor, right: torch.Tensor) -> tuple[float, float]:
    """Logistic regression of one variable, by damped Newton steps on standardised scores."""
    good, bad = int(right.sum()), int((~right).sum())
    target = torch.where(right, (good + 1) / (good + 2), 1 / (bad + 2)).double()
    mean, std = scores.mean(), scores.std(correction=0).clamp(min=1e-6)
    x = torch.stack([(scores - mean) / std, torch.ones_like(scores)], 1)
    w = torch.zeros(2, dtype=torch.float64)
    ridge = 1e-3 * torch.eye(2, dtype=torch.float64)  # scores that separate have no finite optimum
    for _ in range(STEPS):
        p = (x @ w).sigmoid()
        gradient = x.mT @ (p - target) + ridge @ w
        hessian = (x * (p * (1 - p))[:, None]).mT @ x + ridge
        step = torch.linalg.solve(hessian, gradient)
        w = w - step * min(1.0, 1.0 / float(step.abs().max().clamp(min=1e-12)))
    slope = max(float(w[0]), 0.0) / float(std)  # a higher score is never less sure
    return slope, float(w[1]) - slope * float(mean)


def _cut(scores: torch.Tensor, right: torch.Tensor) -> float:
    """The raw score below which to warn: between the last one flagged and the first one kept."""
    if not right.any():
        return float(scores.max()) + 1.0
    kept = scores[right].sort().values
    highest = float(kept[int((1 - KEEP) * len(kept))])
    below = scores[(scores < highest) & ~right]
    if not len(below):  # no mistake to flag: what is less sure than nearly all right answers
        return float(kept[int(0.01 * len(kept))])
    worst = below.max()
    return float((worst + scores[scores > worst].min()) / 2)


def calibration_metrics(
    answers: Sequence[GradedAnswer], calibration: Calibration
) -> dict[str, float]:
    """How well confidence does on graded answers, of which it has seen none.

    `ece` is the expected calibration error over ten equal bins (Guo et al. 2017),
    Σ_b n_b/n · |right_b - confidence_b|; `auroc` is the probability that a right answer has a
    higher confidence than a wrong one; the other two are the shares of wrong and of right answers
    below the threshold.

    >>> fitted = Calibration(slope=1.0, offset=0.0, threshold=0.5, examples=9)
    >>> calibration_metrics([GradedAnswer(-4.0, False), GradedAnswer(4.0, True)], fitted)
    {'ece': 0.018, 'auroc': 1.0, 'wrong_flagged': 1.0, 'right_flagged': 0.0}
    """
    sure = torch.tensor([calibration.confidence(one.score) for one in answers]).double()
    right = torch.tensor([one.correct for one in answers])
    unsure = sure < calibration.threshold
    bins = (10 * sure).long().clamp(max=9)
    ece = sum(float((right.double() - sure)[bins == b].sum().abs()) for b in range(10))
    good, bad = sure[right], sure[~right]
    above = (good[:, None] > bad).double() + 0.5 * (good[:, None] == bad).double()
    values = {"ece": ece / max(1, len(answers)), "auroc": float(above.mean())}
    values |= {"wrong_flagged": float(unsure[~right].double().mean())}
    values |= {"right_flagged": float(unsure[right].double().mean())}
    return {name: round(value, 4) for name, value in values.items() if not math.isnan(value)}


def save_calibration(folder: str | Path, calibration: Calibration) -> None:
    """Write a run's calibration beside its weights.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save_calibration(folder, Calibration(slope=1.0, offset=0.0, threshold=0.5, examples=9))
    >>> load_calibration(folder).threshold
    0.5
    """
    write_text(Path(folder) / CALIBRATION_FILE, json.dumps(asdict(calibration), indent=1) + "\n")


def load_calibration(folder: str | Path) -> Calibration | None:
    """A run's calibration; None where the run has none.

    >>> load_calibration("nowhere") is None
    True
    """
    file = Path(folder) / CALIBRATION_FILE
    if not file.is_file():
        return None
    try:
        values: dict[str, Any] = parse_json(file.read_text(encoding="utf-8"))
        examples = int(values.pop("examples"))
        numbers = {name: float(value) for name, value in values.items()}
        if not all(map(math.isfinite, numbers.values())):
            raise ValueError("a number that is not finite")
        return Calibration(**numbers, examples=examples)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise FileError(f"{file}: needs a calibration, got a damaged one, {error}") from error
