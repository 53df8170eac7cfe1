"""Confidence intervals of scores by the bootstrap over the examples of a split."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

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
    """An evaluator whose scores can be computed from statistics of single examples.

    >>> images, labels = torch.zeros(1, 1, 1, 1, dtype=torch.uint8), torch.tensor([0])
    >>> isinstance(rg.tasks.ClassificationEvaluator(images, labels), Tallying)
    True
    """

    def predict(self, model: nn.Module) -> list:
        """The answers of a model to all examples of the split."""
        ...

    def tally(self, answers: list) -> Tally:
        """The statistics of answers to all examples of the split."""
        ...


def bootstrap_intervals(
    tally: Tally,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
    is_share: bool = True,
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of the scores, over examples drawn with replacement (Efron 1979).

    Where every resample scores 0 or every one 1, such as without any mistake, the interval is that
    of the rule of three, 3 / count wide.

    Args:
        tally: statistics of the examples.
        resamples: splits of the same size that are drawn.
        level: of the interval.
        seed: of the draws.
        is_share: whether scores are shares, from 0 to 1, and not such as differences.

    >>> answers = Tally(torch.ones(50, 1).cumsum(0) % 2, lambda x: {"accuracy": x[0] / 50})
    >>> low, high = bootstrap_intervals(answers)["accuracy"]
    >>> 0.33 < low < 0.42 and 0.58 < high < 0.67  # 0.5 ± 1.96 √(0.25 / 50)
    True
    """
    count, rng = len(tally.rows), np.random.default_rng(seed)
    if count < 2:
        return {}
    rows = tally.rows.double().numpy()
    chunk, sums = max(1, ROWS_PER_CHUNK // count), []
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        # how often each example is drawn
        weights = rng.multinomial(count, np.full(count, 1 / count), size=size)
        sums.append(weights @ rows)
    drawn = [tally.score(row) for row in np.concatenate(sums).tolist()]
    edges = (50 - 50 * level, 50 + 50 * level)
    intervals = {name: np.percentile([x[name] for x in drawn], edges) for name in drawn[0]}
    pairs = {name: (float(low), float(high)) for name, (low, high) in intervals.items()}
    return {name: _widen(*x, count) for name, x in pairs.items()} if is_share else pairs


def _widen(low: float, high: float, count: int) -> tuple[float, float]:
    if low == high == 0.0:
        return 0.0, min(1.0, 3 / count)
    return (max(0.0, 1 - 3 / count), 1.0) if low == high == 1.0 else (low, high)
