"""What is made small: sums over tokens, to be divided by how many there are in the whole update."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models import ctc_loss

Batch = Mapping[str, Tensor]


class Objective(NamedTuple):
    """A loss by its two parts: how many things a batch is scored on, and their losses summed.

    loss of an update = Σ_batches total / Σ_batches size, the same however it is cut into batches

    >>> batch = {"target": torch.zeros(2, 5), "target_lengths": torch.tensor([5, 3])}
    >>> int(objective("translation").size(batch))  # the first token of each is given
    6
    """

    size: Callable[[Batch], Tensor]
    total: Callable[[nn.Module, Batch, float], Tensor]


def objective(name: str) -> Objective:
    """A loss by its name: translation, next_token, ctc or class.

    >>> objective("clas")
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: objective: needs translation, next_token, ctc or class, got 'clas'
    """
    if name not in OBJECTIVES:
        raise ConfigError(f"objective: needs translation, next_token, ctc or class, got {name!r}")
    return OBJECTIVES[name]


def smoothed_cross_entropy(
    logits: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    smoothing: float = 0.0,
    live: Bool[Tensor, "*batch"] | None = None,
) -> Float[Tensor, ""]:
    """How surprising the targets are, summed over those that are live; some mass goes to all words.

    Σ_t - (1 - ε) log p(y_t) - ε / vocab Σ_y log p(y)

    >>> logits = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()
    >>> smoothed_cross_entropy(logits, torch.tensor([0, 1])).exp()  # 4/3 · 2
    tensor(2.6667)
    >>> smoothed_cross_entropy(logits, torch.tensor([0, 1]), live=torch.tensor([False, True])).exp()
    tensor(2.)
    """
    if live is not None:
        targets = targets.masked_fill(~live, -100)
    return F.cross_entropy(
        logits.flatten(0, -2).float(),
        targets.flatten(),
        reduction="sum",
        label_smoothing=smoothing,
        ignore_index=-100,
    )


def _live(tokens: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Which tokens but the first are real: those are the ones to be told."""
    if lengths is None:
        return None
    return torch.arange(1, tokens.shape[1], device=tokens.device) < lengths[:, None]


def _told(tokens: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return torch.tensor(tokens[:, 1:].numel())
    return (lengths - 1).clamp(min=0).sum()


def _translation(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    target = batch["target"]
    logits = model(batch["source"], target[:, :-1], batch.get("source_lengths"))
    live = _live(target, batch.get("target_lengths"))
    return smoothed_cross_entropy(logits, target[:, 1:], smoothing, live)


def _next_token(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    tokens, lengths = batch["tokens"], batch.get("tokens_lengths")
    shorter = None if lengths is None else lengths.clamp(max=tokens.shape[1] - 1)
    logits = model(tokens[:, :-1], shorter)
    return smoothed_cross_entropy(logits, tokens[:, 1:], smoothing, _live(tokens, lengths))


def _ctc(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    log_probs, lengths = model(batch["frames"], batch["frames_lengths"])
    loss = ctc_loss(log_probs.float(), lengths, batch["target"], batch["target_lengths"])
    return loss * len(lengths)


def _class(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    logits = model(batch["pixels"]) if "pixels" in batch else model(*_read(batch))
    return smoothed_cross_entropy(logits, batch["label"], smoothing)


def _read(batch: Batch) -> tuple[Tensor, Tensor | None]:
    return batch["tokens"], batch.get("tokens_lengths")


def _rows(name: str) -> Callable[[Batch], Tensor]:
    return lambda batch: torch.tensor(len(batch[name]))


OBJECTIVES = {
    "translation": Objective(
        lambda batch: _told(batch["target"], batch.get("target_lengths")), _translation
    ),
    "next_token": Objective(
        lambda batch: _told(batch["tokens"], batch.get("tokens_lengths")), _next_token
    ),
    "ctc": Objective(_rows("target"), _ctc),
    "class": Objective(_rows("label"), _class),
}
