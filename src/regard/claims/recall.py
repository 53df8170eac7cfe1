"""Recall of the first token and parity of bits, learned by several kinds of network."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

import regard as rg
from regard.claims.claim import Trial
from regard.claims.measurements import Batch, accuracy, train_classifier

CLASSES, NOISE = 4, 8  # tokens to remember, and tokens in between


class Recall(nn.Module):
    """Classifies a sequence by its last output: recurrent, with attention, or attention alone."""

    def __init__(self, kind: str, width: int = 32):
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(CLASSES + NOISE, width)
        if kind == "attention":
            config = rg.models.classifier_tiny(
                vocab=CLASSES + NOISE, classes=CLASSES, layers=1, dim=width, pooling="mean"
            )
            self.classifier = rg.models.Classifier(config)
        elif kind == "hybrid":
            self.layer = rg.nn.AttentiveRecurrent(width, width, kind="rnn")
        elif kind == "gated delta":
            self.layer = rg.nn.LinearAttention(width, 2)
        elif kind.endswith(" norm"):
            self.layer = NormalisedRNN(width, batch=kind.startswith("batch"))
        else:
            self.layer = rg.nn.Recurrent(width, width, kind=kind)  # pyright: ignore[reportArgumentType]
            for name, u in self.layer.named_parameters():
                if name.endswith(".u"):  # torch's initial values; ours are orthogonal
                    nn.init.uniform_(u, -(width**-0.5), width**-0.5)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.kind == "attention":
            return self.classifier(tokens)
        out = self.layer(self.embedding(tokens))
        return self.head((out if isinstance(out, Tensor) else out[0])[:, -1])


class NormalisedRNN(nn.Module):
    """h_t = tanh(norm(W x_t + U h_{t-1})), with batch or layer normalisation."""

    def __init__(self, width: int, *, batch: bool):
        super().__init__()
        self.w, self.u = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width) if batch else nn.LayerNorm(width)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        h, states = torch.zeros_like(x[:, 0]), []
        for wx in self.w(x).unbind(1):
            h = torch.tanh(self.norm(wx + self.u(h)))
            states.append(h)
        return (torch.stack(states, 1),)


def draw_recall(rng: torch.Generator, length: int, count: int = 32) -> Batch:
    """Sequences of noise after one of four tokens, which is the class."""
    tokens = torch.randint(CLASSES, CLASSES + NOISE, (count, length), generator=rng)
    tokens[:, 0] = labels = torch.randint(CLASSES, (count,), generator=rng)
    return {"inputs": tokens, "labels": labels}


def draw_parity(rng: torch.Generator, length: int, count: int = 32) -> Batch:
    """Bits, and whether an odd number of them is set."""
    tokens = torch.randint(2, (count, length), generator=rng)
    return {"inputs": tokens, "labels": tokens.sum(-1) % 2}


Study = dict[str, list[float]]  # accuracies by kind of network, one per seed


def recall_study(
    trial: Trial, length: int, kinds: tuple[str, ...], seeds: tuple[int, int] = (3, 10)
) -> Study:
    """Accuracies of recalling the first token."""
    task = draw_recall, length, trial.size(200, 400), trial.device
    return {kind: [_accuracy(kind, n, *task) for n in trial.seeds(*seeds)] for kind in kinds}


def parity_study(trial: Trial, length: int, kinds: tuple[str, ...]) -> Study:
    """Accuracies of the parity of bits."""
    task = draw_parity, length, trial.size(900, 1500), trial.device
    return {kind: [_accuracy(kind, n, *task) for n in trial.seeds(5, 10)] for kind in kinds}


@cache
def _accuracy(
    kind: str, seed: int, draw: Callable[..., Batch], length: int, steps: int, device: str
) -> float:
    options = {"steps": steps, "lr": 3e-3, "seed": seed, "device": device}
    model = train_classifier(lambda: Recall(kind), lambda rng: draw(rng, length), **options)
    return accuracy(model, draw(torch.Generator().manual_seed(10_000 + seed), length, 500))
