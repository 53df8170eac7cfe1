"""Small trainings of experiments, by the library's own trainer."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data import GeneratedBatches
from regard.train import Objective, TrainConfig, Trainer

Batch = Mapping[str, Tensor]


def train_model(
    build: Callable[[], nn.Module],
    draw: Callable[[torch.Generator], Batch],
    loss: Callable[[nn.Module, Batch], Tensor],
    *,
    steps: int,
    lr: float = 1e-3,
    seed: int = 0,
    device: str = "cpu",
    **options: Any,
) -> nn.Module:
    """Train a new model on generated batches, and return it in evaluation mode.

    Args:
        build: makes the model, after torch was seeded.
        draw: makes a batch from a generator that is seeded per step.
        loss: mean loss of a batch.
        steps: updates of AdamW.
        lr: peak learning rate.
        seed: of weights, batches and dropout.
        device: to train on.
        options: more of `TrainConfig`.

    >>> model = train_model(
    ...     lambda: nn.Linear(1, 1),
    ...     lambda rng: {"x": torch.rand(8, 1, generator=rng)},
    ...     lambda model, batch: (model(batch["x"]) - 2 * batch["x"]).square().mean(),
    ...     steps=300, lr=0.1, warmup=0)
    >>> bool((model(torch.ones(1, 1)) - 2).abs() < 0.01)
    True
    """

    def make(step: int) -> Batch:
        return draw(torch.Generator().manual_seed(seed * 1_000_003 + step))

    objective = Objective(
        size=lambda batch: torch.ones(()),
        loss_sum=lambda model, batch, *rest, **unused: loss(model, batch),
    )
    torch.manual_seed(seed)
    fixed: dict[str, Any] = {"steps": steps, "lr": lr, "seed": seed, "device": device}
    fixed |= {"warmup": min(100, steps // 10), "log_every": steps}
    config = TrainConfig(**fixed | options)
    trainer = Trainer(build(), objective, GeneratedBatches(cast(Any, make)), config)
    trainer.run()
    return trainer.model.eval()


def label_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the labels."""
    return F.cross_entropy(model(batch["inputs"]), batch["labels"])


def train_classifier(
    build: Callable[[], nn.Module], draw: Callable[[torch.Generator], Batch], **options: Any
) -> nn.Module:
    """`train_model` on batches of inputs and labels; the model comes back on the CPU."""
    return train_model(build, draw, label_loss, **options).cpu()


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    """Share of inputs whose most likely class is their label."""
    return float((model(batch["inputs"]).argmax(-1) == batch["labels"]).double().mean())
