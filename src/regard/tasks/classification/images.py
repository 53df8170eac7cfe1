"""Pictures and their classes: clothes from files, and letters and digits that are drawn."""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regard.data import Glyphs, RenderedGlyphs
from regard.data.generated_batches import seeded_generator
from regard.data.image.idx import find_idx, read_idx
from regard.data.image.image_batches import ImageBatches
from regard.data.text.phrases.facts import Split
from regard.errors import ConfigError
from regard.models import ResNetConfig, VisionConfig
from regard.models.config import check_positive
from regard.tasks.classification.evaluator import (
    CalibratedClassificationEvaluator,
    ClassificationEvaluator,
)
from regard.tasks.recipe import EvalSplit, Recipe
from regard.train.config import TrainConfig
from regard.train.loop import select_device

LabeledImages = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class _Altered:
    """How pictures are changed each time they are read; shared by what classifies pictures."""

    shift: int = 2  # pixels
    flip: bool = True
    random_erasing: float = 0.0  # the largest side of what is made black, of the height
    cutmix: float = 0.0  # the chance of a rectangle of another picture, whose class then counts too
    train_images: int | None = None  # so many of the training ones, drawn by the seed; None: all

    def __post_init__(self) -> None:
        check_positive(self, "train_images")
        if self.shift < 0:
            raise ConfigError(f"shift: needs 0 pixels or more, got {self.shift}")
        for name in ("random_erasing", "cutmix"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: needs to be from 0 to 1, got {getattr(self, name)}")

    @property
    def objective(self) -> str:
        """The loss, by its name."""
        return "class"

    def tokenizer(self, seed: int) -> None:
        """Pictures have no words."""
        return

    def train_split(self, seed: int) -> LabeledImages:
        """The pictures to learn from, as bytes, and their classes."""
        raise NotImplementedError

    def batches(
        self, tokenizer: Any, train: TrainConfig, *, rank: int = 0, world_size: int = 1
    ) -> ImageBatches:
        """So many pictures together as the training's `tokens` say."""
        pictures, labels = self.train_split(train.seed)
        device = select_device(train)
        return ImageBatches(
            pictures.to(device), labels.to(device), batch_size=train.batch_tokens, shift=self.shift,
            flip=self.flip, random_erasing=self.random_erasing, cutmix=self.cutmix, seed=train.seed, rank=rank, world_size=world_size,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FashionData(_Altered):
    """Clothes in grey, 28 by 28: the files of Fashion-MNIST, or of MNIST, in a folder.

    The last `held` training pictures are for valid. With none held, valid is scored on training
    pictures, and says nothing of new ones.

    >>> FashionData(folder="fashion-mnist").valid_images
    5000
    """

    folder: str = "fashion-mnist"
    valid_images: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.valid_images < 60000:
            raise ConfigError(f"held: needs to be from 0 to 59999, got {self.valid_images}")

    def resolve(self, model: Any, tokenizer: None) -> Any:
        """The model's config with the number of classes."""
        return replace(model, classes=int(read_mnist(self.folder, "train")[1].max()) + 1)

    def train_split(self, seed: int) -> LabeledImages:
        """Without those that are held; some of them, drawn by the seed, if asked for."""
        pictures, labels = read_mnist(self.folder, "train")
        kept = len(labels) - self.valid_images
        wanted = kept if self.train_images is None else self.train_images
        if not 0 < wanted <= kept:
            raise ConfigError(f"pictures: needs to be from 1 to {kept}, got {wanted}")
        if wanted == kept:
            return pictures[:kept], labels[:kept]
        chosen = torch.randperm(kept, generator=seeded_generator(seed, "pictures"))[:wanted]
        return pictures[chosen], labels[chosen]

    def evaluator(self, tokenizer: None, split: EvalSplit) -> ClassificationEvaluator:
        """Loss and accuracy."""
        pictures, labels = read_mnist(self.folder, "train" if split == "valid" else "t10k")
        if split == "valid":
            first = -self.valid_images if self.valid_images else -1000
            return ClassificationEvaluator(pictures[first:], labels[first:])
        return ClassificationEvaluator(pictures, labels)


@lru_cache(4)
def read_mnist(folder: str, split: str) -> LabeledImages:
    """The pictures and classes of one part of an MNIST-like folder, as bytes."""
    images = read_idx(find_idx(Path(folder).expanduser(), f"{split}-images-idx3"))
    labels = read_idx(find_idx(Path(folder).expanduser(), f"{split}-labels-idx1"))
    if len(images) != len(labels):
        raise ConfigError(f"folder: needs a label for each of {len(images)}, got {len(labels)}")
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype("int64"))


@dataclass(frozen=True, kw_only=True)
class GlyphsData(_Altered):
    """Letters and digits, drawn; `pictures` of them to learn from, others to be scored on.

    With the faces "many" they are drawn as `RenderedGlyphs`, and every picture, in training, evaluation
    and `regard classify`, is framed by its ink; with "one" as `Glyphs`, and taken whole.

    >>> GlyphsData(classes="0123456789", valid_size=9).scores(None, "valid").train_images.shape[1:]
    torch.Size([1, 24, 24])
    """

    classes: str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    image_size: int = 24
    noise: float = 0.1
    typefaces: Literal["one", "many"] = "many"
    font_folder: str | None = None  # a folder of further faces to train on
    ood_fraction: float = 0.2  # the share of pictures that show no class, in training
    workers: int = 1  # processes that draw
    train_images: int | None = 20000
    shift: int = 0
    flip: bool = False
    valid_size: int = 1000
    test_size: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "valid_size", "test_size", "workers")
        if self.train_images is None:
            raise ConfigError("pictures: needs to be a number, as they are drawn, got none")
        if not 0 <= self.ood_fraction < 1:
            raise ConfigError(f"foreign: needs to be from 0 to below 1, got {self.ood_fraction}")
        self.source()  # its errors, now

    @property
    def crops_to_ink(self) -> bool:
        """Whether pictures are cut out by their ink before the model sees them."""
        return self.typefaces == "many"

    def source(self, ood_fraction: float = 0.0) -> "Glyphs | RenderedGlyphs":
        """What draws them."""
        told = {"size": self.image_size, "noise": self.noise, "count": 10**9}
        if not self.crops_to_ink:
            return Glyphs(self.classes, **told)
        return RenderedGlyphs(
            self.classes, ood_fraction=ood_fraction, font_folder=self.font_folder, **told
        )

    def resolve(self, model: Any, tokenizer: None) -> Any:
        """The model's config with the number of classes, and of pixels where it has to know."""
        model = replace(model, classes=len(self.classes))
        return (
            replace(model, image_size=self.image_size) if isinstance(model, VisionConfig) else model
        )

    def train_split(self, seed: int) -> LabeledImages:
        """The first ones of this seed: of two sizes, the larger has the smaller in it."""
        assert self.train_images is not None
        return render_glyphs(
            self.source(self.ood_fraction), "train", seed, self.train_images, self.workers
        )

    def evaluator(self, tokenizer: None, split: EvalSplit) -> ClassificationEvaluator:
        """Loss and accuracy on glyphs, and of "many" in faces, that nobody trains on."""
        return _held_out(self, split)


@lru_cache(4)
def _held_out(data: GlyphsData, part: EvalSplit) -> ClassificationEvaluator:
    """The scores of a part; those of valid also grade answers to half as many foreign pictures."""
    count = data.valid_size if part == "valid" else data.test_size
    found = render_glyphs(data.source(), part, 0, count)
    if part == "test" or not data.crops_to_ink:
        return ClassificationEvaluator(*found)
    foreign, _ = render_glyphs(data.source(1.0), part, 0, (count + 1) // 2)
    return CalibratedClassificationEvaluator(*found, ood_images=foreign)


def render_glyphs(
    source: Glyphs | RenderedGlyphs, split: Split, seed: int, count: int, workers: int = 1
) -> LabeledImages:
    """So many glyphs, as bytes, and their classes; drawn by several processes if asked."""
    draw = partial(_draw, source, split, seed)
    spans = [(at, min(at + 1000, count)) for at in range(0, count, 1000)]
    if workers == 1 or len(spans) == 1:
        made = [draw(*span) for span in spans]
    else:
        with get_context("spawn").Pool(min(workers, len(spans))) as pool:
            made = pool.starmap(draw, spans)
    pictures, labels = zip(*made, strict=True)
    return torch.cat([torch.from_numpy(one) for one in pictures]), torch.tensor(
        [x for one in labels for x in one]
    )


def _draw(
    source: Glyphs | RenderedGlyphs, split: Split, seed: int, start: int, stop: int
) -> tuple[np.ndarray, list[int]]:
    """Those of some numbers: as arrays, which go from process to process without a file each."""
    found = list(islice(source.examples(split, seed, start), stop - start))
    pictures = torch.stack([one.image for one in found])
    return (pictures * 255).round().to(torch.uint8).numpy(), [one.label for one in found]


def fashion_vit() -> Recipe:
    """A Vision Transformer on Fashion-MNIST; its files have to be in `folder`.

    >>> fashion_vit().model.dim
    192
    """
    return Recipe(
        name="fashion-vit",
        data=FashionData(random_erasing=0.25, cutmix=0.5),
        model=VisionConfig(
            classes=10, image_size=28, channels=1, patch_size=2, layers=6, dim=192, heads=6, dropout=0.1
        ),
        train=TrainConfig(
            steps=16000, batch_tokens=512, lr=2e-3, warmup=800, weight_decay=0.05, betas=(0.9, 0.95),
            label_smoothing=0.1, monitor="accuracy", evaluate_every=4000, save_every=4000, log_every=100,
        ),
    )  # fmt: skip


def fashion_resnet() -> Recipe:
    """A residual network of the same size on Fashion-MNIST; its files have to be in `folder`.

    >>> fashion_resnet().model.widths
    (64, 128, 256)
    """
    return Recipe(
        name="fashion-resnet",
        data=FashionData(random_erasing=0.5),
        model=ResNetConfig(classes=10, width=256),
        train=TrainConfig(
            steps=4858, batch_tokens=512, lr=2e-3, warmup=404, weight_decay=0.05, betas=(0.9, 0.95),
            label_smoothing=0.1, monitor="accuracy", evaluate_every=809, save_every=2427, log_every=100,
        ),
    )  # fmt: skip


def glyphs() -> Recipe:
    """A small Vision Transformer on letters and digits that are drawn in many faces, on a CPU.

    >>> glyphs().model.tokens
    37
    """
    return Recipe(
        name="glyphs",
        data=GlyphsData(shift=1),
        model=VisionConfig(
            classes=36, image_size=24, channels=1, patch_size=4, layers=4, dim=64, heads=4, dropout=0.0
        ),
        train=TrainConfig(
            steps=3000, batch_tokens=128, lr=2e-3, warmup=200, weight_decay=0.05, monitor="accuracy",
            evaluate_every=500, save_every=1000, log_every=50,
        ),
    )  # fmt: skip


def glyphs_resnet() -> Recipe:
    """The convolutional network of the same size on the same glyphs.

    >>> glyphs_resnet().model.classes
    36
    """
    base = glyphs()
    return replace(base, name="glyphs-resnet", model=ResNetConfig(classes=36, width=68))
