"""How good a classifier of pictures is: its loss and the share of right answers."""

from typing import Any

import torch
from jaxtyping import Int, UInt8
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.train.loss import smoothed_cross_entropy

ROWS = 1000  # pictures that are looked at together


class ClassScores:
    """What a classifier gets on fixed pictures: loss and accuracy.

    >>> class Bright(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.stack([1 - x.mean((1, 2, 3)), x.mean((1, 2, 3))], 1)
    >>> pictures = torch.tensor([0, 255]).to(torch.uint8).reshape(2, 1, 1, 1)
    >>> ClassScores(pictures, torch.tensor([0, 1]))(Bright())["accuracy"]
    1.0
    """

    def __init__(
        self,
        pictures: UInt8[Tensor, "count channel height width"],
        labels: Int[Tensor, " count"],
    ):
        if not len(labels) or len(pictures) != len(labels):
            raise ShapeError(f"labels: needs one for each of {len(pictures)}, got {len(labels)}")
        self.pictures, self.labels = pictures, labels

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> dict[str, Any]:
        loss, right = 0.0, 0
        device = next(model.parameters(), self.pictures).device
        for at in range(0, len(self.labels), ROWS):
            pixels = self.pictures[at : at + ROWS].to(device).float() / 255
            labels = self.labels[at : at + ROWS].to(device)
            logits = model(pixels)
            loss += float(smoothed_cross_entropy(logits, labels))
            right += int((logits.argmax(-1) == labels).sum())
        return {"loss": loss / len(self.labels), "accuracy": right / len(self.labels)}
