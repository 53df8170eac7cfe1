"""Warnings about the curve of a training: it overfitted, or it was still getting better."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.train.config import TrainConfig

EARLY = 0.2  # of the steps: a best evaluation before it
RISING = 0.1  # of the gain since the first evaluation, in the last fifth of the steps
MIN_EVALUATIONS = 4


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
