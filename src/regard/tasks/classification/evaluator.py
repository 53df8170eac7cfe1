"""How good a classifier of pictures is: its loss, the share of right answers, and their grades."""

from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.train.losses import label_smoothed_cross_entropy
from regard.train.metrics.calibration import GradedAnswer

ROWS = 1000  # pictures that are looked at together


class ClassificationEvaluator:
    """What a classifier gets on fixed pictures: loss and accuracy.

    >>> class Bright(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.stack([1 - x.mean((1, 2, 3)), x.mean((1, 2, 3))], 1)
    >>> pictures = torch.tensor([0, 255]).to(torch.uint8).reshape(2, 1, 1, 1)
    >>> ClassificationEvaluator(pictures, torch.tensor([0, 1]))(Bright())["accuracy"]
    1.0
    """

    def __init__(
        self,
        images: UInt8[Tensor, "count channel height width"],
        labels: Int[Tensor, " count"],
    ):
        if not len(labels) or len(images) != len(labels):
            raise ShapeError(f"labels: needs one for each of {len(images)}, got {len(labels)}")
        self.images, self.labels = images, labels

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> dict[str, Any]:
        logits = self.logits(model, self.images)
        loss = float(label_smoothed_cross_entropy(logits, self.labels)) / len(self.labels)
        right = int((logits.argmax(-1) == self.labels).sum())
        return {"loss": loss, "accuracy": right / len(self.labels)}

    @torch.no_grad()
    def logits(
        self, model: nn.Module, images: UInt8[Tensor, "count channel height width"]
    ) -> Float[Tensor, "count classes"]:
        """What the model says of pictures, on the CPU."""
        device = next(model.parameters(), images).device
        rows = (part.to(device).float() / 255 for part in images.split(ROWS))
        return torch.cat([model(part).float().cpu() for part in rows])


class CalibratedClassificationEvaluator(ClassificationEvaluator):
    """The same, with every answer graded for calibration; an answer to a foreign picture is wrong.

    >>> class Bright(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.stack([1 - x.mean((1, 2, 3)), x.mean((1, 2, 3))], 1)
    >>> pictures = torch.tensor([0, 255]).to(torch.uint8).reshape(2, 1, 1, 1)
    >>> scores = CalibratedClassificationEvaluator(pictures, torch.tensor([0, 1]), ood_images=pictures[:1] + 128)
    >>> [one.right for one in scores.grade(Bright())]
    [True, True, False]
    """

    def __init__(
        self,
        images: UInt8[Tensor, "count channel height width"],
        labels: Int[Tensor, " count"],
        *,
        ood_images: UInt8[Tensor, "other channel height width"],
    ):
        super().__init__(images, labels)
        self.ood_images = ood_images

    def grade(self, model: nn.Module) -> list[GradedAnswer]:
        """Each picture's score, and whether its likeliest class is right."""
        logits = self.logits(model, self.images)
        right = (logits.argmax(-1) == self.labels).tolist()
        scores = top_log_odds(logits).tolist()
        foreign = top_log_odds(self.logits(model, self.ood_images)).tolist()
        graded = [GradedAnswer(*one) for one in zip(scores, right, strict=True)]
        return graded + [GradedAnswer(score, False) for score in foreign]


def top_log_odds(logits: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
    """The raw score of a classification: log p / (1 - p) of its likeliest class.

    >>> top_log_odds(torch.tensor([0.8, 0.1, 0.1]).log()).exp()  # 0.8 / 0.2
    tensor(4.)
    """
    best = logits.float().topk(1, -1)
    rest = logits.float().scatter(-1, best.indices, -torch.inf)
    return best.values[..., 0] - rest.logsumexp(-1)
