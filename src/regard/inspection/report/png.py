"""PNG pictures of numbers, small enough to stand inside a page."""

import struct
import zlib
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor


def encode_png(values: Float[Tensor, "row column"]) -> bytes:
    """Numbers from 0 to 1 as a picture of 256 colours, one pixel each.

    >>> encode_png(torch.zeros(2, 3))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    pixels = (values.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    rows, columns = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)  # 0: a line as it is
    head = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)  # 8 bits, by palette
    parts = (
        (b"IHDR", head),
        (b"PLTE", cividis_palette()),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


@cache
def cividis_palette() -> bytes:
    """The 256 colours of cividis, red, green and blue a byte each.

    >>> len(cividis_palette())
    768
    """
    from matplotlib import colormaps

    return colormaps["cividis"](range(256), bytes=True)[:, :3].tobytes()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
