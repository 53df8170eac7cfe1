"""Mean loss over a held-out split."""

from collections.abc import Iterable

import torch
from torch import nn

from regard.train.losses import Batch, Objective


@torch.no_grad()
def mean_loss(model: nn.Module, objective: Objective, batches: Iterable[Batch]) -> float:
    """Loss per token (or example) over all batches, without label smoothing.

    Σ_batches loss_sum / Σ_batches size

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=8)).eval()
    >>> batch = {"tokens": torch.zeros(1, 5, dtype=torch.long)}
    >>> mean_loss(model, rg.train.objective("next_token"), [batch]) > 0
    True
    """
    device = next(model.parameters()).device
    total, size = 0.0, 0
    for batch in batches:
        batch = {name: x.to(device) for name, x in batch.items()}
        total += float(objective.loss_sum(model, batch))
        size += int(objective.size(batch))
    return total / max(1, size)
