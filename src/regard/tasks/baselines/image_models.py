"""Baselines of images: logistic regression on pixels, and a small convolutional network."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from regard.data.batches import seeded_generator
from regard.data.image.image_batches import ImageBatches
from regard.models.baselines import convolution
from regard.models.config import check_positive, register_model
from regard.nn.embedding import Images
from regard.tasks.classification.images import LabeledImages
from regard.train.linear import fit_best_linear, fit_linear

MAX_SIDE = 32  # larger images are averaged down to it
MIRROR_IMAGES, MIRROR_SIDE = 3000, 16  # to fit, and as many to try, how mirror images are told
MAX_IMAGES = 20_000  # of training that the linear model reads
PENALTIES = (3000.0, 300.0, 30.0)
WIDTHS = (32, 64, 128)  # of the convolutions
EPOCHS, MIN_UPDATES, MAX_UPDATES = 8, 10, 800
BATCH_SIZE, LR = 64, 3e-3
SHIFT = 2  # pixels


@dataclass(frozen=True, kw_only=True)
class SmallImageConfig:
    """Config of a baseline of images: linear on their pixels, or convolutional."""

    classes: int
    channels: int
    side: int  # that images are averaged down to
    convolutional: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "classes", "channels", "side")


@register_model(SmallImageConfig)
class SmallImageModel(nn.Module):
    """A linear layer on pixels, or a network of three convolutions, made by `fit_images`."""

    def __init__(self, config: SmallImageConfig):
        super().__init__()
        self.config, (small, middle, large) = config, WIDTHS
        if not config.convolutional:
            pixels = config.channels * config.side**2
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(pixels, config.classes))
            return
        self.layers = nn.Sequential(
            *(convolution(config.channels, small, 5, stride=2), nn.ReLU()),
            *(convolution(small, middle), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
            *(convolution(middle, large), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            nn.Linear(large, config.classes),
        )

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        """Logits of images from 0 to 1."""
        images = F.adaptive_avg_pool2d(images, self.config.side)
        return self.layers((images - 0.5) * 4)


def fit_images(
    train: LabeledImages, valid: LabeledImages, classes: int
) -> tuple[str, SmallImageModel]:
    """The name and the model that is more accurate on the valid split, of a linear and a small CNN.

    >>> dark, light = torch.zeros(4, 1, 8, 8), torch.full((4, 1, 8, 8), 255)
    >>> images = torch.cat([dark, light]).to(torch.uint8)
    >>> split = images, torch.tensor([0] * 4 + [1] * 4)
    >>> name, model = fit_images(split, split, classes=2)
    >>> name, model(images[3:5] / 255).argmax(-1)
    ('linear model on pixels', tensor([0, 1]))
    """
    (x, labels), (y, valid_labels) = ((_average_down(part), rest) for part, rest in (train, valid))
    config = SmallImageConfig(classes=classes, channels=x.shape[1], side=x.shape[-1])
    models = {
        "linear model on pixels": _linear(config, x, labels, y, valid_labels),
        "small convolutional network": _convolutional(config, x, labels),
    }

    def correct(name: str) -> int:
        answers = [models[name](rows / 255).argmax(-1) for rows in y.split(500)]
        return int((torch.cat(answers) == valid_labels).sum())

    with torch.no_grad():
        best = max(models, key=correct)
    return best, models[best]


def mirror_accuracy(
    images: UInt8[Tensor, "count channel height width"], labels: Int[Tensor, " count"], classes: int
) -> tuple[float, float]:
    """Accuracy of a linear model on images that it was not fitted to, and on their mirror images.

    >>> left = torch.tensor([255, 0]).to(torch.uint8).expand(50, 1, 2, 2)
    >>> images, labels = torch.stack([left, left.flip(3)], 1).flatten(0, 1), torch.arange(100) % 2
    >>> mirror_accuracy(images, labels, 2)  # left and right
    (1.0, 0.0)
    """
    every = -(-len(images) // (2 * MIRROR_IMAGES))
    images, labels = images[::every], labels[::every]
    order = torch.randperm(len(labels), generator=seeded_generator("mirror"))
    x, labels = _average_down(images[order], MIRROR_SIDE).float(), labels[order]
    half = len(labels) // 2
    mean, std = x[:half].mean(0), x[:half].std(0, correction=0) + 1
    model = fit_linear(((x[:half] - mean) / std).flatten(1), labels[:half], classes, PENALTIES[1])

    def accuracy(x: Tensor) -> float:
        answers = model.logits(((x - mean) / std).flatten(1)).argmax(-1)
        return float((answers == labels[half:]).float().mean())

    return accuracy(x[half:]), accuracy(x[half:].flip(3))


def _average_down(images: Tensor, most: int = MAX_SIDE) -> Tensor:
    side = min(most, images.shape[-1])
    return F.adaptive_avg_pool2d(images.float(), side).round().to(torch.uint8)


def _linear(
    config: SmallImageConfig, x: Tensor, labels: Tensor, y: Tensor, valid_labels: Tensor
) -> SmallImageModel:
    every = -(-len(x) // MAX_IMAGES)
    x, labels = x[::every], labels[::every]
    mean, std = (part.flatten() for part in (x.float().mean(0), x.float().std(0, correction=0) + 1))
    x, y = ((part.flatten(1) - mean) / std for part in (x, y))
    fitted = fit_best_linear((x, labels), (y, valid_labels), config.classes, PENALTIES)
    model, weight = SmallImageModel(config), fitted.weight / std[:, None]
    # of bytes, as a weight of what `forward` makes of them: byte = 255 (input / 4 + 0.5)
    model.layers[1].weight.data = (weight * 255 / 4).mT.contiguous()
    model.layers[1].bias.data = fitted.bias + (127.5 - mean) @ weight
    return model.eval()


def _convolutional(config: SmallImageConfig, x: Tensor, labels: Tensor) -> SmallImageModel:
    """Three convolutions with batch norm, the mean over the image, and a linear layer."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = SmallImageModel(replace(config, convolutional=True))
        batches = iter(ImageBatches(x, labels, batch_size=BATCH_SIZE, shift=SHIFT))
        updates = max(MIN_UPDATES, min(MAX_UPDATES, EPOCHS * len(x) // BATCH_SIZE))
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, updates)
        for _ in range(updates):
            batch = next(batches)
            loss = F.cross_entropy(model(batch["pixels"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()
