"""IDX files, the format of MNIST and its relatives."""

import math
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from regard.errors import FileError
from regard.files import open_binary

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
