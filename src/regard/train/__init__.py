"""Training: one loop for every model, losses, checkpoints, distributed ranks and calibration."""

from regard.train.checkpoint import (
    Checkpoint,
    average_checkpoints,
    list_checkpoints,
    load_checkpoint,
    load_last_valid,
    save_checkpoint,
)
from regard.train.config import TrainConfig, lr_factor
from regard.train.distributed import Ranks, init_distributed, shutdown_distributed
from regard.train.evaluation import mean_loss, score_texts
from regard.train.loop import Outcome, Trainer
from regard.train.losses import (
    ModelOutputs,
    Objective,
    label_smoothed_cross_entropy,
    make_objective,
    objective,
    register_objective,
    symmetric_kl,
)
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
from regard.train.signals import defer_signals
from regard.train.weights import copy_weights, load_weights

__all__ = [
    "Calibration",
    "Checkpoint",
    "Gradable",
    "GradedAnswer",
    "ModelOutputs",
    "Objective",
    "Outcome",
    "Progress",
    "Ranks",
    "TrainConfig",
    "Trainer",
    "average_checkpoints",
    "calibrate",
    "calibration_metrics",
    "copy_weights",
    "defer_signals",
    "init_distributed",
    "label_smoothed_cross_entropy",
    "list_checkpoints",
    "load_calibration",
    "load_checkpoint",
    "load_last_valid",
    "load_weights",
    "lr_factor",
    "make_objective",
    "mean_loss",
    "objective",
    "read_metrics",
    "register_objective",
    "save_calibration",
    "save_checkpoint",
    "score_texts",
    "shutdown_distributed",
    "symmetric_kl",
]
