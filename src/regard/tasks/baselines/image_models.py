"""Baselines of images: logistic regression on pixels, and a small convolutional network."""

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor, nn

from regard.data.image.image_batches import ImageBatches
from regard.models.baselines import convolution
from regard.tasks.classification.images import LabeledImages
from regard.train.linear import fit_best_linear

MAX_SIDE = 32  # larger images are averaged down to it
MAX_IMAGES = 20_000  # of training that the linear model reads
PENALTIES = (3000.0, 300.0, 30.0)
WIDTHS = (32, 64, 128)  # of the convolutions
EPOCHS, MIN_UPDATES, MAX_UPDATES = 8, 10, 800
BATCH_SIZE, LR = 64, 3e-3
SHIFT = 2  # pixels


def predict_images(
    train: LabeledImages,
    valid: LabeledImages,
    images: UInt8[Tensor, "count channel height width"],
    classes: int,
) -> tuple[str, list[int]]:
    """The class of each image by the model that is more accurate on the valid split, and its name.

    >>> dark, light = torch.zeros(4, 1, 8, 8), torch.full((4, 1, 8, 8), 255)
    >>> images = torch.cat([dark, light]).to(torch.uint8)
    >>> split = images, torch.tensor([0] * 4 + [1] * 4)
    >>> predict_images(split, split, images[3:5], classes=2)
    ('linear model on pixels', [0, 1])
    """
    (pixels, labels), (valid_pixels, valid_labels) = train, valid
    x, y, z = (_average_down(part) for part in (pixels, valid_pixels, images))
    answers = {
        "linear model on pixels": _linear(x, labels, y, valid_labels, z, classes),
        "small convolutional network": _convolutional(x, labels, y, z, classes),
    }
    best = max(answers, key=lambda name: int((answers[name][0] == valid_labels).sum()))
    return best, answers[best][1].tolist()


def _average_down(images: Tensor) -> Tensor:
    side = min(MAX_SIDE, images.shape[-1])
    return F.adaptive_avg_pool2d(images.float(), side).round().to(torch.uint8)


def _linear(
    x: Tensor, labels: Tensor, y: Tensor, valid_labels: Tensor, z: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    every = -(-len(x) // MAX_IMAGES)
    x, labels = x[::every], labels[::every]
    mean, std = x.float().mean(0), x.float().std(0, correction=0) + 1
    x, y, z = (((part - mean) / std).flatten(1) for part in (x, y, z))
    model = fit_best_linear((x, labels), (y, valid_labels), classes, PENALTIES)
    return model.logits(y).argmax(-1), model.logits(z).argmax(-1)


def _convolutional(
    x: Tensor, labels: Tensor, y: Tensor, z: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Three convolutions with batch norm, the mean over the image, and a linear layer."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        small, middle, large = WIDTHS
        model = nn.Sequential(
            *(convolution(x.shape[1], small, 5, stride=2), nn.ReLU()),
            *(convolution(small, middle), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
            *(convolution(middle, large), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            nn.Linear(large, classes),
        )
        batches = iter(ImageBatches(x, labels, batch_size=BATCH_SIZE, shift=SHIFT))
        updates = max(MIN_UPDATES, min(MAX_UPDATES, EPOCHS * len(x) // BATCH_SIZE))
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, updates)
        for _ in range(updates):
            batch = next(batches)
            loss = F.cross_entropy(model(_scale(batch["pixels"], 1)), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        parts = [[model(_scale(rows)).argmax(-1) for rows in part.split(500)] for part in (y, z)]
    return torch.cat(parts[0]), torch.cat(parts[1])


def _scale(pixels: Tensor, white: int = 255) -> Tensor:
    return (pixels / white - 0.5) * 4
