"""Read an image file as a tensor."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from regard.errors import ConfigError, FileError


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
        OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError
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
