"""One loop for every model: schedules, checkpoints, exact resume, runs on disk."""

from regard.train.checkpoint import (
    Checkpoint,
    average,
    checkpoints,
    fill,
    last_good,
    load_checkpoint,
    save_checkpoint,
    weights_of,
)
from regard.train.config import TrainConfig
from regard.train.interrupts import interrupts
from regard.train.loop import Outcome, Trainer, read_metrics
from regard.train.loss import Objective, objective, smoothed_cross_entropy
from regard.train.progress import Progress
from regard.train.schedules import rate_at

__all__ = [
    "Checkpoint",
    "Objective",
    "Outcome",
    "Progress",
    "TrainConfig",
    "Trainer",
    "average",
    "checkpoints",
    "fill",
    "interrupts",
    "last_good",
    "load_checkpoint",
    "objective",
    "rate_at",
    "read_metrics",
    "save_checkpoint",
    "smoothed_cross_entropy",
    "weights_of",
]
