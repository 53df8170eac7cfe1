"""Evaluation of image classifiers: loss, accuracy, and graded answers for calibration."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.train.losses import label_smoothed_cross_entropy
from regard.train.metrics import GradedAnswer, IsCorrect, Tally

BATCH_SIZE = 1000


class ClassificationEvaluator:
    """Loss and accuracy of a classifier on a fixed set of images; classes may have names.

    >>> images = torch.tensor([255, 0, 0, 255]).to(torch.uint8).reshape(2, 2, 1, 1)
    >>> ClassificationEvaluator(images, torch.tensor([0, 1]))(torch.nn.Flatten())["accuracy"]
    1.0
    """

    def __init__(
        self,
        images: UInt8[Tensor, "count channel height width"],
        labels: Int[Tensor, " count"],
        names: Sequence[str] = (),
    ):
        if not len(labels) or len(images) != len(labels):
            raise ShapeError(f"labels: needs one for each of {len(images)}, got {len(labels)}")
        self.images, self.labels, self.names = images, labels, tuple(names)

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> dict[str, Any]:
        logits = self.logits(model, self.images)
        loss = float(label_smoothed_cross_entropy(logits, self.labels)) / len(self.labels)
        correct = int((logits.argmax(-1) == self.labels).sum())
        return {"loss": loss, "accuracy": correct / len(self.labels)}

    @property
    def sources(self) -> list[str]:
        return [f"image {n}" for n in range(len(self.labels))]

    @property
    def references(self) -> list[str]:
        return [self._name(label) for label in self.labels.tolist()]

    def predict_scored(self, model: nn.Module) -> list[tuple[str, float]]:
        """The most probable class of each image with its log-odds."""
        logits = self.logits(model, self.images)
        best, scores = logits.argmax(-1).tolist(), top_log_odds(logits).tolist()
        return list(zip(map(self._name, best), scores, strict=True))

    def predict(self, model: nn.Module) -> list[str]:
        return [name for name, _ in self.predict_scored(model)]

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of a model; they need its logits, not only its answers."""
        return self(model)

    def tally(self, answers: Sequence[str]) -> Tally:
        """Whether each answer is correct."""
        rows = [(float(a == b), 1.0) for a, b in zip(answers, self.references, strict=True)]
        return Tally(torch.tensor(rows), lambda x: {"accuracy": x[0] / x[1]})

    def _name(self, label: int) -> str:
        return self.names[label] if label < len(self.names) else str(label)

    @torch.no_grad()
    def logits(
        self, model: nn.Module, images: UInt8[Tensor, "count channel height width"]
    ) -> Float[Tensor, "count classes"]:
        """The model's logits of images, on the CPU."""
        device = next(model.parameters(), images).device
        batches = (batch.to(device).float() / 255 for batch in images.split(BATCH_SIZE))
        return torch.cat([model(batch).float().cpu() for batch in batches])


class CalibratedClassificationEvaluator(ClassificationEvaluator):
    """A `ClassificationEvaluator` that also grades answers, those to OOD images as incorrect.

    >>> images, labels = torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 1])
    >>> evaluator = CalibratedClassificationEvaluator(images, labels, ood_images=images[:1])
    >>> graded = evaluator.grade(torch.nn.Flatten(), str.__eq__)  # one class, of score 0
    >>> [answer.correct for answer in graded]
    [True, False, False]
    """

    def __init__(
        self,
        images: UInt8[Tensor, "count channel height width"],
        labels: Int[Tensor, " count"],
        *,
        ood_images: UInt8[Tensor, "other channel height width"],
        names: Sequence[str] = (),
    ):
        super().__init__(images, labels, names)
        self.ood_images = ood_images

    def grade(self, model: nn.Module, is_correct: IsCorrect) -> list[GradedAnswer]:
        """Raw score and correctness of the top class of every image."""
        answers = zip(self.predict_scored(model), self.references, strict=True)
        graded = [GradedAnswer(score, is_correct(x, y)) for (x, score), y in answers]
        ood_scores = top_log_odds(self.logits(model, self.ood_images)).tolist()
        return graded + [GradedAnswer(score, False) for score in ood_scores]


def top_log_odds(logits: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
    """Log-odds of the top class, log p / (1 - p): the raw score that confidence is calibrated on.

    >>> top_log_odds(torch.tensor([0.8, 0.1, 0.1]).log()).exp()  # 0.8 / 0.2
    tensor(4.)
    """
    best = logits.float().topk(1, -1)
    rest = logits.float().scatter(-1, best.indices, -torch.inf)
    return best.values[..., 0] - rest.logsumexp(-1)
