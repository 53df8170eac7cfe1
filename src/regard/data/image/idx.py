"""IDX files, the format of MNIST and its relatives."""

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data.image.example import ImageExample
from regard.data.source import InMemorySource
from regard.data.split import Split
from regard.errors import ConfigError, FileError

IDX_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
MAX_IDX_BYTES = 1 << 30  # uncompressed; the largest file of EMNIST has half of it


def read_idx(path: str | Path) -> np.ndarray:
    """Read the array of an IDX file, gzip-compressed or not.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "labels.idx"
    >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    >>> read_idx(file)
    array([7, 8, 9], dtype=uint8)
    """
    path = Path(path)
    try:
        with open(path, "rb") as opened:
            packed = opened.read(2) == b"\x1f\x8b"
            opened.seek(0)
            with gzip.open(opened) if packed else opened as stream:
                return _read_idx(stream, path)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path}: needs a complete IDX file, got {error}") from error


def _read_idx(stream: Any, file: Path) -> np.ndarray:
    """Reads the header first, then no more than the size it declares."""
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_DTYPES:
        raise FileError(f"{file}: needs an IDX file, got {head!r} at its start")
    axes, dtype = head[3], np.dtype(IDX_DTYPES[head[2]])
    sizes = stream.read(4 * axes)
    if not axes or len(sizes) < 4 * axes:
        raise FileError(f"{file}: needs sizes of 1 axis or more, got a header cut short")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    size = math.prod(shape) * dtype.itemsize  # Python integers: no overflow
    if size > MAX_IDX_BYTES:
        raise FileError(f"{file}: needs at most {MAX_IDX_BYTES >> 30} GiB, got {shape}")
    body = stream.read(size + 1)
    if len(body) != size:
        got = "more" if len(body) > size else f"{len(body)}, a truncated file"
        raise FileError(f"{file}: needs {size} bytes for {shape}, got {got}")
    return np.frombuffer(body, dtype).astype(dtype.newbyteorder("=")).reshape(shape)


class IdxImages:
    """Images of an MNIST-like folder; the last `valid_size` training images are the valid split.

    >>> IdxImages("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs train-images-idx3-ubyte or its .gz, got no such file
    """

    def __init__(self, folder: str | Path, *, valid_size: int = 5000):
        images, labels = (
            find_idx(folder, f"train-{what}") for what in ("images-idx3", "labels-idx1")
        )
        test = [find_idx(folder, f"t10k-{what}") for what in ("images-idx3", "labels-idx1")]
        train = _Images(read_idx(images), read_idx(labels))
        if not 0 < valid_size < len(train):
            raise ConfigError(
                f"valid_size: needs to be from 1 to {len(train) - 1}, got {valid_size}"
            )
        self._source = InMemorySource(
            _Images(train.images[:-valid_size], train.labels[:-valid_size]),
            _Images(train.images[-valid_size:], train.labels[-valid_size:]),
            _Images(*map(read_idx, test)),
        )

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[ImageExample]:
        """Images from number `start`; train repeats forever."""
        return self._source.examples(split, seed, start)


class _Images(Sequence[ImageExample]):
    """Images as bytes in memory, converted to a tensor on access."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        if len(images) != len(labels):
            raise FileError(f"labels: need to be {len(images)}, one per image, got {len(labels)}")
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        image = torch.from_numpy(self.images[index].astype("float32") / np.float32(255))
        return ImageExample(image[None], int(self.labels[index]))


def find_idx(folder: str | Path, name: str) -> Path:
    """Path of an IDX file of an MNIST-like folder, compressed or not."""
    for file in (Path(folder) / f"{name}-ubyte", Path(folder) / f"{name}-ubyte.gz"):
        if file.is_file():
            return file
    raise FileError(f"{folder}: needs {name}-ubyte or its .gz, got no such file")
