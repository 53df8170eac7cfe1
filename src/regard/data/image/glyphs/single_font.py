"""Pictures with a class: letters and digits, drawn as many as are asked for."""

import zlib
from collections.abc import Iterator
from functools import lru_cache
from random import Random

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from regard.data.image.example import ImageExample
from regard.data.split import Split
from regard.errors import ConfigError

SUPERSAMPLING = 3  # a glyph is drawn this many times larger and then made small: smooth edges


def check_classes(classes: str, size: int) -> None:
    """Raise unless there are two or more different classes, and pixels to draw them with."""
    if len(set(classes)) < len(classes) or len(classes) < 2:
        raise ConfigError(f"classes: need two or more different ones, got {classes!r}")
    if size < 8:
        raise ConfigError(f"size: needs 8 or more, got {size}")


class Glyphs:
    """Letters and digits, moved, turned, sheared, made larger or smaller, and noised; endless.

    Each picture depends on the seed and its number alone. Training, valid and test are drawn from
    different numbers, so that none is seen twice.

    >>> picture = next(Glyphs("01", size=12).examples("train", seed=0))
    >>> picture.image.shape, picture.label
    (torch.Size([1, 12, 12]), 1)
    """

    def __init__(
        self,
        classes: str = "0123456789",
        *,
        size: int = 28,
        translate: float = 0.12,
        degrees: float = 20.0,
        shear: float = 0.2,
        scale: float = 0.25,
        noise: float = 0.1,
        eval_size: int = 1000,
    ):
        check_classes(classes, size)
        self.classes, self.size, self.eval_size = classes, size, eval_size
        self.translate, self.degrees, self.shear = translate, degrees, shear
        self.scale, self.noise = scale, noise

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[ImageExample]:
        """Pictures from the one numbered `start`: for ever for train, the same ones otherwise."""
        number = start
        while split == "train" or number < self.eval_size:
            yield self._draw(f"train/{seed}/{number}" if split == "train" else f"{split}/{number}")
            number += 1

    def _draw(self, key: str) -> ImageExample:
        chance = Random(key)
        label = chance.randrange(len(self.classes))
        glyph = _glyph(self.classes[label], self.size * SUPERSAMPLING)
        placed = glyph.transform(glyph.size, Image.Transform.AFFINE, self._motion(chance))
        small = placed.resize((self.size, self.size), Image.Resampling.BOX)
        ink = 1 - 0.4 * chance.random()
        pixels = np.asarray(small, dtype=np.float32) * np.float32(ink / 255)
        if self.noise:
            grain = np.random.default_rng(zlib.crc32(key.encode()))
            pixels += np.float32(self.noise) * grain.standard_normal(pixels.shape, dtype=np.float32)
        return ImageExample(torch.from_numpy(pixels.clip(0, 1))[None], label)

    def _motion(self, chance: Random) -> tuple[float, float, float, float, float, float]:
        """Where each pixel of the picture comes from in the glyph, about the middle."""
        angle = np.deg2rad(chance.uniform(-self.degrees, self.degrees))
        scale = 1 / chance.uniform(1 - self.scale, 1 + self.scale)
        shear = chance.uniform(-self.shear, self.shear)
        cos, sin = float(np.cos(angle)) * scale, float(np.sin(angle)) * scale
        a, b, d, e = cos, sin + shear * cos, -sin, cos - shear * sin
        whole = self.size * SUPERSAMPLING
        middle = whole / 2
        x = middle + chance.uniform(-self.translate, self.translate) * whole
        y = middle + chance.uniform(-self.translate, self.translate) * whole
        return a, b, middle - a * x - b * y, d, e, middle - d * x - e * y


@lru_cache(None)
def _glyph(character: str, size: int) -> Image.Image:
    """The character in the middle, in the face that comes with Pillow: the same everywhere."""
    picture = Image.new("L", (size, size))
    face = ImageFont.load_default(0.8 * size)
    ImageDraw.Draw(picture).text((size / 2, size / 2), character, 255, face, anchor="mm")
    return picture
