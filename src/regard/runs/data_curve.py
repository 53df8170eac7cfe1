"""The curve of a score against the amount of data: whether collecting more is worth it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.errors import ConfigError
from regard.runs.contents import build_model
from regard.tasks import Recipe
from regard.train import Trainer, objective
from regard.train.config import MINIMISED
from regard.train.evaluation import run_evaluation
from regard.train.metrics import Tally, Tallying, bootstrap_intervals

MIN_ERROR = 1e-4  # whose logarithm is finite
SHARES = {0.25: "a quarter of the train split", 0.5: "half", 1.0: "all"}


class DataCurve(NamedTuple):
    """Scores on the test split after shares of the train split, and what twice the data may bring.

    `gain` is positive for a better score, `interval` its 95% interval; None for too few examples.

    >>> print(DataCurve("accuracy", "linear model", [0.7, 0.75, 0.8], 0.037, (0.01, 0.06)))
    linear model: accuracy 0.700 with a quarter of the train split, 0.750 with half, 0.800 with all
    twice the data: about +3.7 points of accuracy (+1.0 to +6.0)
    """

    score: str
    name: str
    values: Sequence[float]
    gain: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        pairs = zip(self.values, SHARES.values(), strict=True)
        shown = ", ".join(f"{value:.3f} with {share}" for value, share in pairs)
        return f"{self.name}: {self.score} {shown}\n{self.verdict}"

    @property
    def verdict(self) -> str:
        """What twice the data may bring, in a line."""
        top, unit = _top(self.score), f"points of {self.score}"
        scale = 100 / top if top else -1.0  # of errors: fewer is better
        unit = unit if top else self.score
        number = "{:+.1f}".format if top else "{:+.3g}".format
        if self.interval is None:
            return "twice the data: too few test examples to say what it brings"
        edges = " to ".join(number(x) for x in sorted(scale * x for x in self.interval))
        if self.interval[0] <= 0:
            return f"twice the data: no gain is visible ({edges} {unit})"
        return f"twice the data: about {number(scale * self.gain)} {unit} ({edges})"


def data_curve(recipe: Recipe, *, train_model: bool = False, show: bool = False) -> DataCurve:
    """The curve of a recipe's baseline, or of its model, over shares of the train split.

    error(n) = c n^-α, fitted to a quarter, a half and all of the examples; the gain is
    error(n) - error(2 n). Its interval is by the bootstrap over test examples, with the distance of
    the three points from the power law as noise.

    Args:
        recipe: of data with a baseline.
        train_model: train the model of the recipe three times instead.
        show: print the progress of these trainings.

    >>> data_curve(rg.tasks.recipe("glyphs"))
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: task: needs one of own data for a curve, got glyphs
    """
    seed, task = recipe.train.seed, recipe.data.fit(recipe.train.seed)
    parts = [part for share in SHARES if (part := task.with_share(share)) is not None]
    if not parts:
        raise ConfigError(f"task: needs one of own data for a curve, got {task.name}")
    if train_model:
        name, tallies = "model", [_train(replace(recipe, data=x), show) for x in parts]
    else:
        evaluator: Any = task.evaluator(task.tokenizer(seed), "test")
        answers = [answer for part in parts if (answer := part.baseline("test")) is not None]
        if not isinstance(evaluator, Tallying) or not answers:
            raise ConfigError(f"task: needs one with a baseline for a curve, got {task.name}")
        name, last = answers[-1]
        if isinstance(last, list) and len({str(answer) for answer in last}) == 1:
            raise ConfigError(
                f"task: needs a baseline that learns for a curve, got {name}; try regard data "
                "… --curve --model"
            )
        tallies = [evaluator.tally(answer) for _, answer in answers]
    return fit_curve(name, tallies, recipe.train.monitor)


def fit_curve(name: str, tallies: Sequence[Tally], monitor: str) -> DataCurve:
    """The curve of statistics of the same test examples after the shares of the train split."""
    names = [x for x in tallies[-1].scores() if x != "loss"]
    score = monitor if monitor in names else names[0]
    width, values = tallies[0].rows.shape[1], [x.scores()[score] for x in tallies]
    both = torch.cat([tally.rows.double() for tally in tallies], 1)
    rng, logs = np.random.default_rng(0), _log_errors(values, score)
    # the standard deviation of a logarithm from the line through three of them
    misfit = abs(logs[0] - 2 * logs[1] + logs[2]) / math.sqrt(6)

    def gain(sums: list[float]) -> dict[str, float]:
        parts = [sums[n * width : (n + 1) * width] for n in range(len(tallies))]
        drawn = [tallies[0].score(part)[score] for part in parts]
        return {"gain": expected_gain(drawn, score, misfit * rng.normal(size=len(drawn)))}

    interval = bootstrap_intervals(Tally(both, gain), is_share=False).get("gain")
    return DataCurve(score, name, values, expected_gain(values, score), interval)


def expected_gain(
    values: Sequence[float], score: str, noise: Sequence[float] | np.ndarray = (0.0, 0.0, 0.0)
) -> float:
    """The decrease of the error by twice the data, by a power law through three scores.

    Args:
        values: scores with a quarter, a half and all of the data.
        score: what they are.
        noise: added to the logarithms, to base 2, of the errors.

    >>> round(expected_gain([0.2, 0.6, 0.8], "accuracy"), 3)  # errors 0.8, 0.4, 0.2
    0.1
    >>> round(expected_gain([0.8, 0.4, 0.2], "error"), 3)
    0.1
    """
    logs = [x + y for x, y in zip(_log_errors(values, score), noise, strict=True)]
    slope = (logs[2] - logs[0]) / 2
    now = 2 ** (sum(logs) / 3 + slope)
    return now - now * 2**slope


def _log_errors(values: Sequence[float], score: str) -> list[float]:
    top = _top(score)
    return [math.log2(max(MIN_ERROR, top - x if top else x)) for x in values]


def _top(score: str) -> float:
    """The best value of a score: 0 for errors."""
    return 0.0 if score.endswith(MINIMISED) else 100.0 if "bleu" in score else 1.0


def _train(recipe: Recipe, show: bool) -> Tally:
    """The statistics of the test examples after a training without a folder."""
    data, train = recipe.data, recipe.train
    tokenizer = data.tokenizer(train.seed)
    torch.manual_seed(train.seed)
    trainer = Trainer(
        build_model(recipe, tokenizer), objective(data.objective), data.batches(tokenizer, train),
        train, evaluate=data.evaluator(tokenizer, "valid"), show=show, unit=data.unit,
    )  # fmt: skip
    if trainer.run().signal is not None:
        raise KeyboardInterrupt
    evaluator: Any = data.evaluator(tokenizer, "test")
    return evaluator.tally(run_evaluation(trainer.model, evaluator.predict))
