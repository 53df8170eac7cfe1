"""What is written in a picture, cut out: found by its difference from the background."""

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

MAX_SIDE = 1024  # pixels a side that are searched; larger pictures are reduced first
MIN_CONTRAST = 0.02  # less contrast than this, of 1, is a blank picture
INK_THRESHOLD = 0.35  # of the strongest difference: what is more belongs to the ink
MARGIN = 0.12  # of the ink's longer side, left on every side


def crop_to_ink(
    image: Image.Image, size: int | None, *, invert: bool = False
) -> Float[Tensor, "1 height width"]:
    """The ink of a picture, from 0, background, to 1, in the middle of a square, aspect kept.

    The background is a plane fitted to the border, in each colour; ink is what differs from it,
    whether darker or lighter: polarity, position, scale and contrast do not matter. A picture
    without contrast is all 0. `invert` says that the ink is dark, for what leaves no border.
    Without a `size` the picture keeps its own, and nothing is cut.

    >>> page = Image.new("L", (60, 40), 250)
    >>> page.paste(20, (5, 5, 9, 15))  # a dark stroke in a corner
    >>> framed = crop_to_ink(page, 8)
    >>> framed[0, 4].gt(0.5).tolist()
    [False, False, False, True, True, False, False, False]
    """
    if max(image.size) > MAX_SIDE:
        image = image.reduce(-(-max(image.size) // MAX_SIDE))
    pixels = np.asarray(image, dtype=np.float32) / 255
    ink, noise = _difference(pixels if pixels.ndim == 3 else pixels[..., None], invert)
    calm = _blurred(ink)
    peak = float(calm.max())
    if peak < MIN_CONTRAST:
        height, width = ink.shape
        return torch.zeros(1, size or height, size or width)
    mask = calm > max(INK_THRESHOLD * peak, min(3 * noise, 0.9 * peak))
    top, bottom = _span(mask, 0)
    left, right = _span(mask, 1)
    strong = float(np.quantile(ink[mask], 0.9))
    ink = ((ink - noise) / max(strong - noise, MIN_CONTRAST)).clip(0, 1)
    if size is None:
        return torch.from_numpy(ink)[None]
    framed = _cut(ink, (left, top, right, bottom), size)
    return torch.from_numpy(np.array(framed, dtype="float32") / 255)[None]


def _difference(pixels: np.ndarray, invert: bool) -> tuple[np.ndarray, float]:
    """How far every pixel is from the background, and how far the background's own pixels are."""
    height, width, channels = pixels.shape
    if invert:  # the lightest of the picture is the paper
        paper = np.quantile(pixels, 0.95, (0, 1))
        return (paper - pixels).clip(0).mean(-1, dtype=np.float32), 0.0
    deep = max(1, min(height, width) // 24)
    ring = np.ones((height, width), bool)
    ring[deep:-deep, deep:-deep] = False
    y = ((np.arange(height, dtype=np.float32) + 0.5) / height - 0.5)[:, None]
    x = ((np.arange(width, dtype=np.float32) + 0.5) / width - 0.5)[None]
    rows, columns = np.nonzero(ring)
    plane = np.stack([np.ones(len(rows), np.float32), x[0, columns], y[rows, 0]], 1)
    border = pixels[ring]
    # a letter that touches the border is an outlier there: fit from the median, without what is far
    fitted = np.zeros((3, channels), np.float32)
    fitted[0] = np.median(border, 0)
    for bound in (0.3, 0.1):
        far = np.abs(border - plane @ fitted).max(1)
        near = far <= max(bound, 2 * float(np.median(far)))
        inner = plane[near]
        gram = inner.T @ inner + 1e-3 * np.eye(3, dtype=np.float32)
        fitted = np.linalg.solve(gram, inner.T @ border[near])
    ink = np.zeros((height, width), np.float32)
    for channel, (level, across, down) in enumerate(fitted.T):
        ink += (pixels[..., channel] - (level + across * x + down * y)) ** 2
    ink = np.sqrt(ink / channels)
    return ink, float(np.median(ink[ring]))


def _blurred(x: np.ndarray) -> np.ndarray:
    """Means of 3 by 3 pixels: one grain of noise is no ink."""
    wide = np.pad(x, 1, mode="edge")
    wide = wide[:-2] + wide[1:-1] + wide[2:]
    return (wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]) / 9


def _span(mask: np.ndarray, axis: int) -> tuple[int, int]:
    """The first and one past the last row, or column, with ink."""
    places = mask.nonzero()[axis]
    return int(places.min()), int(places.max()) + 1


def _cut(ink: np.ndarray, box: tuple[int, int, int, int], size: int) -> Image.Image:
    """The square about a box, with its margin, at the asked size; beyond the edges is nothing."""
    left, top, right, bottom = box
    side = max(right - left, bottom - top) * (1 + 2 * MARGIN)
    x, y = (left + right - side) / 2, (top + bottom - side) / 2
    room = int(np.ceil(side))  # as much as the square can reach beyond the picture
    near = np.zeros((bottom - top + 2 * room, right - left + 2 * room), np.uint8)
    first, last = max(0, top - room), min(ink.shape[0], bottom + room)
    begin, end = max(0, left - room), min(ink.shape[1], right + room)
    cut = (ink[first:last, begin:end] * 255).round().astype(np.uint8)
    row, column = first - (top - room), begin - (left - room)
    near[row : row + cut.shape[0], column : column + cut.shape[1]] = cut
    x, y = x - (left - room), y - (top - room)
    whole = Image.fromarray(near)
    return whole.resize((size, size), Image.Resampling.BILINEAR, (x, y, x + side, y + side))
