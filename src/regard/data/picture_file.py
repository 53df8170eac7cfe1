"""One picture from a file, as a model sees it."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from regard.errors import ConfigError, FileError


def read_picture(
    path: str | Path, *, size: int | None = None, multiple: int = 1, channels: int = 1
) -> Float[Tensor, "channel height width"]:
    """A picture from 0, black, to 1, white: a square of `size` pixels, or of its own size.

    Its own size is cut down to a `multiple` on each side, in the middle: whole patches.

    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/grey.png"
    >>> Image.new("L", (9, 6), 255).save(file)
    >>> read_picture(file, size=4).shape, read_picture(file, multiple=4).shape
    (torch.Size([1, 4, 4]), torch.Size([1, 4, 8]))
    """
    if channels not in (1, 3):
        raise ConfigError(f"channels: need to be 1, grey, or 3, colour, got {channels}")
    if not Path(path).is_file():
        raise FileError(f"{path}: needs to be a picture, got nothing there")
    try:
        with Image.open(path) as opened:
            whole = _flat(opened).convert("L" if channels == 1 else "RGB")
    except (
        OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError
    ) as error:  # fmt: skip
        told = "an empty file" if not Path(path).stat().st_size else type(error).__name__
        raise FileError(f"{path}: needs to be a whole picture, got {told}") from error
    if size is not None:
        whole = whole.resize((size, size), Image.Resampling.BILINEAR)
    width, height = (side // multiple * multiple for side in whole.size)
    if not width or not height:
        raise FileError(f"{path}: needs {multiple} pixels a side or more, got {whole.size}")
    left, top = (whole.size[0] - width) // 2, (whole.size[1] - height) // 2
    whole = whole.crop((left, top, left + width, top + height))
    pixels = torch.from_numpy(np.array(whole, dtype="float32") / 255)
    return pixels[None] if channels == 1 else pixels.permute(2, 0, 1).contiguous()


def _flat(picture: Image.Image) -> Image.Image:
    """Without transparency, laid on white: what nobody sees has a colour too."""
    if not picture.has_transparency_data:
        return picture
    seen = picture.convert("RGBA")
    ground = Image.new("RGBA", seen.size, "white")
    ground.alpha_composite(seen)
    return ground.convert("RGB")
