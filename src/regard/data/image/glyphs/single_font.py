"""Letters and digits in one font, with affine distortion and noise; endless."""

import zlib
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from random import Random

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from regard.data.image.example import ImageExample
from regard.data.source import example_keys
from regard.data.split import Split
from regard.errors import ConfigError

SUPERSAMPLING = 3  # anti-aliasing: draw larger, then downsample


def check_classes(classes: str, size: int) -> None:
    """Raise unless there are two or more distinct classes and 8 pixels per side."""
    if len(set(classes)) < len(classes) or len(classes) < 2:
        raise ConfigError(f"classes: need two or more distinct ones, got {classes!r}")
    if size < 8:
        raise ConfigError(f"size: needs 8 or more, got {size}")


@dataclass(eq=False)
class Glyphs:
    """Rendered characters in Pillow's font: random affine transform, contrast and noise.

    An image depends on the seed and its number only; the splits never share one.

    Args:
        classes: the characters; the label is the index.
        size: pixels per side.
        translate: largest translation, as a fraction of the size.
        degrees: largest rotation.
        shear: largest shear.
        scale: largest relative change of size.
        noise: standard deviation of the noise.
        eval_size: number of images of the valid and test splits.

    >>> example = next(Glyphs("01", size=12).examples("train", seed=0))
    >>> example.image.shape, example.label
    (torch.Size([1, 12, 12]), 1)
    """

    classes: str = "0123456789"
    _: KW_ONLY
    size: int = 28
    translate: float = 0.12
    degrees: float = 20.0
    shear: float = 0.2
    scale: float = 0.25
    noise: float = 0.1
    eval_size: int = 1000

    def __post_init__(self) -> None:
        check_classes(self.classes, self.size)

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[ImageExample]:
        """Images from number `start`; train is endless, valid and test are fixed."""
        return map(self._draw, example_keys(split, seed, start, self.eval_size))

    def _draw(self, key: str) -> ImageExample:
        rng = Random(key)
        label = rng.randrange(len(self.classes))
        glyph = _glyph(self.classes[label], self.size * SUPERSAMPLING)
        placed = glyph.transform(glyph.size, Image.Transform.AFFINE, self._affine(rng))
        small = placed.resize((self.size, self.size), Image.Resampling.BOX)
        ink = 1 - 0.4 * rng.random()
        pixels = np.asarray(small, dtype=np.float32) * np.float32(ink / 255)
        if self.noise:
            noise = np.random.default_rng(zlib.crc32(key.encode()))
            pixels += np.float32(self.noise) * noise.standard_normal(pixels.shape, dtype=np.float32)
        return ImageExample(torch.from_numpy(pixels.clip(0, 1))[None], label)

    def _affine(self, rng: Random) -> tuple[float, float, float, float, float, float]:
        """Inverse affine transform around the centre, as Pillow expects it."""
        angle = np.deg2rad(rng.uniform(-self.degrees, self.degrees))
        scale = 1 / rng.uniform(1 - self.scale, 1 + self.scale)
        shear = rng.uniform(-self.shear, self.shear)
        cos, sin = float(np.cos(angle)) * scale, float(np.sin(angle)) * scale
        a, b, d, e = cos, sin + shear * cos, -sin, cos - shear * sin
        side = self.size * SUPERSAMPLING
        middle = side / 2
        x, y = (middle + rng.uniform(-self.translate, self.translate) * side for _ in range(2))
        return a, b, middle - a * x - b * y, d, e, middle - d * x - e * y


@lru_cache(None)
def _glyph(character: str, size: int) -> Image.Image:
    """The character, centred, in the font built into Pillow: the same on every machine."""
    image = Image.new("L", (size, size))
    font = ImageFont.load_default(0.8 * size)
    ImageDraw.Draw(image).text((size / 2, size / 2), character, 255, font, anchor="mm")
    return image
