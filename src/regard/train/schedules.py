"""Learning-rate schedules: warmup, then constant, inverse square root or cosine decay."""

import math
from typing import Literal

from regard.errors import ConfigError

Schedule = Literal["inverse_sqrt", "cosine", "constant"]


def lr_factor(
    step: int,
    *,
    schedule: Schedule = "cosine",
    warmup: int,
    steps: int,
    min_lr_fraction: float = 0.0,
) -> float:
    """The learning rate of update `step`, as a fraction of the peak.

    step / warmup during the warmup; then 1, √(warmup / step), or
    m + (1 - m) (1 + cos(π (step - warmup) / (steps - warmup))) / 2 with m = min_lr_fraction

    Args:
        step: number of the update; the first is 1.
        schedule: shape of the decay.
        warmup: updates of linear warmup.
        steps: updates in all.
        min_lr_fraction: where the cosine ends.

    >>> [lr_factor(step, warmup=2, steps=6) for step in (1, 2, 4, 6)]
    [0.5, 1.0, 0.5, 0.0]
    >>> lr_factor(16, schedule="inverse_sqrt", warmup=4, steps=100)
    0.5
    """
    if step < 1:
        raise ConfigError(f"step: needs 1 or more, the first update is 1, got {step}")
    if step < warmup:
        return step / warmup
    match schedule:
        case "constant":
            return 1.0
        case "inverse_sqrt":
            return math.sqrt(max(1, warmup) / step)
        case "cosine":
            done = min(1.0, (step - warmup) / max(1, steps - warmup))
            return min_lr_fraction + (1 - min_lr_fraction) * (1 + math.cos(math.pi * done)) / 2
        case other:
            raise ConfigError(f"schedule: needs inverse_sqrt, cosine or constant, got {other!r}")
