"""Letters and digits as people show them: many faces, sizes, colours, margins and flaws."""

import io
import math
from collections.abc import Iterator
from random import Random

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from regard.data.image.example import ImageExample
from regard.data.image.glyphs.fonts import find_fonts, load_font
from regard.data.image.glyphs.ood_images import draw_ood_image
from regard.data.image.glyphs.single_font import check_classes
from regard.data.image.ink_crop import crop_to_ink
from regard.data.split import Split

OOD_LABEL = -1  # the label of a picture that shows no class
FONT_SIZES = (11, 72)  # pixels; a larger one is no different once it is framed


class RenderedGlyphs:
    """Endless pictures of letters and digits in many faces, framed as `classify` frames a file.

    Each is drawn as a small page: a character in some face and size, turned, sheared and stretched
    a little, thick or thin, light on dark or dark on light, on even or uneven ground, with noise,
    blur or the blocks of a JPEG; `crop_to_ink` then cuts the ink out. The share `foreign` of the
    pictures shows something else, and has the label -1. Each depends on the seed and its number
    alone; the faces of valid and test are held out of training.

    >>> written = RenderedGlyphs("AB", size=24)
    >>> next(written.examples("train", seed=0)).image.shape
    torch.Size([1, 24, 24])
    """

    def __init__(
        self,
        classes: str = "0123456789",
        *,
        size: int = 24,
        noise: float = 0.1,
        ood_fraction: float = 0.0,
        font_folder: str | None = None,
        eval_size: int = 1000,
    ):
        check_classes(classes, size)
        self.classes, self.size, self.noise = classes, size, noise
        self.ood_fraction, self.font_folder, self.eval_size = ood_fraction, font_folder, eval_size

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[ImageExample]:
        """Pictures from the one numbered `start`: for ever for train, the same ones otherwise."""
        number = start
        while split == "train" or number < self.eval_size:
            page, label = self.draw_page(split, seed, number)
            yield ImageExample(crop_to_ink(page, self.size), label)
            number += 1

    def draw_page(self, split: Split, seed: int, number: int) -> tuple[Image.Image, int]:
        """The picture of a number before it is framed, in grey and of any size; and its label."""
        rng = Random(f"train/{seed}/{number}" if split == "train" else f"{split}/{number}")
        faces = find_fonts(split, characters=self.classes, folder=self.font_folder)
        face = rng.choice(faces)
        if rng.random() < self.ood_fraction:
            mask = draw_ood_image(rng, face, self.classes)
            if isinstance(mask, str):
                return self._lit(rng, _placed(rng, _set(rng, face, mask))), OOD_LABEL
            # half of them fill the whole picture, as noise and photographs do
            return self._lit(rng, mask if rng.random() < 0.5 else _placed(rng, mask)), OOD_LABEL
        label = rng.randrange(len(self.classes))
        return self._lit(rng, _placed(rng, _set(rng, face, self.classes[label]))), label

    def _lit(self, rng: Random, mask: Image.Image) -> Image.Image:
        """Ink of one colour on ground of another, with the flaws of pictures."""
        grain = np.random.default_rng(rng.getrandbits(32))
        contrast = rng.uniform(0.25, 1) if rng.random() < 0.5 else rng.uniform(0.8, 1)
        low = rng.uniform(0, 1 - contrast)
        ground, ink = (low, low + contrast) if rng.random() < 0.5 else (low + contrast, low)
        if rng.random() < 0.1:
            mask = mask.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.03 * max(mask.size))))
        pixels = np.asarray(mask, dtype=np.float32) * np.float32((ink - ground) / 255) + ground
        if rng.random() < 0.2:  # light that falls from a side
            y, x = np.mgrid[-0.5 : 0.5 : mask.size[1] * 1j, -0.5 : 0.5 : mask.size[0] * 1j]
            turn, much = rng.uniform(0, 2 * math.pi), contrast * rng.uniform(0, 0.6)
            pixels = pixels + much * (math.cos(turn) * x + math.sin(turn) * y)
        if self.noise and rng.random() < 0.35:
            much = contrast * self.noise * rng.random() * 1.5
            pixels = pixels + much * grain.standard_normal(pixels.shape, dtype=np.float32)
        if self.noise and rng.random() < 0.03:
            salt = grain.random(pixels.shape) < rng.uniform(0, 0.02)
            pixels = np.where(salt, grain.random(pixels.shape) < 0.5, pixels)
        page = Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))
        if rng.random() < 0.12:
            held = io.BytesIO()
            page.save(held, "JPEG", quality=rng.randrange(20, 90))
            page = Image.open(held)
            page.load()
        return page


def _set(rng: Random, face: str, text: str) -> Image.Image:
    """Text as a mask, white on black: of some size and weight, turned, sheared and stretched."""
    size = round(math.exp(rng.uniform(*map(math.log, FONT_SIZES))))
    font = load_font(face, size)
    bold = rng.choice((1, 1, 2)) if size > 24 and rng.random() < 0.12 else 0
    left, top, right, bottom = font.getbbox(text, stroke_width=bold)
    room = 3 + bold
    mask = Image.new("L", (int(right - left) + 2 * room, int(bottom - top) + 2 * room))
    draw = ImageDraw.Draw(mask)
    draw.fontmode = "1" if rng.random() < 0.08 else "L"
    draw.text((room - left, room - top), text, 255, font, stroke_width=bold)
    if size > 30 and not bold and rng.random() < 0.35:
        # thin as a hairline or thick as a poster, as far as the strokes are wide
        thin = rng.random() < 0.5
        changed = mask.filter((ImageFilter.MinFilter if thin else ImageFilter.MaxFilter)(3))
        mask = changed if changed.getbbox() and np.asarray(changed).max() > 200 else mask
    if size > 40 and rng.random() < 0.05:  # an outline alone
        mask = ImageChops.subtract(mask.filter(ImageFilter.MaxFilter(3)), mask)
    return _moved(rng, mask) if rng.random() < 0.75 else mask


def _moved(rng: Random, mask: Image.Image) -> Image.Image:
    """A mask turned by up to 15 degrees, sheared, and stretched by up to a third."""
    angle = math.radians(rng.triangular(-15, 15, 0))
    shear = rng.triangular(-0.3, 0.3, 0)
    stretch = math.exp(rng.triangular(-0.35, 0.35, 0))
    cos, sin = math.cos(angle), math.sin(angle)
    # x' = A x about the middle; transform wants where a pixel comes from, A⁻¹
    a, b, c, d = stretch * cos, shear * cos - sin, stretch * sin, shear * sin + cos
    width, height = mask.size
    wide = math.ceil(abs(a) * width + abs(b) * height) + 2
    tall = math.ceil(abs(c) * width + abs(d) * height) + 2
    det = a * d - b * c
    back = (d / det, -b / det, -c / det, a / det)
    x = width / 2 - back[0] * wide / 2 - back[1] * tall / 2
    y = height / 2 - back[2] * wide / 2 - back[3] * tall / 2
    matrix = (back[0], back[1], x, back[2], back[3], y)
    return mask.transform((wide, tall), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)


def _placed(rng: Random, mask: Image.Image) -> Image.Image:
    """A mask with a margin: none, one as a screenshot has, or a page with a letter in a corner."""
    box = mask.getbbox()
    mask = mask.crop(box) if box else mask
    kind, longest = rng.random(), max(mask.size)
    if kind < 0.08:
        least, most = 0.0, 0.04
    elif kind < 0.85:
        least, most = 0.08, 0.7
    else:
        least, most = 0.3, 2.0
    sides = [round(longest * rng.uniform(least, most)) for _ in range(4)]
    page = Image.new("L", (mask.size[0] + sides[0] + sides[1], mask.size[1] + sides[2] + sides[3]))
    page.paste(mask, (sides[0], sides[2]))
    return page
