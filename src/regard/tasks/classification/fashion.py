"""Fashion-MNIST, and other data sets in the files of MNIST."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch

from regard.data.generated_batches import seeded_generator
from regard.data.image.idx import find_idx, read_idx
from regard.errors import ConfigError
from regard.models import ResNetConfig, VisionConfig
from regard.tasks.classification.evaluator import ClassificationEvaluator
from regard.tasks.classification.images import ImageTask, LabeledImages
from regard.tasks.recipe import EvalSplit
from regard.tasks.registry import task

FASHION_CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)  # fmt: skip


@task("fashion")
@dataclass(frozen=True, kw_only=True)
class FashionTask(ImageTask):
    """Grey images of 28 × 28 pixels in the IDX files of Fashion-MNIST or MNIST.

    Args:
        folder: of the four files, as they are or gzipped.
        names: of the classes; "" numbers them, as for MNIST.
        valid_images: the last so many training images are the valid split. With 0 it is the last
            1000 training images, and is no estimate for new ones.

    >>> FashionTask(folder="fashion-mnist").class_names[:2]
    ('T-shirt', 'trouser')
    """

    paths: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str = "fashion-mnist"
    names: tuple[str, ...] = FASHION_CLASSES
    valid_images: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.valid_images < 60000:
            raise ConfigError(f"valid_images: needs to be from 0 to 59999, got {self.valid_images}")

    @property
    def input_size(self) -> int:
        return 28

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.names

    def resolve(
        self, model: VisionConfig | ResNetConfig, tokenizer: None
    ) -> VisionConfig | ResNetConfig:
        """The model's config with the number of classes."""
        return replace(model, classes=int(read_mnist(self.folder, "train")[1].max()) + 1)

    def train_split(self, seed: int) -> LabeledImages:
        """The images before those of valid, or a sample of them."""
        images, labels = read_mnist(self.folder, "train")
        available = len(labels) - self.valid_images
        count = available if self.train_images is None else self.train_images
        if not 0 < count <= available:
            raise ConfigError(f"train_images: needs to be from 1 to {available}, got {count}")
        if count == available:
            return images[:count], labels[:count]
        # "pictures" names the random stream: to rename it would change every sample
        generator = seeded_generator(seed, "pictures")
        sample = torch.randperm(available, generator=generator)[:count]
        return images[sample], labels[sample]

    def evaluator(self, tokenizer: None, split: EvalSplit) -> ClassificationEvaluator:
        """Loss and accuracy."""
        images, labels = read_mnist(self.folder, "train" if split == "valid" else "t10k")
        if split == "valid":
            first = -self.valid_images if self.valid_images else -1000
            return ClassificationEvaluator(images[first:], labels[first:])
        return ClassificationEvaluator(images, labels)


@lru_cache(4)
def read_mnist(folder: str, split: str) -> LabeledImages:
    """The uint8 images and the labels of one split of an MNIST-like folder."""
    images = read_idx(find_idx(Path(folder).expanduser(), f"{split}-images-idx3"))
    labels = read_idx(find_idx(Path(folder).expanduser(), f"{split}-labels-idx1"))
    if len(images) != len(labels):
        raise ConfigError(f"folder: needs a label for each of {len(images)}, got {len(labels)}")
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype("int64"))
