"""Own images: one folder per class, a table of labels, or the IDX files of the MNIST family."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from PIL import Image

from regard.data import (
    ImageCollection,
    LoadReport,
    Split,
    load_images,
    open_image,
    seeded_generator,
)
from regard.data.image.image_collection import ImageEntry, find_images, has_idx_files, iter_readable
from regard.errors import ConfigError
from regard.models import ResNetConfig, VisionConfig
from regard.models.config import check_positive
from regard.tasks.base import Baseline, DataContents, EvalSplit
from regard.tasks.baselines.image_models import fit_images
from regard.tasks.class_names import class_warnings, file_stamp, fit_names
from regard.tasks.classification.evaluator import ClassificationEvaluator
from regard.tasks.classification.images import ImageTask, LabeledImages
from regard.tasks.registry import task


class ImageFile(NamedTuple):
    """An image in `contents`: a fingerprint of its file, class, size, colour mode and file name."""

    image: bytes
    label: str
    size: str
    mode: str
    name: str = ""


@task("images")
@dataclass(frozen=True, kw_only=True)
class ImagesTask(ImageTask):
    """Labelled images of own files, see `data.load_images`.

    Args:
        path: a folder with one folder per class, a table of labels, or a folder of IDX files.
        size: side of the square that images are resized to, in pixels; that of IDX files.
        channels: 1 (grey) or 3 (RGB).
        names: of the classes; () takes those of the data, numbers for IDX. A run keeps them.
        valid_images: of IDX files, the last so many training images are the valid split. With 0
            it is the last 1000, which are trained on too, and is no estimate for new ones.

    >>> ImagesTask(path="flowers", names=("rose", "tulip")).class_names
    ('rose', 'tulip')
    """

    paths: ClassVar[tuple[str, ...]] = ("path",)

    path: str
    size: int = 32
    channels: int = 1
    names: tuple[str, ...] = ()
    valid_images: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "size")

    @property
    def input_size(self) -> int:
        return self.size

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.names

    def load(self) -> ImageCollection:
        """All images, with labels in the order of `names`; read again only after a change."""
        path = str(Path(self.path).expanduser())
        images = _load(path, self.size, self.channels, self.valid_images, file_stamp(path))
        if not self.names:
            return images
        if has_idx_files(path):  # whose labels are numbers: they are named by their order
            if len(self.names) < len(images.classes):
                raise ConfigError(
                    f"names: needs {len(images.classes)}, one per label, got {len(self.names)}"
                )
            return replace(images, classes=self.names)
        names = fit_names(self.names, _counts(images), HINT)
        order = torch.tensor([names.index(name) for name in images.classes])
        return replace(
            images, classes=names, labels={k: order[v] for k, v in images.labels.items()}
        )

    def fit(self, seed: int) -> "ImagesTask":
        """With the names of the classes; raises for a split without images."""
        images = self.load()
        return replace(self, names=fit_names(images.classes, _counts(images), HINT))

    def contents(self) -> DataContents:
        path, report = Path(self.path).expanduser(), LoadReport()
        if has_idx_files(path):
            return DataContents(self._idx_contents(), report, [path])
        entries = find_images(path, report)
        return DataContents(_image_files(entries, report), report, [path])

    def data_files(self) -> list[Path]:
        path = Path(self.path).expanduser()
        if has_idx_files(path):
            return sorted(file for file in path.glob("*-ubyte*") if file.is_file())
        return [entry.path for entry in find_images(path, LoadReport())]

    def _idx_contents(self) -> Iterator[tuple[Split, ImageFile]]:
        collection = self.load()
        for split, images in collection.images.items():
            for image, label in zip(images, collection.labels[split].tolist(), strict=True):
                name, size = collection.classes[label], f"{image.shape[2]}x{image.shape[1]}"
                yield split, ImageFile(image.numpy().tobytes(), name, size, "L")

    def data_warnings(self) -> list[str]:
        """Files that could not be read, and classes without training images."""
        images = self.load()
        skipped = [str(images.report)] if images.report.skipped else []
        return skipped + class_warnings(images.classes, _counts(images))

    def resolve(
        self, model: VisionConfig | ResNetConfig, tokenizer: None
    ) -> VisionConfig | ResNetConfig:
        classes = len(self.names or self.fit(0).names)
        if isinstance(model, VisionConfig):
            return replace(model, classes=classes, channels=self.channels, image_size=self.size)
        return replace(model, classes=classes, channels=self.channels)

    def train_split(self, seed: int) -> LabeledImages:
        """The images of the train split, or a sample of them."""
        collection = self.load()
        images, labels = collection.images["train"], collection.labels["train"]
        count = len(labels) if self.train_images is None else self.train_images
        if not 0 < count <= len(labels):
            raise ConfigError(f"train_images: needs to be from 1 to {len(labels)}, got {count}")
        if count == len(labels):
            return images, labels
        # "pictures" names the random stream: to rename it would change every sample
        generator = seeded_generator(seed, "pictures")
        sample = torch.randperm(len(labels), generator=generator)[:count]
        return images[sample], labels[sample]

    def with_share(self, share: float) -> "ImagesTask":
        count = self.train_images or len(self.load().labels["train"])
        return replace(self, train_images=max(1, round(share * count)))

    def fit_baseline(self) -> Baseline:
        """The better of a linear model on the pixels and a small convolutional network."""
        images = self.load()
        valid = images.images["valid"], images.labels["valid"]
        name, model = fit_images(self.train_split(0), valid, len(images.classes))
        return Baseline(name, model, self)

    def evaluator(self, tokenizer: None, split: EvalSplit) -> ClassificationEvaluator:
        images = self.load()
        return ClassificationEvaluator(images.images[split], images.labels[split], images.classes)


HINT = "more images, or folders train, valid and test"


@lru_cache(2)
def _load(path: str, size: int, channels: int, valid_size: int, stamp: int) -> ImageCollection:
    return load_images(path, size=size, channels=channels, valid_size=valid_size)


def _counts(images: ImageCollection) -> dict[Split, Counter[str]]:
    labels = images.labels.items()
    return {split: Counter(images.classes[n] for n in rows.tolist()) for split, rows in labels}


def _image_files(
    entries: Sequence[ImageEntry], report: LoadReport
) -> Iterator[tuple[Split, ImageFile]]:
    for entry, split, _ in iter_readable(entries, open_image, report):  # in full: some are cut
        with Image.open(entry.path) as image:
            size, mode = f"{image.width}x{image.height}", image.mode
        digest = blake2b(entry.path.read_bytes(), digest_size=8).digest()
        yield split, ImageFile(digest, entry.label, size, mode, entry.path.name)
