"""Evaluation of a model during and after training."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

Scores = TypeVar("Scores")


def run_evaluation(model: nn.Module, evaluate: Callable[[nn.Module], Scores]) -> Scores:
    """Call `evaluate` in eval mode and without gradients; mode and random state are restored."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            return evaluate(model)
    finally:
        model.train(was_training)


def format_scores(scores: dict[str, Any]) -> str:
    """Numeric scores in one line.

    >>> format_scores({"loss": 0.25, "exact": 0.5, "signature": "x"})
    'loss 0.2500, exact 0.5000'
    """
    return ", ".join(f"{k} {v:.4f}" for k, v in scores.items() if isinstance(v, int | float))
