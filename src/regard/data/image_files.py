"""Own pictures: IDX files, as of the MNIST family, and folders with one folder a class."""

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data.facts import Split
from regard.data.images import Picture
from regard.data.picture_file import read_picture
from regard.data.report import Bad, Report
from regard.data.source import Listed, shuffled
from regard.errors import ConfigError, FileError

KINDS = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
MOST_BYTES = 1 << 30  # of one IDX file, unpacked; EMNIST's largest has half of it


def read_idx(file: str | Path) -> np.ndarray:
    """The array of an IDX file, compressed by gzip or not.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "labels.idx"
    >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    >>> read_idx(file)
    array([7, 8, 9], dtype=uint8)
    """
    file = Path(file)
    try:
        with open(file, "rb") as opened:
            packed = opened.read(2) == b"\x1f\x8b"
            opened.seek(0)
            with gzip.open(opened) if packed else opened as stream:
                return _read_idx(stream, file)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{file}: needs to be a whole IDX file, got {error}") from error


def _read_idx(stream: Any, file: Path) -> np.ndarray:
    """The header first: of the numbers no more is read than it speaks of."""
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in KINDS:
        raise FileError(f"{file}: needs to be an IDX file, got {head!r} at its start")
    axes, kind = head[3], np.dtype(KINDS[head[2]])
    sizes = stream.read(4 * axes)
    if not axes or len(sizes) < 4 * axes:
        raise FileError(f"{file}: needs sizes of 1 axis or more, got a header cut short")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    size = math.prod(shape) * kind.itemsize  # of Python's numbers: the product cannot overflow
    if size > MOST_BYTES:
        raise FileError(f"{file}: needs at most {MOST_BYTES >> 30} GiB of numbers, got {shape}")
    body = stream.read(size + 1)
    if len(body) != size:
        less = "more" if len(body) > size else f"{len(body)} bytes: cut short?"
        raise FileError(f"{file}: needs {size} bytes for {shape}, got {less}")
    return np.frombuffer(body, kind).astype(kind.newbyteorder("=")).reshape(shape)


class IdxImages:
    """The pictures of an MNIST-like folder; the last `held` of the training ones are for valid.

    >>> IdxImages("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs train-images-idx3-ubyte or its .gz, got nothing there
    """

    def __init__(self, folder: str | Path, *, held: int = 5000):
        images, labels = (
            find_idx(folder, f"train-{what}") for what in ("images-idx3", "labels-idx1")
        )
        test = [find_idx(folder, f"t10k-{what}") for what in ("images-idx3", "labels-idx1")]
        train = _Pictures(read_idx(images), read_idx(labels))
        if not 0 < held < len(train):
            raise ConfigError(f"held: needs to be from 1 to {len(train) - 1}, got {held}")
        self._listed = Listed(
            _Pictures(train.images[:-held], train.labels[:-held]),
            _Pictures(train.images[-held:], train.labels[-held:]),
            _Pictures(*map(read_idx, test)),
        )

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Picture]:
        """Pictures from the one numbered `start`: for ever for train, once otherwise."""
        return self._listed.examples(split, seed, start)


class _Pictures(Sequence[Picture]):
    """Bytes in memory, a tensor a picture only when it is asked for."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        if len(images) != len(labels):
            raise FileError(f"labels: need to be {len(images)}, one a picture, got {len(labels)}")
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        image = torch.from_numpy(self.images[index].astype("float32") / np.float32(255))
        return Picture(image[None], int(self.labels[index]))


def find_idx(folder: str | Path, name: str) -> Path:
    """The file of an MNIST-like folder with this name, compressed or not."""
    for file in (Path(folder) / f"{name}-ubyte", Path(folder) / f"{name}-ubyte.gz"):
        if file.is_file():
            return file
    raise FileError(f"{folder}: needs {name}-ubyte or its .gz, got nothing there")


class ImageFolder:
    """Pictures in one folder a class, made one size; split by a hash of the file unless given.

    A folder that holds train, valid and test, each with its classes, is taken as it is split.

    >>> ImageFolder("nowhere", size=8)
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs to be a folder of folders, one a class, got none
    """

    def __init__(self, folder: str | Path, *, size: int, channels: int = 1, bad: Bad = "skip"):
        root = Path(folder)
        if channels not in (1, 3):
            raise ConfigError(f"channels: need to be 1, grey, or 3, colour, got {channels}")
        parts = {s: root / s for s in ("train", "valid", "test") if (root / s).is_dir()}
        self.roots = parts if "train" in parts else {"train": root}
        self.size, self.channels, self.report = size, channels, Report(bad)
        inside = self.roots["train"].iterdir() if self.roots["train"].is_dir() else ()
        self.classes = tuple(sorted(path.name for path in inside if path.is_dir()))
        if not self.classes:
            raise FileError(f"{folder}: needs to be a folder of folders, one a class, got none")

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Picture]:
        """Pictures from the one numbered `start`: for ever for train, once otherwise."""
        number = 0
        for turn in range(10**9 if split == "train" else 1):
            before = number
            for picture in self._once(split, f"{seed}/{turn}" if split == "train" else None):
                if number >= start:
                    yield picture
                number += 1
            if number == before:
                raise FileError(f"{self.roots['train']}: needs pictures for {split}, got none")

    def _once(self, split: Split, order: str | None) -> Iterator[Picture]:
        self.report.clear()
        root = self.roots.get(split, self.roots["train"])
        files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).rglob("*"))
            if path.is_file()
        ]
        for index in range(len(files)):
            path, label = files[index if order is None else shuffled(index, len(files), order)]
            if len(self.roots) == 1 and _where(path) != split:
                continue
            image = self._open(path)
            if image is not None:
                self.report.kept += 1
                yield Picture(image, label)

    def _open(self, path: Path) -> torch.Tensor | None:
        try:
            return read_picture(path, size=self.size, channels=self.channels)
        except FileError as error:
            self.report.leave_out(path, None, f"not a picture ({type(error.__cause__).__name__})")
            return None


def _where(path: Path) -> Split:
    percent = int.from_bytes(blake2b(path.read_bytes(), digest_size=8).digest()) % 100
    return "test" if percent < 5 else "valid" if percent < 10 else "train"
