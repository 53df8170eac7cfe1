"""Glyphs: letters and digits, rendered in many typefaces."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from multiprocessing import get_context
from typing import Any, Literal

import numpy as np
import torch

from regard.data import Glyphs, RenderedGlyphs
from regard.data.split import Split
from regard.errors import ConfigError
from regard.models import ResNetConfig, VisionConfig
from regard.models.config import check_positive
from regard.tasks.base import EvalSplit
from regard.tasks.classification.evaluator import (
    CalibratedClassificationEvaluator,
    ClassificationEvaluator,
)
from regard.tasks.classification.images import ImageTask, LabeledImages
from regard.tasks.registry import task


@task("glyphs")
@dataclass(frozen=True, kw_only=True)
class GlyphsTask(ImageTask):
    """Rendered letters and digits.

    Args:
        classes: the characters.
        image_size: side of the images, in pixels.
        noise: standard deviation of the noise.
        typefaces: "many" renders `RenderedGlyphs`, and every image, in training, evaluation and
            `regard classify`, is cropped to its ink; "one" renders `Glyphs`, without cropping.
        font_folder: further typefaces to train on.
        ood_fraction: of training images that show none of the classes.
        workers: processes that render.
        valid_size, test_size: images of these splits.

    >>> GlyphsTask(classes="0123456789", valid_size=9).evaluator(None, "valid").images.shape[1:]
    torch.Size([1, 24, 24])
    """

    classes: str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    image_size: int = 24
    noise: float = 0.1
    typefaces: Literal["one", "many"] = "many"
    font_folder: str | None = None
    ood_fraction: float = 0.2
    workers: int = 1
    train_images: int | None = 20000
    shift: int = 0
    flip: bool = False
    valid_size: int = 1000
    test_size: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "valid_size", "test_size", "workers")
        if self.train_images is None:
            raise ConfigError("train_images: needs to be a number, as they are drawn, got none")
        if not 0 <= self.ood_fraction < 1:
            raise ConfigError(
                f"ood_fraction: needs to be from 0 to below 1, got {self.ood_fraction}"
            )
        self.source()  # raises for settings that cannot be rendered

    @property
    def input_size(self) -> int:
        return self.image_size

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.classes)

    @property
    def crops_to_ink(self) -> bool:
        return self.typefaces == "many"

    def source(self, ood_fraction: float = 0.0) -> Glyphs | RenderedGlyphs:
        """The renderer."""
        options: dict[str, Any] = {"size": self.image_size, "noise": self.noise, "eval_size": 10**9}
        if not self.crops_to_ink:
            return Glyphs(self.classes, **options)
        return RenderedGlyphs(
            self.classes, ood_fraction=ood_fraction, font_folder=self.font_folder, **options
        )

    def resolve(
        self, model: VisionConfig | ResNetConfig, tokenizer: None
    ) -> VisionConfig | ResNetConfig:
        if isinstance(model, VisionConfig):
            return replace(model, classes=len(self.classes), image_size=self.image_size)
        return replace(model, classes=len(self.classes))

    def train_split(self, seed: int) -> LabeledImages:
        """The first `train_images` of this seed: a larger split contains the smaller."""
        assert self.train_images is not None
        return render_glyphs(
            self.source(self.ood_fraction), "train", seed, self.train_images, self.workers
        )

    def evaluator(self, tokenizer: None, split: EvalSplit) -> ClassificationEvaluator:
        """Loss and accuracy on held-out glyphs and, of "many", held-out typefaces."""
        return _evaluator(self, split)


@lru_cache(4)
def _evaluator(data: GlyphsTask, split: EvalSplit) -> ClassificationEvaluator:
    """The evaluator of a split; that of valid also grades, with half as many OOD images."""
    count = data.valid_size if split == "valid" else data.test_size
    images, labels = render_glyphs(data.source(), split, 0, count)
    if split == "test" or not data.crops_to_ink:
        return ClassificationEvaluator(images, labels, data.class_names)
    ood_images, _ = render_glyphs(data.source(1.0), split, 0, (count + 1) // 2)
    return CalibratedClassificationEvaluator(
        images, labels, ood_images=ood_images, names=data.class_names
    )


def render_glyphs(
    source: Glyphs | RenderedGlyphs, split: Split, seed: int, count: int, workers: int = 1
) -> LabeledImages:
    """The first `count` glyphs of a split as uint8 images, and their labels."""
    render = partial(_render, source, split, seed)
    spans = [(start, min(start + 1000, count)) for start in range(0, count, 1000)]
    rendered: Iterable[tuple[np.ndarray, list[int]]]
    if workers == 1 or len(spans) == 1:
        rendered = [render(*span) for span in spans]
    else:
        with get_context("spawn").Pool(min(workers, len(spans))) as pool:
            rendered = pool.starmap(render, spans)
    images, labels = zip(*rendered, strict=True)
    flat_labels = [label for chunk in labels for label in chunk]
    return torch.cat([torch.from_numpy(x) for x in images]), torch.tensor(flat_labels)


def _render(
    source: Glyphs | RenderedGlyphs, split: Split, seed: int, start: int, stop: int
) -> tuple[np.ndarray, list[int]]:
    """A span of glyphs, as arrays: between processes, tensors would take a file each."""
    examples = list(islice(source.examples(split, seed, start), stop - start))
    images = torch.stack([example.image for example in examples])
    labels = [example.label for example in examples]
    return (images * 255).round().to(torch.uint8).numpy(), labels
