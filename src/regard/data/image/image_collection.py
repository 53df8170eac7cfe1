"""Own labelled images: one folder per class, a table of labels, or IDX files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from regard.data.image.image_file import find_idx, read_idx, read_image
from regard.data.source import LoadReport, OnError, skip_reason
from regard.data.split import SPLITS, Split, assign_split
from regard.data.table import detect_table, read_table, table_kind
from regard.errors import ConfigError, FileError
from regard.files import list_tree

T = TypeVar("T")
IMAGE_COLUMNS = ("image", "file", "path", "file_name", "filename")
LABEL_COLUMNS = ("label", "class", "category", "target")
IDX_FILE = "train-images-idx3"
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp")


class ImageEntry(NamedTuple):
    """An image file, the name of its class and the split it is assigned to; None is by hash."""

    path: Path
    label: str
    split: Split | None = None


@dataclass(frozen=True)
class ImageCollection:
    """Labelled images of the user, all in memory as bytes."""

    classes: tuple[str, ...]
    images: dict[Split, UInt8[Tensor, "count channel height width"]]
    labels: dict[Split, Int[Tensor, " count"]]
    report: LoadReport = field(default_factory=LoadReport, compare=False)


def find_images(path: str | Path, report: LoadReport) -> list[ImageEntry]:
    """The labelled image files of a folder with one folder per class, or of a table.

    Folders train, valid and test with one folder per class each are the splits. A table (.csv,
    .tsv, .jsonl) has columns such as `image` and `label`; its paths are relative to it.
    """
    root = Path(path)
    if root.is_file() and table_kind(root):
        return list(_read_label_table(root, report))
    splits: dict[Split | None, Path]
    splits = {name: root / name for name in SPLITS if (root / name).is_dir()}
    folders = splits if "train" in splits else {None: root}
    entries: list[ImageEntry] = []
    for split, folder in folders.items():
        for place in sorted(folder.iterdir()) if folder.is_dir() else ():
            if place.is_dir() and not place.name.startswith("."):
                files = list_tree(place)
                entries += [ImageEntry(file, place.name, split) for file in files]
                if not files:
                    report.skip(place, None, "a class without images")
    if not entries:
        is_class = root.is_dir() and any(f.suffix.lower() in SUFFIXES for f in list_tree(root))
        got = f"images alone; try {root.resolve().parent}" if is_class else "neither"
        raise FileError(f"{path}: needs one folder per class or a table of labels, got {got}")
    return entries


def _read_label_table(path: Path, report: LoadReport) -> Iterator[ImageEntry]:
    table = detect_table(path, header=True)
    columns = table.find_columns(IMAGE_COLUMNS, LABEL_COLUMNS)
    if columns is None:
        known = f"{' or '.join(IMAGE_COLUMNS)}, and {' or '.join(LABEL_COLUMNS)}"
        raise FileError(f"{path}: needs columns {known}, got {', '.join(table.columns)}")
    for row in read_table(path, columns):
        if row.error or not all(value.strip() for value in row.values):
            report.skip(path.name, row.line, row.error or "an empty file name or label")
        else:
            yield ImageEntry(path.parent / row.values[0].strip(), row.values[1].strip())


def load_images(
    path: str | Path,
    *,
    size: int,
    channels: int = 1,
    valid_size: int = 5000,
    on_error: OnError = "skip",
) -> ImageCollection:
    """All images of a folder or table, resized to `size` × `size`; see `find_images`.

    Without folders of splits, a hash of the file assigns each image to one, so that copies of an
    image are in the same split; with folders train and test alone, valid is taken from train in
    the same way. Files that are no images are counted in `report`.

    Args:
        path: a folder with one folder per class, a table of labels, or a folder of IDX files.
        size: pixels per side.
        channels: 1 (grey) or 3 (RGB).
        valid_size: the last so many training images of IDX files are the valid split; with 0 it
            is the last 1000, which stay in the train split too.
        on_error: "skip" counts unreadable images in the report, "raise" stops at the first.

    >>> load_images("nowhere", size=8)
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs one folder per class or a table of labels, got neither
    """
    if channels not in (1, 3):
        raise ConfigError(f"channels: need to be 1 (grey) or 3 (RGB), got {channels}")
    report = LoadReport(on_error)
    if has_idx_files(path):
        return _load_idx(Path(path), size, channels, valid_size)
    entries = find_images(path, report)
    classes = tuple(sorted({entry.label for entry in entries}))
    images: dict[Split, list[Tensor]] = {split: [] for split in SPLITS}
    labels: dict[Split, list[int]] = {split: [] for split in SPLITS}
    read = partial(read_image, size=size, channels=channels)
    for entry, split, pixels in iter_readable(entries, read, report):
        images[split].append((pixels * 255).round().to(torch.uint8))
        labels[split].append(classes.index(entry.label))
    empty = torch.zeros(0, channels, size, size, dtype=torch.uint8)
    return ImageCollection(
        classes,
        {split: torch.stack(rows) if rows else empty for split, rows in images.items()},
        {split: torch.tensor(rows, dtype=torch.long) for split, rows in labels.items()},
        report,
    )


def iter_readable(
    entries: Sequence[ImageEntry], read: Callable[[Path], T], report: LoadReport
) -> Iterator[tuple[ImageEntry, Split, T]]:
    """Each entry whose file can be read, its split, and what was read; the report counts both."""
    given = {entry.split for entry in entries}
    for entry in entries:
        try:
            image = read(entry.path)
        except FileError as error:
            report.skip(entry.path, None, skip_reason(error, "an image"))
            continue
        report.loaded += 1
        yield entry, assign_split(entry.split or "train", entry.path.read_bytes(), given), image


def has_idx_files(path: str | Path) -> bool:
    """Whether a folder has the IDX files of the MNIST family."""
    return any(Path(path).glob(f"{IDX_FILE}-ubyte*"))


def _load_idx(folder: Path, size: int, channels: int, valid_size: int) -> ImageCollection:
    def read(split: str) -> tuple[Tensor, Tensor]:
        images, labels = (
            read_idx(find_idx(folder, f"{split}-{name}")) for name in ("images-idx3", "labels-idx1")
        )
        if len(images) != len(labels):
            raise FileError(f"{folder}: needs {len(images)} labels, got {len(labels)}")
        return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype("int64"))

    (images, labels), (test_images, test_labels) = read("train"), read("t10k")
    if images.shape[1:] != (channels, size, size):
        height, width = images.shape[2:]
        raise ConfigError(
            f"size: needs {height} and channels 1, as the IDX images of {height} × {width} have, "
            f"got {size} and {channels}"
        )
    if not 0 <= valid_size < len(labels):
        raise ConfigError(f"valid_size: needs to be from 0 to {len(labels) - 1}, got {valid_size}")
    cut, report = len(labels) - valid_size, LoadReport()
    valid = slice(cut, None) if valid_size else slice(-1000, None)
    count = 1 + max(int(labels.max()), int(test_labels.max()))
    report.loaded = len(labels) + len(test_labels)
    return ImageCollection(
        tuple(str(label) for label in range(count)),
        {"train": images[:cut], "valid": images[valid], "test": test_images},
        {"train": labels[:cut], "valid": labels[valid], "test": test_labels},
        report,
    )
