"""Pictures and their classes: clothes from files, and letters and digits that are drawn."""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data import Glyphs
from regard.data.facts import Split
from regard.data.image_files import find_idx, read_idx
from regard.data.made import luck
from regard.data.picture_batches import PictureBatches
from regard.errors import ConfigError
from regard.models import ResNetConfig, VisionConfig
from regard.models.config import check_positive
from regard.train.config import TrainConfig
from regard.train.evaluation_images import ClassScores
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

    >>> GlyphsData(classes="0123456789").scores(None, "valid").pictures.shape[1:]
    torch.Size([1, 16, 16])
    """

    classes: str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    size: int = 16
    noise: float = 0.1
    pictures: int | None = 20000
    shift: int = 0
    flip: bool = False
    valid: int = 1000
    test: int = 4000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "valid", "test")
        if self.pictures is None:
            raise ConfigError("pictures: needs to be a number, as they are drawn, got none")
        self.source()  # its errors, now

    def source(self) -> Glyphs:
        """What draws them."""
        return Glyphs(self.classes, size=self.size, noise=self.noise, count=10**9)

    def sized(self, model: Any, tokenizer: None) -> Any:
        """The model's config with the number of classes, and of pixels where it has to know."""
        model = replace(model, classes=len(self.classes))
        return replace(model, image=self.size) if isinstance(model, VisionConfig) else model

    def train_part(self, seed: int) -> Pictures:
        """The first ones of this seed: of two sizes, the larger has the smaller in it."""
        assert self.pictures is not None
        return drawn(self.source(), "train", seed, self.pictures)

    def scores(self, tokenizer: None, part: Part) -> ClassScores:
        """Loss and accuracy on glyphs that nobody trains on."""
        count = self.valid if part == "valid" else self.test
        return ClassScores(*drawn(self.source(), part, 0, count))


def drawn(source: Glyphs, split: Split, seed: int, count: int) -> Pictures:
    """So many glyphs, as bytes, and their classes."""
    found = list(islice(source.examples(split, seed), count))
    pictures = torch.stack([one.image for one in found])
    return (pictures * 255).round().to(torch.uint8), torch.tensor([one.label for one in found])


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
    """A small Vision Transformer on letters and digits that are drawn, on a CPU.

    >>> glyphs().model.tokens
    17
    """
    return Recipe(
        name="glyphs",
        data=GlyphsData(),
        model=VisionConfig(
            classes=36, image=16, channels=1, patch=4, layers=4, dim=64, heads=4, dropout=0.0
        ),
        train=TrainConfig(
            steps=4000, tokens=128, lr=2e-3, warmup=200, decay=0.05, watch="accuracy",
            evaluate_every=1000, save_every=2000, log_every=50,
        ),
    )  # fmt: skip


def glyphs_resnet() -> Recipe:
    """The convolutional network of the same size on the same glyphs.

    >>> glyphs_resnet().model.classes
    36
    """
    base = glyphs()
    return replace(base, name="glyphs-resnet", model=ResNetConfig(classes=36, width=68))
