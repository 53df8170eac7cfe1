"""What image classification tasks share: augmentation, batches, class names, image files."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Unpack

from torch import Tensor

from regard.data.image.image_batches import ImageBatches
from regard.errors import ConfigError
from regard.models.config import check_positive
from regard.tasks.base import BatchUnit, Shard, Task
from regard.tasks.class_names import Classes, format_classes
from regard.tasks.classification.pipeline import ClassificationPipeline
from regard.tasks.classification.verb import Classify
from regard.train.config import TrainConfig
from regard.train.distributed import select_device

LabeledImages = tuple[Tensor, Tensor]  # uint8 images, and their labels


@dataclass(frozen=True, kw_only=True)
class ImageTask(Classify, Task):
    """Image classification task.

    Args:
        shift: largest random translation, in pixels.
        flip: random horizontal flips.
        random_erasing: largest side of an erased square, as a fraction of the height.
        cutmix: probability of a rectangle of another image, whose class then counts too.
        train_images: size of the train split, sampled by the seed; None is all.

    >>> rg.tasks.recipe("glyphs").data.batch_unit
    'batch_size'
    """

    objective: ClassVar[str] = "class"
    pipeline_type = ClassificationPipeline
    unit: ClassVar[str] = "images"
    batch_unit: ClassVar[BatchUnit] = "batch_size"

    shift: int = 2
    flip: bool = True
    random_erasing: float = 0.0
    cutmix: float = 0.0
    train_images: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "train_images")
        if self.shift < 0:
            raise ConfigError(f"shift: needs 0 pixels or more, got {self.shift}")
        for name in ("random_erasing", "cutmix"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: needs to be from 0 to 1, got {getattr(self, name)}")

    @property
    @abstractmethod
    def input_size(self) -> int:
        """Side of the square images that a model is trained on, in pixels."""

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels; empty where they have none."""

    @property
    def crops_to_ink(self) -> bool:
        """Whether images are cropped to their ink before the model sees them."""
        return False

    @abstractmethod
    def train_split(self, seed: int) -> LabeledImages:
        """The training images and their labels."""

    def format_output(self, output: Classes) -> str:
        return format_classes(output)

    def batches(self, tokenizer: None, train: TrainConfig, **shard: Unpack[Shard]) -> ImageBatches:
        """Augmented batches, made on the training's device."""
        images, labels = (x.to(select_device(train)) for x in self.train_split(train.seed))
        return ImageBatches(
            images, labels, batch_size=self.batch_limit(train), shift=self.shift, flip=self.flip,
            random_erasing=self.random_erasing, cutmix=self.cutmix, seed=train.seed, **shard,
        )  # fmt: skip
