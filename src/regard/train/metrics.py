"""Metrics: bootstrap intervals, calibrated confidence, and the log of a training."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError, FileError, ShapeError
from regard.files import parse_json, write_text

RESAMPLES, LEVEL = 1000, 0.95
ROWS_PER_CHUNK = 4_000_000  # weights of examples that are held at once


class Tally(NamedTuple):
    """Statistics of each example of a split, and the scores that follow from their sums.

    Such as edits and reference length: the error rate of a split is the ratio of the sums.

    >>> edits = Tally(torch.tensor([[1.0, 4.0], [0.0, 6.0]]), lambda x: {"error": x[0] / x[1]})
    >>> edits.scores()
    {'error': 0.1}
    """

    rows: Float[Tensor, "example statistic"]
    score: Callable[[list[float]], dict[str, float]]

    def scores(self) -> dict[str, float]:
        """The scores of all examples."""
        return self.score(self.rows.double().sum(0).tolist())


@runtime_checkable
class Tallying(Protocol):
    """An evaluator whose scores can be computed from statistics of single examples."""

    def predict(self, model: nn.Module) -> list:
        """The answers of a model to all examples of the split."""
        ...

    def tally(self, answers: list) -> Tally:
        """The statistics of answers to all examples of the split."""
        ...


def bootstrap_intervals(tally: Tally, *, is_share: bool = True) -> dict[str, tuple[float, float]]:
    """95% percentile intervals of the scores, over examples drawn with replacement (Efron 1979).

    Where every resample scores 0 or every one 1, such as without any mistake, the interval is that
    of the rule of three, 3 / count wide; not where `is_share` is False, such as for differences.

    >>> answers = Tally(torch.ones(50, 1).cumsum(0) % 2, lambda x: {"accuracy": x[0] / 50})
    >>> low, high = bootstrap_intervals(answers)["accuracy"]
    >>> 0.33 < low < 0.42 and 0.58 < high < 0.67  # 0.5 ± 1.96 √(0.25 / 50)
    True
    """
    count, rng = len(tally.rows), np.random.default_rng(0)
    if count < 2:
        return {}
    rows = tally.rows.double().numpy()
    chunk, sums = max(1, ROWS_PER_CHUNK // count), []
    for start in range(0, RESAMPLES, chunk):
        size = min(chunk, RESAMPLES - start)
        # how often each example is drawn
        weights = rng.multinomial(count, np.full(count, 1 / count), size=size)
        sums.append(weights @ rows)
    drawn = [tally.score(row) for row in np.concatenate(sums).tolist()]
    edges = (50 - 50 * LEVEL, 50 + 50 * LEVEL)
    intervals = {name: np.percentile([x[name] for x in drawn], edges) for name in drawn[0]}
    pairs = {name: (float(low), float(high)) for name, (low, high) in intervals.items()}
    return {name: _widen(*x, count) for name, x in pairs.items()} if is_share else pairs


def _widen(low: float, high: float, count: int) -> tuple[float, float]:
    if low == high == 0.0:
        return 0.0, min(1.0, 3 / count)
    return (max(0.0, 1 - 3 / count), 1.0) if low == high == 1.0 else (low, high)


METRICS_FILE = "metrics.jsonl"


def append_metrics(folder: Path, line: dict[str, Any]) -> None:
    """Append one line to a run's metrics.jsonl."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / METRICS_FILE, "a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
    except OSError as error:
        file = folder / METRICS_FILE
        raise FileError(f"{file}: cannot be written, {error.strerror or error}") from error


def truncate_metrics(folder: Path, step: int) -> None:
    """Drop the lines after update `step`, which a resumed run writes again, and invalid lines."""
    lines = [line for line in read_metrics(folder) if line["step"] <= step]
    if (folder / METRICS_FILE).exists():
        write_text(folder / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in lines))


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; invalid ones, such as one cut by a crash, are skipped.

    >>> read_metrics("nowhere")
    []
    """
    file = Path(folder) / METRICS_FILE
    try:
        texts = file.read_text(encoding="utf-8", errors="replace").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise FileError(f"{file}: cannot be read, {error.strerror or error}") from error
    lines = []
    for text in texts:
        try:
            line = parse_json(text)
        except ValueError:
            continue
        if isinstance(line, dict) and all(_is_number(line.get(n)) for n in ("step", "seconds")):
            lines.append(line)
    return lines


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


TENSORBOARD_FOLDER = "tensorboard"

Logger = Callable[[dict[str, Any]], None]


def tensorboard_logger(folder: str | Path) -> Logger:
    """A logger that writes the numbers of each line of metrics as TensorBoard scalars."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "tensorboard: needs the package of that name, got none; "
            "try pip install 'regard[tensorboard]'"
        ) from error
    path = Path(folder) / TENSORBOARD_FOLDER
    try:
        writer = SummaryWriter(str(path))
    except OSError as error:
        raise FileError(f"{path}: cannot be written, {error.strerror or error}") from error

    def write(line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                tag = "valid/" + name.removeprefix("valid_") if name.startswith("valid_") else name
                writer.add_scalar(tag, value, line["step"])
        writer.flush()

    return write


CALIBRATION_FILE = "calibration.json"
KEEP = 0.95  # of the correct answers stay above the threshold
LOWEST = -1e4  # replaces -inf, the score of an answer of probability 0
STEPS = 50  # of Newton's method, which converges in about ten


class GradedAnswer(NamedTuple):
    """An answer on held-out data: its raw score, and whether it was correct.

    Any answer to an out-of-distribution input, such as noise, is graded as incorrect.
    """

    score: float
    correct: bool


IsCorrect = Callable[[Any, Any], bool]  # of an answer and its reference: `Task.is_correct`


@runtime_checkable
class Gradable(Protocol):
    """An evaluator that can also grade every single answer, for calibration.

    >>> pairs = rg.data.InMemorySource(valid=[rg.data.Pair("two", "zwei", "de")])
    >>> words = rg.data.ByteTokenizer(languages=("de",))
    >>> isinstance(rg.tasks.TranslationEvaluator(pairs, words, split="valid"), Gradable)
    True
    """

    def grade(self, model: nn.Module, is_correct: IsCorrect) -> list[GradedAnswer]:
        """Graded answers of the split and to out-of-distribution inputs."""
        ...


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Platt scaling of a raw score, and the confidence threshold below which to warn.

    confidence = 1 / (1 + exp(-(slope · score + offset)))

    >>> calibration = Calibration(slope=1.0, offset=0.0, threshold=0.5, examples=2)
    >>> calibration.confidence(0.0), calibration.is_unsure(-1.0)
    (0.5, True)
    """

    slope: float
    offset: float
    threshold: float
    examples: int  # graded answers it was fitted on

    def confidence(self, score: float) -> float:
        """The probability that an answer of this raw score is correct."""
        return _sigmoid(self.slope * max(LOWEST, score) + self.offset)

    def is_unsure(self, score: float) -> bool:
        """Whether the confidence is below the threshold."""
        return self.confidence(score) < self.threshold


def calibrate(answers: Sequence[GradedAnswer]) -> Calibration:
    """Fit Platt scaling and the threshold on graded answers.

    The targets are Platt's smoothed ones, (N₊ + 1) / (N₊ + 2) and 1 / (N₋ + 2), so that a split
    without mistakes does not yield certainty. The threshold flags as many incorrect answers as it
    can while at most 5% of the correct ones are flagged.

    >>> graded = [GradedAnswer(-5.0, False), GradedAnswer(-4.0, False), GradedAnswer(-0.1, True)]
    >>> calibration = calibrate(graded * 9)
    >>> calibration.is_unsure(-4.0), calibration.is_unsure(-0.1)
    (True, False)
    """
    answers = [answer for answer in answers if not math.isnan(answer.score)]
    if not answers:
        raise ShapeError("answers: needs 1 or more answers, got none")
    scores = torch.tensor([answer.score for answer in answers], dtype=torch.float64)
    scores = scores.clamp(min=LOWEST)
    correct = torch.tensor([answer.correct for answer in answers])
    slope, offset = _fit_platt(scores, correct)
    threshold = 1.0  # a model that is never correct: warn always
    if correct.any():
        threshold = _sigmoid(slope * _score_threshold(scores, correct) + offset)
    return Calibration(slope=slope, offset=offset, threshold=threshold, examples=len(answers))


def _sigmoid(logit: float) -> float:
    return float(torch.tensor(logit, dtype=torch.float64).sigmoid())


def _fit_platt(scores: Tensor, correct: Tensor) -> tuple[float, float]:
    """Logistic regression of one variable, by damped Newton steps on standardised scores."""
    good, bad = int(correct.sum()), int((~correct).sum())
    target = torch.where(correct, (good + 1) / (good + 2), 1 / (bad + 2)).double()
    mean, std = scores.mean(), scores.std(correction=0).clamp(min=1e-6)
    x = torch.stack([(scores - mean) / std, torch.ones_like(scores)], 1)
    w = torch.zeros(2, dtype=torch.float64)
    ridge = 1e-3 * torch.eye(2, dtype=torch.float64)  # separable scores have no finite optimum
    for _ in range(STEPS):
        p = (x @ w).sigmoid()
        gradient = x.mT @ (p - target) + ridge @ w
        hessian = (x * (p * (1 - p))[:, None]).mT @ x + ridge
        step = torch.linalg.solve(hessian, gradient)
        w = w - step * min(1.0, 1.0 / float(step.abs().max().clamp(min=1e-12)))
    slope = max(float(w[0]), 0.0) / float(std)  # a higher score never lowers the confidence
    return slope, float(w[1]) - slope * float(mean)


def _score_threshold(scores: Tensor, correct: Tensor) -> float:
    """The raw score below which to warn: midway between the last flagged and the next score."""
    good = scores[correct].sort().values
    limit = float(good[int((1 - KEEP) * len(good))])
    flagged = scores[(scores < limit) & ~correct]
    if not len(flagged):  # no mistake to flag: the first percentile of the correct answers
        return float(good[int(0.01 * len(good))])
    last = flagged.max()
    return float((last + scores[scores > last].min()) / 2)


def calibration_metrics(
    answers: Sequence[GradedAnswer], calibration: Calibration
) -> dict[str, float]:
    """Quality of a calibration on answers that it was not fitted on.

    `ece` is the expected calibration error over ten equal bins (Guo et al. 2017),
    Σ_b n_b/n · |accuracy_b - confidence_b|; `auroc` is the probability that a correct answer has a
    higher confidence than an incorrect one; the other two are the fractions of incorrect and of
    correct answers below the threshold.

    >>> calibration = Calibration(slope=1.0, offset=0.0, threshold=0.5, examples=9)
    >>> calibration_metrics([GradedAnswer(-4.0, False), GradedAnswer(4.0, True)], calibration)
    {'ece': 0.018, 'auroc': 1.0, 'incorrect_flagged': 1.0, 'correct_flagged': 0.0}
    """
    confidence = torch.tensor([calibration.confidence(x.score) for x in answers]).double()
    correct = torch.tensor([answer.correct for answer in answers])
    flagged = confidence < calibration.threshold
    bins = (10 * confidence).long().clamp(max=9)
    ece = sum(float((correct.double() - confidence)[bins == b].sum().abs()) for b in range(10))
    good, bad = confidence[correct], confidence[~correct]
    above = (good[:, None] > bad).double() + 0.5 * (good[:, None] == bad).double()
    values = {"ece": ece / max(1, len(answers)), "auroc": float(above.mean())}
    values["incorrect_flagged"] = float(flagged[~correct].double().mean())
    values["correct_flagged"] = float(flagged[correct].double().mean())
    return {name: round(value, 4) for name, value in values.items() if not math.isnan(value)}


def save_calibration(folder: str | Path, calibration: Calibration) -> None:
    """Write a calibration to a run's folder.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save_calibration(folder, Calibration(slope=1.0, offset=0.0, threshold=0.5, examples=9))
    >>> load_calibration(folder).threshold
    0.5
    """
    write_text(Path(folder) / CALIBRATION_FILE, json.dumps(asdict(calibration), indent=1) + "\n")


def load_calibration(folder: str | Path) -> Calibration | None:
    """Read the calibration in a run's folder; None where there is none.

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
