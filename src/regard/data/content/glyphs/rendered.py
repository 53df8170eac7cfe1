"""Letters and digits in one font with noise, or in many with image artefacts; endless."""

import io
import math
import zlib
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from random import Random

import numpy as np
import torch
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

from regard.data.content.glyphs.fonts import find_fonts, load_font
from regard.data.content.glyphs.ood_images import draw_ood_image
from regard.data.image.image_batches import ImageExample
from regard.data.image.image_file import crop_to_ink
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


OOD_LABEL = -1  # label of an image that shows none of the classes
FONT_SIZES = (11, 72)  # pixels; larger ones look the same after cropping


@dataclass(eq=False)
class RenderedGlyphs:
    """Characters in many fonts, cropped to their ink as `regard classify` crops a file; endless.

    Each is drawn on a small page: random font, size, rotation, shear, stretch and stroke width,
    light on dark or dark on light, with uneven lighting, noise, blur or JPEG artefacts. An image
    depends on the seed and its number only; fonts of valid and test are held out of training.

    Args:
        classes: the characters; the label is the index.
        size: pixels per side.
        noise: scale of the noise.
        ood_fraction: fraction of images that show none of the classes; their label is -1.
        font_folder: further fonts for training.
        eval_size: number of images of the valid and test splits.

    >>> glyphs = RenderedGlyphs("AB", size=24)
    >>> next(glyphs.examples("train", seed=0)).image.shape
    torch.Size([1, 24, 24])
    """

    classes: str = "0123456789"
    _: KW_ONLY
    size: int = 24
    noise: float = 0.1
    ood_fraction: float = 0.0
    font_folder: str | None = None
    eval_size: int = 1000

    def __post_init__(self) -> None:
        check_classes(self.classes, self.size)

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[ImageExample]:
        """Images from number `start`; train is endless, valid and test are fixed."""
        for key in example_keys(split, seed, start, self.eval_size):
            page, label = self.draw_page(split, key)
            yield ImageExample(crop_to_ink(page, self.size), label)

    def draw_page(self, split: Split, key: str) -> tuple[Image.Image, int]:
        """Grey image of any size, before cropping, and its label."""
        rng, label = Random(key), OOD_LABEL
        font = rng.choice(find_fonts(split, characters=self.classes, folder=self.font_folder))
        if rng.random() < self.ood_fraction:
            content = draw_ood_image(rng, font, self.classes)
        else:
            label = rng.randrange(len(self.classes))
            content = self.classes[label]
        if isinstance(content, str):
            content = _add_margin(rng, _draw_text(rng, font, content))
        elif rng.random() >= 0.5:  # the others fill the image, as photographs do
            content = _add_margin(rng, content)
        return self._render(rng, content), label

    def _render(self, rng: Random, mask: Image.Image) -> Image.Image:
        """Grey levels, lighting, noise, blur and JPEG artefacts for a mask."""
        noise = np.random.default_rng(rng.getrandbits(32))
        contrast = rng.uniform(0.25, 1) if rng.random() < 0.5 else rng.uniform(0.8, 1)
        low = rng.uniform(0, 1 - contrast)
        ground, ink = (low, low + contrast) if rng.random() < 0.5 else (low + contrast, low)
        if rng.random() < 0.1:
            mask = mask.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.03 * max(mask.size))))
        pixels = np.asarray(mask, dtype=np.float32) * np.float32((ink - ground) / 255) + ground
        if rng.random() < 0.2:  # light from one side
            y, x = np.mgrid[-0.5 : 0.5 : mask.size[1] * 1j, -0.5 : 0.5 : mask.size[0] * 1j]
            angle, strength = rng.uniform(0, 2 * math.pi), contrast * rng.uniform(0, 0.6)
            pixels = pixels + strength * (math.cos(angle) * x + math.sin(angle) * y)
        if self.noise and rng.random() < 0.35:
            strength = contrast * self.noise * rng.random() * 1.5
            pixels = pixels + strength * noise.standard_normal(pixels.shape, dtype=np.float32)
        if self.noise and rng.random() < 0.03:
            salt = noise.random(pixels.shape) < rng.uniform(0, 0.02)
            pixels = np.where(salt, noise.random(pixels.shape) < 0.5, pixels)
        page = Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))
        if rng.random() < 0.12:
            buffer = io.BytesIO()
            page.save(buffer, "JPEG", quality=rng.randrange(20, 90))
            page = Image.open(buffer)
            page.load()
        return page


def _draw_text(rng: Random, font_name: str, text: str) -> Image.Image:
    """Text as a mask, white on black, with random size, stroke width and transform."""
    size = round(math.exp(rng.uniform(*map(math.log, FONT_SIZES))))
    font = load_font(font_name, size)
    bold = rng.choice((1, 1, 2)) if size > 24 and rng.random() < 0.12 else 0
    left, top, right, bottom = font.getbbox(text, stroke_width=bold)
    margin = 3 + bold
    mask = Image.new("L", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin))
    draw = ImageDraw.Draw(mask)
    draw.fontmode = "1" if rng.random() < 0.08 else "L"
    draw.text((margin - left, margin - top), text, 255, font, stroke_width=bold)
    if size > 30 and not bold and rng.random() < 0.35:
        thin = rng.random() < 0.5
        filtered = mask.filter((ImageFilter.MinFilter if thin else ImageFilter.MaxFilter)(3))
        mask = filtered if filtered.getbbox() and np.asarray(filtered).max() > 200 else mask
    if size > 40 and rng.random() < 0.05:  # outline only
        mask = ImageChops.subtract(mask.filter(ImageFilter.MaxFilter(3)), mask)
    return _transform(rng, mask) if rng.random() < 0.75 else mask


def _transform(rng: Random, mask: Image.Image) -> Image.Image:
    """Random rotation up to 15 degrees, shear, and stretch up to a third."""
    angle = math.radians(rng.triangular(-15, 15, 0))
    shear = rng.triangular(-0.3, 0.3, 0)
    stretch = math.exp(rng.triangular(-0.35, 0.35, 0))
    cos, sin = math.cos(angle), math.sin(angle)
    # x' = A x around the centre; Pillow takes the inverse, A⁻¹
    a, b, c, d = stretch * cos, shear * cos - sin, stretch * sin, shear * sin + cos
    width, height = mask.size
    wide = math.ceil(abs(a) * width + abs(b) * height) + 2
    tall = math.ceil(abs(c) * width + abs(d) * height) + 2
    det = a * d - b * c
    a, b, c, d = d / det, -b / det, -c / det, a / det
    x, y = width / 2 - a * wide / 2 - b * tall / 2, height / 2 - c * wide / 2 - d * tall / 2
    matrix = (a, b, x, c, d, y)
    return mask.transform((wide, tall), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)


def _add_margin(rng: Random, mask: Image.Image) -> Image.Image:
    """A mask with a random margin: none, as of a screenshot, or as of a page."""
    box = mask.getbbox()
    mask = mask.crop(box) if box else mask
    kind, longest = rng.random(), max(mask.size)
    low, high = (0.0, 0.04) if kind < 0.08 else (0.08, 0.7) if kind < 0.85 else (0.3, 2.0)
    sides = [round(longest * rng.uniform(low, high)) for _ in range(4)]
    page = Image.new("L", (mask.size[0] + sides[0] + sides[1], mask.size[1] + sides[2] + sides[3]))
    page.paste(mask, (sides[0], sides[2]))
    return page
