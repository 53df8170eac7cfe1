"""Image files as tensors, images cropped to their ink, and IDX files, the format of MNIST."""

import math
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from regard.errors import ConfigError, FileError
from regard.files import open_binary


def read_image(
    path: str | Path, *, size: int | None = None, multiple: int = 1, channels: int = 1
) -> Float[Tensor, "channel height width"]:
    """An image with values from 0 (black) to 1 (white).

    Resized to `size` × `size` pixels; or, without `size`, centre-cropped to a multiple of
    `multiple` pixels per side.

    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/grey.png"
    >>> Image.new("L", (9, 6), 255).save(file)
    >>> read_image(file, size=4).shape, read_image(file, multiple=4).shape
    (torch.Size([1, 4, 4]), torch.Size([1, 4, 8]))
    """
    if channels not in (1, 3):
        raise ConfigError(f"channels: need to be 1 (grey) or 3 (RGB), got {channels}")
    image = open_image(path).convert("L" if channels == 1 else "RGB")
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image, dtype="float32") / 255)
    pixels = pixels[None] if channels == 1 else pixels.permute(2, 0, 1)
    return crop_to_multiple(pixels, multiple, path).contiguous()


def crop_to_multiple(
    image: Float[Tensor, "channel height width"], multiple: int, path: str | Path
) -> Float[Tensor, "channel tall wide"]:
    """Centre-crop an image to a multiple of pixels per side; `path` is for the error message."""
    height, width = image.shape[1:]
    tall, wide = (side // multiple * multiple for side in (height, width))
    if not wide or not tall:
        raise FileError(f"{path}: needs {multiple} pixels or more per side, got {(width, height)}")
    top, left = (height - tall) // 2, (width - wide) // 2
    return image[:, top : top + tall, left : left + wide]


def open_image(path: str | Path, *, auto_background: bool = False) -> Image.Image:
    """Open an image as grey or RGB, rotated by its EXIF tag, on white where transparent.

    With `auto_background`, light content on a transparent background is put on black instead.

    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/clear.png"
    >>> Image.new("RGBA", (2, 2), (255, 255, 255, 0)).save(file)
    >>> open_image(file).getpixel((0, 0))
    (255, 255, 255)
    """
    if not Path(path).is_file():
        raise FileError(f"{path}: needs to be an image, got no such file")
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255
                return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
            if image.has_transparency_data:  # invisible pixels have a colour too
                image = image.convert("RGBA")
                colour = "black" if auto_background and _is_light(image) else "white"
                background = Image.new("RGBA", image.size, colour)
                return Image.alpha_composite(background, image).convert("RGB")
            return image.convert("L" if image.mode in ("1", "L") else "RGB")
    except (
        OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError,
        MemoryError,  # a block that declares gigabytes
    ) as error:  # fmt: skip
        raise FileError(
            f"{path}: needs to be a complete image, got {_defect(path, error)}"
        ) from error


def _defect(path: str | Path, error: Exception) -> str:
    if not Path(path).stat().st_size:
        return "an empty file"
    if isinstance(error, UnidentifiedImageError):
        return "no known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).partition(" (")[0] or type(error).__name__  # image file is truncated


def _is_light(image: Image.Image) -> bool:
    """Whether the content is light and most of the border transparent."""
    alpha = np.asarray(image.getchannel("A"), dtype=np.float32) / 255
    border = np.concatenate([alpha[0], alpha[-1], alpha[:, 0], alpha[:, -1]])
    grey = np.asarray(image.convert("RGB").convert("L"), dtype=np.float32) / 255
    return bool(np.median(border) < 0.5 and (alpha * grey).sum() > 0.75 * alpha.sum())


MAX_SIDE = 1024  # pixels; larger images are reduced first
MIN_CONTRAST = 0.02  # an image with less contrast is blank
INK_THRESHOLD = 0.35  # fraction of the largest difference above which a pixel is ink
MARGIN = 0.12  # on every side, as a fraction of the longer side of the ink


def crop_to_ink(
    image: Image.Image, size: int | None, *, invert: bool = False
) -> Float[Tensor, "1 height width"]:
    """The ink of an image, from 0 (background) to 1, centred in a square, aspect ratio kept.

    The background is a plane fitted to the border per colour; ink differs from it, darker or
    lighter, so polarity, position, scale and contrast do not matter. A blank image is all 0.
    `invert` states that the ink is dark, for images whose ink touches the whole border. Without
    `size` nothing is cropped.

    >>> page = Image.new("L", (60, 40), 250)
    >>> page.paste(20, (5, 5, 9, 15))  # a dark stroke in a corner
    >>> cropped = crop_to_ink(page, 8)
    >>> cropped[0, 4].gt(0.5).tolist()
    [False, False, False, True, True, False, False, False]
    """
    if max(image.size) > MAX_SIDE:
        image = image.reduce(-(-max(image.size) // MAX_SIDE))
    pixels = np.asarray(image, dtype=np.float32) / 255
    ink, noise = _difference(pixels if pixels.ndim == 3 else pixels[..., None], invert)
    smooth = _blurred(ink)
    peak = float(smooth.max())
    if peak < MIN_CONTRAST:
        height, width = ink.shape
        return torch.zeros(1, size or height, size or width)
    mask = smooth > max(INK_THRESHOLD * peak, min(3 * noise, 0.9 * peak))
    strong = float(np.quantile(ink[mask], 0.9))
    ink = ((ink - noise) / max(strong - noise, MIN_CONTRAST)).clip(0, 1)
    if size is None:
        return torch.from_numpy(ink)[None]
    box = Image.fromarray(mask.astype(np.uint8)).getbbox()
    assert box is not None  # the peak is above the threshold
    cropped = _crop(ink, box, size)
    return torch.from_numpy(np.array(cropped, dtype="float32") / 255)[None]


def _difference(pixels: np.ndarray, invert: bool) -> tuple[np.ndarray, float]:
    """Distance of every pixel from the background, and the median distance on the border."""
    height, width, channels = pixels.shape
    if invert:  # the lightest pixels are paper
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
    # ink that touches the border is an outlier: start at the median, refit without far pixels
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
    """3 × 3 box blur, against single noisy pixels."""
    wide = np.pad(x, 1, mode="edge")
    wide = wide[:-2] + wide[1:-1] + wide[2:]
    return (wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]) / 9


def _crop(ink: np.ndarray, box: tuple[int, int, int, int], size: int) -> Image.Image:
    """The square around a box, with margin, resized; 0 beyond the edges of the image."""
    left, top, right, bottom = box
    side = max(right - left, bottom - top) * (1 + 2 * MARGIN)
    x, y = (left + right - side) / 2, (top + bottom - side) / 2
    padding = int(np.ceil(side))  # how far the square may extend beyond the image
    left, top, right, bottom = left - padding, top - padding, right + padding, bottom + padding
    image = Image.fromarray((ink * 255).round().astype(np.uint8)).crop((left, top, right, bottom))
    x, y = x - left, y - top
    return image.resize((size, size), Image.Resampling.BILINEAR, (x, y, x + side, y + side))


IDX_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
CHUNK_BYTES = 1 << 20  # bytes per read
MAX_AXES = 32
MAX_IDX_BYTES = 1 << 30  # uncompressed; the largest file of EMNIST has half of it


def read_idx(path: str | Path) -> np.ndarray:
    """Read the array of an IDX file, gzip-compressed or not.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "labels.idx"
    >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    >>> read_idx(file)
    array([7, 8, 9], dtype=uint8)
    """
    with open_binary(path) as stream:
        return _read_idx(stream, path)


def _read_idx(stream: BufferedIOBase, file: str | Path) -> np.ndarray:
    """Reads the header first, then no more than the size it declares."""
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_DTYPES:
        raise FileError(f"{file}: needs an IDX file, got {head!r} at its start")
    axes, dtype = head[3], np.dtype(IDX_DTYPES[head[2]])
    sizes = stream.read(4 * axes)
    if not 0 < axes <= MAX_AXES or len(sizes) < 4 * axes:
        got = f"{axes} axes" if len(sizes) == 4 * axes else "a header cut short"
        raise FileError(f"{file}: needs sizes of 1 to {MAX_AXES} axes, got {got}")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    size = math.prod(shape) * dtype.itemsize  # Python integers: no overflow
    strides = math.prod(x or 1 for x in shape) * dtype.itemsize  # NumPy's, which may overflow
    if max(size, strides) > MAX_IDX_BYTES:
        raise FileError(f"{file}: needs at most {MAX_IDX_BYTES >> 30} GiB, got {shape}")
    body = bytearray()  # grows with what is there, not with what the header declares
    while len(body) <= size and (chunk := stream.read(min(CHUNK_BYTES, size + 1 - len(body)))):
        body += chunk
    if len(body) != size:
        got = "more" if len(body) > size else f"{len(body)}, a truncated file"
        raise FileError(f"{file}: needs {size} bytes for {shape}, got {got}")
    return np.frombuffer(body, dtype).astype(dtype.newbyteorder("=")).reshape(shape)


def find_idx(folder: str | Path, name: str) -> Path:
    """Path of an IDX file of an MNIST-like folder, compressed or not."""
    for file in (Path(folder) / f"{name}-ubyte", Path(folder) / f"{name}-ubyte.gz"):
        if file.is_file():
            return file
    raise FileError(f"{folder}: needs {name}-ubyte or its .gz, got no such file")
