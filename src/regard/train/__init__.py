"""One loop for every model: schedules, checkpoints, exact resume, runs on disk."""

from regard.train.checkpoint.store import (
    Checkpoint,
    average_checkpoints,
    copy_weights,
    list_checkpoints,
    load_checkpoint,
    load_last_valid,
    load_weights,
    save_checkpoint,
)
from regard.train.config import TrainConfig
from regard.train.distributed.ranks import Ranks, init_distributed, shutdown_distributed
from regard.train.loop import Outcome, Trainer
from regard.train.losses import Objective, label_smoothed_cross_entropy, objective, symmetric_kl
from regard.train.metrics.calibration import (
    Calibration,
    Gradable,
    GradedAnswer,
    calibrate,
    calibration_metrics,
    load_calibration,
    save_calibration,
)
from regard.train.metrics.log import read_metrics
from regard.train.progress import Progress
from regard.train.schedules import lr_factor
from regard.train.signals import defer_signals

__all__ = [
    "Calibration",
    "Checkpoint",
    "Gradable",
    "GradedAnswer",
    "Objective",
    "Outcome",
    "Progress",
    "Ranks",
    "TrainConfig",
    "Trainer",
    "average_checkpoints",
    "calibrate",
    "list_checkpoints",
    "symmetric_kl",
    "load_weights",
    "defer_signals",
    "init_distributed",
    "load_last_valid",
    "shutdown_distributed",
    "load_calibration",
    "load_checkpoint",
    "objective",
    "lr_factor",
    "read_metrics",
    "calibration_metrics",
    "save_calibration",
    "save_checkpoint",
    "label_smoothed_cross_entropy",
    "copy_weights",
]
