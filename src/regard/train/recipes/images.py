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

from regard.data import Glyphs, Written
from regard.data.facts import Split
from regard.data.image_files import find_idx, read_idx
from regard.data.made import luck
from regard.data.picture_batches import PictureBatches
from regard.errors import ConfigError
from regard.models import ResNetConfig, VisionConfig
from regard.models.config import check_positive
from regard.train.config import TrainConfig
from regard.train.evaluation_images import ClassScores, GradedClassScores
from regard.train.loop import device_of
from regard.train.recipes.recipe import Part, Recipe

Pictures = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class _Altered:
    """How pictures are changed each time they are read; shared by what classifies pictures."""

    shift: int = 2  # pixels
    flip: bool = True
    erase: float = 0.0  # the largest side of what is made black, of the height
    mix: float = 0.0  # the chance of a rectangle of another picture, whose class then counts too
    pictures: int | None = None  # so many of the training ones, drawn by the seed; None: all

    def __post_init__(self) -> None:
        check_positive(self, "pictures")
        if self.shift < 0:
            raise ConfigError(f"shift: needs 0 pixels or more, got {self.shift}")
        for name in ("erase", "mix"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: needs to be from 0 to 1, got {getattr(self, name)}")

    @property
    def objective(self) -> str:
        """The loss, by its name."""
        return "class"

    def tokenizer(self, seed: int) -> None:
        """Pictures have no words."""
        return

    def train_part(self, seed: int) -> Pictures:
        """The pictures to learn from, as bytes, and their classes."""
        raise NotImplementedError

    def batches(
        self, tokenizer: Any, train: TrainConfig, *, rank: int = 0, world: int = 1
    ) -> PictureBatches:
        """So many pictures together as the training's `tokens` say."""
        pictures, labels = self.train_part(train.seed)
        device = device_of(train)
        return PictureBatches(
            pictures.to(device), labels.to(device), size=train.tokens, shift=self.shift,
            flip=self.flip, erase=self.erase, mix=self.mix, seed=train.seed, rank=rank, world=world,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FashionData(_Altered):
    """Clothes in grey, 28 by 28: the files of Fashion-MNIST, or of MNIST, in a folder.

    The last `held` training pictures are for valid. With none held, valid is scored on training
    pictures, and says nothing of new ones.

    >>> FashionData(folder="fashion-mnist").held
    5000
    """

    folder: str = "fashion-mnist"
    held: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.held < 60000:
            raise ConfigError(f"held: needs to be from 0 to 59999, got {self.held}")

    def sized(self, model: Any, tokenizer: None) -> Any:
        """The model's config with the number of classes."""
        return replace(model, classes=int(read(self.folder, "train")[1].max()) + 1)

    def train_part(self, seed: int) -> Pictures:
        """Without those that are held; some of them, drawn by the seed, if asked for."""
        pictures, labels = read(self.folder, "train")
        kept = len(labels) - self.held
        wanted = kept if self.pictures is None else self.pictures
        if not 0 < wanted <= kept:
            raise ConfigError(f"pictures: needs to be from 1 to {kept}, got {wanted}")
        if wanted == kept:
            return pictures[:kept], labels[:kept]
        chosen = torch.randperm(kept, generator=luck(seed, "pictures"))[:wanted]
        return pictures[chosen], labels[chosen]

    def scores(self, tokenizer: None, part: Part) -> ClassScores:
        """Loss and accuracy."""
        pictures, labels = read(self.folder, "train" if part == "valid" else "t10k")
        if part == "valid":
            first = -self.held if self.held else -1000
            return ClassScores(pictures[first:], labels[first:])
        return ClassScores(pictures, labels)


@lru_cache(4)
def read(folder: str, part: str) -> Pictures:
    """The pictures and classes of one part of an MNIST-like folder, as bytes."""
    images = read_idx(find_idx(Path(folder).expanduser(), f"{part}-images-idx3"))
    labels = read_idx(find_idx(Path(folder).expanduser(), f"{part}-labels-idx1"))
    if len(images) != len(labels):
        raise ConfigError(f"folder: needs a label for each of {len(images)}, got {len(labels)}")
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype("int64"))


@dataclass(frozen=True, kw_only=True)
class GlyphsData(_Altered):
    """Letters and digits, drawn; `pictures` of them to learn from, others to be scored on.

    With the faces "many" they are drawn as `Written`, and every picture, in training, evaluation
    and `regard classify`, is framed by its ink; with "one" as `Glyphs`, and taken whole.

    >>> GlyphsData(classes="0123456789", valid=9).scores(None, "valid").pictures.shape[1:]
    torch.Size([1, 24, 24])
    """

    classes: str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    size: int = 24
    noise: float = 0.1
    faces: Literal["one", "many"] = "many"
    fonts: str | None = None  # a folder of further faces to train on
    foreign: float = 0.2  # the share of pictures that show no class, in training
    workers: int = 1  # processes that draw
    pictures: int | None = 20000
    shift: int = 0
    flip: bool = False
    valid: int = 1000
    test: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "valid", "test", "workers")
        if self.pictures is None:
            raise ConfigError("pictures: needs to be a number, as they are drawn, got none")
        if not 0 <= self.foreign < 1:
            raise ConfigError(f"foreign: needs to be from 0 to below 1, got {self.foreign}")
        self.source()  # its errors, now

    @property
    def framed(self) -> bool:
        """Whether pictures are cut out by their ink before the model sees them."""
        return self.faces == "many"

    def source(self, foreign: float = 0.0) -> "Glyphs | Written":
        """What draws them."""
        told = {"size": self.size, "noise": self.noise, "count": 10**9}
        if not self.framed:
            return Glyphs(self.classes, **told)
        return Written(self.classes, foreign=foreign, fonts=self.fonts, **told)

    def sized(self, model: Any, tokenizer: None) -> Any:
        """The model's config with the number of classes, and of pixels where it has to know."""
        model = replace(model, classes=len(self.classes))
        return replace(model, image=self.size) if isinstance(model, VisionConfig) else model

    def train_part(self, seed: int) -> Pictures:
        """The first ones of this seed: of two sizes, the larger has the smaller in it."""
        assert self.pictures is not None
        return drawn(self.source(self.foreign), "train", seed, self.pictures, self.workers)

    def scores(self, tokenizer: None, part: Part) -> ClassScores:
        """Loss and accuracy on glyphs, and of "many" in faces, that nobody trains on."""
        return _held_out(self, part)


@lru_cache(4)
def _held_out(data: GlyphsData, part: Part) -> ClassScores:
    """The scores of a part; those of valid also grade answers to half as many foreign pictures."""
    count = data.valid if part == "valid" else data.test
    found = drawn(data.source(), part, 0, count)
    if part == "test" or not data.framed:
        return ClassScores(*found)
    foreign, _ = drawn(data.source(1.0), part, 0, (count + 1) // 2)
    return GradedClassScores(*found, foreign=foreign)


def drawn(
    source: Glyphs | Written, split: Split, seed: int, count: int, workers: int = 1
) -> Pictures:
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
    source: Glyphs | Written, split: Split, seed: int, start: int, stop: int
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
        data=FashionData(erase=0.25, mix=0.5),
        model=VisionConfig(
            classes=10, image=28, channels=1, patch=2, layers=6, dim=192, heads=6, dropout=0.1
        ),
        train=TrainConfig(
            steps=16000, tokens=512, lr=2e-3, warmup=800, decay=0.05, betas=(0.9, 0.95),
            smoothing=0.1, watch="accuracy", evaluate_every=4000, save_every=4000, log_every=100,
        ),
    )  # fmt: skip


def fashion_resnet() -> Recipe:
    """A residual network of the same size on Fashion-MNIST; its files have to be in `folder`.

    >>> fashion_resnet().model.widths
    (64, 128, 256)
    """
    return Recipe(
        name="fashion-resnet",
        data=FashionData(erase=0.5),
        model=ResNetConfig(classes=10, width=256),
        train=TrainConfig(
            steps=4858, tokens=512, lr=2e-3, warmup=404, decay=0.05, betas=(0.9, 0.95),
            smoothing=0.1, watch="accuracy", evaluate_every=809, save_every=2427, log_every=100,
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
            classes=36, image=24, channels=1, patch=4, layers=4, dim=64, heads=4, dropout=0.0
        ),
        train=TrainConfig(
            steps=3000, tokens=128, lr=2e-3, warmup=200, decay=0.05, watch="accuracy",
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
