"""Out-of-distribution images for the glyphs task: noise, shapes, other characters, words."""

import math
from collections.abc import Callable
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from regard.data.content.glyphs.fonts import has_glyphs, load_font

# none that looks like a capital or digit in some font: no l, o, s, y, no | or -
OTHER_CHARACTERS = "adefhmnrt" + "#%&@?*+=<>~{}:" + "€§ΔΞΠΣΦΨΩДЖИЛЦШЩЫЭЮЯ"
MIRRORED_CHARACTERS = "BCEFGJKLPR2479"
WORD_CHARACTERS = "ABCDEGHKMNPRSTUXZabdeghknprstu0123456789"


def draw_ood_image(rng: Random, font: str, classes: str) -> Image.Image | str:
    """A mask that shows none of the classes, white on black, or other text to be rendered."""
    if rng.random() < 0.35:
        return _text(rng, font, classes)
    return rng.choice(OOD_IMAGE_KINDS)(rng)


def _text(rng: Random, font_name: str, classes: str) -> Image.Image | str:
    kind = rng.random()
    known = [x for x in OTHER_CHARACTERS if x not in classes and has_glyphs(font_name, x)]
    if kind < 0.6 and known:
        return rng.choice(known)
    if kind < 0.85:
        word = [rng.choice(WORD_CHARACTERS) for _ in range(rng.randrange(2, 6))]
        return "".join(x for x in word if has_glyphs(font_name, x)) or "??"
    font = load_font(font_name, rng.randrange(20, 60))
    letter = rng.choice(MIRRORED_CHARACTERS)
    box = font.getbbox(letter)
    mask = Image.new("L", (int(box[2]) + 4, int(box[3]) + 4))
    ImageDraw.Draw(mask).text((2, 2), letter, 255, font)
    return mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _side(rng: Random) -> int:
    return round(math.exp(rng.uniform(math.log(16), math.log(72))))


def _numpy_rng(rng: Random) -> np.random.Generator:
    return np.random.default_rng(rng.getrandbits(32))


def _image(values: np.ndarray) -> Image.Image:
    return Image.fromarray((values.clip(0, 1) * 255).astype(np.uint8))


def _noise(rng: Random) -> Image.Image:
    side = _side(rng)
    noise = _numpy_rng(rng)
    if rng.random() < 0.3:
        return _image((noise.random((side, side)) < rng.uniform(0.01, 0.6)).astype(np.float32))
    if rng.random() < 0.5:
        return _image(noise.random((side, side)))
    return _image(0.5 + rng.uniform(0.05, 0.4) * noise.standard_normal((side, side)))


def _clouds(rng: Random) -> Image.Image:
    """Noise of several scales, like an unfocused photograph."""
    side, noise = _side(rng), _numpy_rng(rng)
    total = np.zeros((side, side), np.float32)
    for octave in range(rng.randrange(1, 5)):
        coarse = _image(noise.random((3 * 2**octave, 3 * 2**octave)))
        smooth = coarse.resize((side, side), Image.Resampling.BICUBIC)
        total += np.asarray(smooth, dtype=np.float32) / 255 * rng.uniform(0.5, 1) / (1 + octave)
    total = (total - total.min()) / max(float(np.ptp(total)), 1e-3)
    return _image(total > 0.5) if rng.random() < 0.2 else _image(total)


def _blank(rng: Random) -> Image.Image:
    side = _side(rng)
    values = np.full((side, side), rng.random())
    if rng.random() < 0.5:
        std = rng.choice((0.003, 0.01, 0.05))
        values = values + std * _numpy_rng(rng).standard_normal((side, side))
    return _image(values)


def _gradient(rng: Random) -> Image.Image:
    side = _side(rng)
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    angle = rng.uniform(0, 2 * math.pi)
    slope = 0.5 + 0.5 * (math.cos(angle) * x + math.sin(angle) * y)
    round_ = 1 - np.hypot(x - rng.uniform(-0.5, 0.5), y - rng.uniform(-0.5, 0.5))
    return _image(rng.choice((slope, slope**3, round_, np.sqrt(np.abs(round_)))))


def _pattern(rng: Random) -> Image.Image:
    side = _side(rng)
    y, x = np.mgrid[0:side, 0:side] / side
    angle, waves = rng.uniform(0, math.pi), rng.uniform(1.5, 9)
    along = np.sin(2 * math.pi * waves * (math.cos(angle) * x + math.sin(angle) * y))
    across = np.sin(2 * math.pi * waves * (math.cos(angle) * y - math.sin(angle) * x))
    field = rng.choice((along, along * across, np.maximum(along, across)))
    return _image(field > rng.uniform(-0.6, 0.6)) if rng.random() < 0.6 else _image(field / 2 + 0.5)


def _canvas(rng: Random) -> tuple[Image.Image, ImageDraw.ImageDraw, int]:
    side = rng.randrange(32, 73)
    image = Image.new("L", (side, side))
    return image, ImageDraw.Draw(image), side


def _shapes(rng: Random) -> Image.Image:
    """Two to six overlapping ellipses, boxes, arcs and polygons, like an icon."""
    image, draw, side = _canvas(rng)
    for _ in range(rng.randrange(2, 7)):
        _shape(rng, draw, side)
    return image


def _shape(rng: Random, draw: ImageDraw.ImageDraw, side: int) -> None:
    (x, u), (y, v) = (sorted(rng.uniform(0, side) for _ in range(2)) for _ in range(2))
    box = (x, y, max(u, x + 4), max(v, y + 4))
    shade = rng.choice((255, 255, 255, 160, 90, 0))
    fill, width = (shade if rng.random() < 0.6 else None), rng.randrange(1, 6)
    kind = rng.randrange(5)
    if kind == 0:
        draw.ellipse(box, fill=fill, outline=shade, width=width)
    elif kind == 1:
        draw.rectangle(box, fill, shade, width)
    elif kind == 2:
        points = [(rng.uniform(0, side), rng.uniform(0, side)) for _ in range(rng.randrange(3, 8))]
        draw.polygon(points, fill=fill, outline=shade, width=width)
    elif kind == 3:
        draw.pieslice(box, rng.uniform(0, 360), rng.uniform(0, 360), fill, shade, width)
    else:
        draw.line([(x, y), (u, v)], shade, width)


def _strokes(rng: Random) -> Image.Image:
    """Six to sixteen mostly horizontal or vertical strokes, like a Chinese character."""
    image, draw, side = _canvas(rng)
    width = rng.randrange(1, 5)
    for _ in range(rng.randrange(6, 17)):
        x, y = rng.uniform(0, side), rng.uniform(0, side)
        long, kind = rng.uniform(0.2, 0.9) * side, rng.randrange(4)
        angle = (0, math.pi / 2, rng.uniform(0.5, 1.1), rng.uniform(2.0, 2.6))[kind]
        draw.line([(x, y), (x + long * math.cos(angle), y + long * math.sin(angle))], 255, width)
    return image


def _scribble(rng: Random) -> Image.Image:
    """A long, self-crossing line."""
    image, draw, side = _canvas(rng)
    x, y, angle, curvature = side / 2, side / 2, rng.uniform(0, 7), 0.0
    points = []
    for _ in range(rng.randrange(60, 240)):
        curvature = 0.85 * curvature + rng.gauss(0, 0.15)
        angle += curvature
        x, y = x + side / 25 * math.cos(angle), y + side / 25 * math.sin(angle)
        if not (0 < x < side and 0 < y < side):
            angle += math.pi / 2
            x, y = min(max(x, 0), side), min(max(y, 0), side)
        points.append((x, y))
    draw.line(points, 255, rng.randrange(1, 5), "curve")
    return image


def _silhouette(rng: Random) -> Image.Image:
    """A textured shape on a plain background."""
    image, draw, side = _canvas(rng)
    spread, corners = rng.uniform(0.1, 0.6), rng.randrange(5, 14)
    mirrored = rng.random() < 0.5
    radii = [side / 2 * (1 - spread * rng.random()) for _ in range(corners)]
    radii += radii[::-1] if mirrored else []
    outline = []
    for n, radius in enumerate(radii):
        angle = 2 * math.pi * n / len(radii) + math.pi / 2
        outline.append((side / 2 + radius * math.cos(angle), side / 2 + radius * math.sin(angle)))
    draw.polygon(outline, 255)
    if rng.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(side / 24))
    if rng.random() < 0.3:
        return image
    inner = rng.choice((_clouds, _gradient, _pattern, _shapes))(rng).resize((side, side))
    mixed = np.asarray(image, np.float32) / 255
    return _image(mixed * (0.35 + 0.65 * np.asarray(inner, np.float32) / 255))


OOD_IMAGE_KINDS: tuple[Callable[[Random], Image.Image], ...] = (
    *(_noise, _clouds, _blank, _gradient, _pattern, _shapes, _shapes, _strokes, _scribble),
    *(_silhouette, _silhouette),
)
