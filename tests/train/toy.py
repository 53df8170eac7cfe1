"""Data for tests of training: sequences to be reversed, batch n drawn from seed and n."""

import pytest
import torch
from torch import Tensor

from regard import models
from regard.train import TrainConfig, Trainer, objective

VOCAB, START, END = 8, 1, 2


class Backwards:
    def __init__(self, seed: int = 0, rows: int = 6):
        self.seed, self.rows, self.position = seed, rows, 0

    def __iter__(self):
        while True:
            self.position += 1
            yield self.batch(self.position - 1)

    def batch(self, n: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1000 * self.seed + n)
        source = torch.randint(3, VOCAB, (self.rows, 4), generator=generator)
        edge = torch.ones(self.rows, 1, dtype=torch.long)
        target = torch.cat([START * edge, source.flip(1), END * edge], 1)
        lengths = torch.full((self.rows,), 6)
        return {"source": source, "target": target, "target_lengths": lengths}

    def state(self) -> dict:
        return {"seed": self.seed, "position": self.position}

    def restore(self, state: dict) -> None:
        self.seed, self.position = state["seed"], state["position"]


def make_trainer(folder=None, *, batches=None, evaluate=None, dropout=0.1, **changes) -> Trainer:
    torch.manual_seed(5)
    sizes = {"dim": 16, "heads": 2, "layers": 1, "decoder_layers": 1, "dropout": dropout}
    config = models.translator_tiny(VOCAB, **sizes)
    settings = {
        "device": "cpu",
        "steps": 12,
        "warmup": 4,
        "lr": 3e-3,
        "log_every": 1,
        "save_every": 4,
    } | changes
    return Trainer(
        models.Translator(config),
        objective("translation"),
        batches or Backwards(),
        TrainConfig(**settings),
        folder=folder,
        evaluate=evaluate,
    )


def update(trainer: Trainer) -> None:
    """One update alone."""
    trainer.step += 1
    trainer.updater.step(trainer.objective, trainer.step, trainer.config.lr_at(trainer.step))


def run_until(trainer: Trainer, step: int) -> None:
    """Train until a step, save there, and be interrupted."""
    real = trainer.updater.step

    def stop(*args):
        if trainer.step == step:
            trainer.save()
            raise KeyboardInterrupt
        return real(*args)

    trainer.updater.step = stop
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
