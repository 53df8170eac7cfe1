"""One picture from a file, as a model sees it."""

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
    """A picture from 0, black, to 1, white: a square of `size` pixels, or of its own size.

    Its own size is cut down to a `multiple` on each side, in the middle: whole patches.

    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/grey.png"
    >>> Image.new("L", (9, 6), 255).save(file)
    >>> read_image(file, size=4).shape, read_image(file, multiple=4).shape
    (torch.Size([1, 4, 4]), torch.Size([1, 4, 8]))
    """
    if channels not in (1, 3):
        raise ConfigError(f"channels: need to be 1, grey, or 3, colour, got {channels}")
    whole = open_image(path).convert("L" if channels == 1 else "RGB")
    if size is not None:
        whole = whole.resize((size, size), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(whole, dtype="float32") / 255)
    pixels = pixels[None] if channels == 1 else pixels.permute(2, 0, 1)
    return crop_to_multiple(pixels, multiple, path).contiguous()


def crop_to_multiple(
    image: Float[Tensor, "channel height width"], multiple: int, path: str | Path
) -> Float[Tensor, "channel tall wide"]:
    """The middle of an image, each side cut down to a multiple; `path` is for the error.

    >>> crop_to_multiple(torch.zeros(1, 6, 9), 4, "grey.png").shape
    torch.Size([1, 4, 8])
    """
    height, width = image.shape[1:]
    tall, wide = (side // multiple * multiple for side in (height, width))
    if not wide or not tall:
        raise FileError(f"{path}: needs {multiple} pixels a side or more, got {(width, height)}")
    top, left = (height - tall) // 2, (width - wide) // 2
    return image[:, top : top + tall, left : left + wide]


def open_image(path: str | Path, *, auto_background: bool = False) -> Image.Image:
    """The picture of a file in grey or in colour, upright, and laid on white where transparent.

    With `contrast`, light ink on a transparent ground is laid on black, or it could not be seen.

    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/clear.png"
    >>> Image.new("RGBA", (2, 2), (255, 255, 255, 0)).save(file)
    >>> open_image(file).getpixel((0, 0))
    (255, 255, 255)
    """
    if not Path(path).is_file():
        raise FileError(f"{path}: needs to be a picture, got nothing there")
    try:
        with Image.open(path) as opened:
            whole = ImageOps.exif_transpose(opened)
            if whole.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
                return Image.fromarray((np.asarray(whole) >> 8).clip(0, 255).astype(np.uint8))
            if whole.has_transparency_data:
                return _flat(whole.convert("RGBA"), auto_background)
            return whole.convert("L" if whole.mode in ("1", "L") else "RGB")
    except (
        OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError
    ) as error:  # fmt: skip
        told = "an empty file" if not Path(path).stat().st_size else type(error).__name__
        raise FileError(f"{path}: needs to be a whole picture, got {told}") from error


def _flat(picture: Image.Image, contrast: bool) -> Image.Image:
    """Without transparency, laid on white: what nobody sees has a colour too."""
    colour = "black" if contrast and _is_light(picture) else "white"
    ground = Image.new("RGBA", picture.size, colour)
    ground.alpha_composite(picture)
    return ground.convert("RGB")


def _is_light(picture: Image.Image) -> bool:
    """Whether light ink stands on a ground that is mostly transparent at the border."""
    alpha = np.asarray(picture.getchannel("A"), dtype=np.float32) / 255
    border = np.concatenate([alpha[0], alpha[-1], alpha[:, 0], alpha[:, -1]])
    grey = np.asarray(picture.convert("RGB").convert("L"), dtype=np.float32) / 255
    return bool(np.median(border) < 0.5 and (alpha * grey).sum() > 0.75 * alpha.sum())
