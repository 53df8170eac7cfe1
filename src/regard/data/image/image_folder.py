"""Images in one folder per class."""

from collections.abc import Iterator
from pathlib import Path

import torch

from regard.data.image.example import ImageExample
from regard.data.image.image_file import read_image
from regard.data.load_report import LoadReport, OnError
from regard.data.source import permute_index
from regard.data.split import Split, hash_split
from regard.errors import ConfigError, FileError


class ImageFolder:
    """Images in one folder per class, resized to `size` × `size`.

    Sub-folders train, valid and test, each with one folder per class, are the splits. Without
    them a hash of the file assigns each image to a split.

    >>> ImageFolder("nowhere", size=8)
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs one folder per class, got none
    """

    def __init__(
        self, folder: str | Path, *, size: int, channels: int = 1, on_error: OnError = "skip"
    ):
        root = Path(folder)
        if channels not in (1, 3):
            raise ConfigError(f"channels: need to be 1 (grey) or 3 (RGB), got {channels}")
        folders = {s: root / s for s in ("train", "valid", "test") if (root / s).is_dir()}
        self.split_folders = folders if "train" in folders else {"train": root}
        self.size, self.channels, self.report = size, channels, LoadReport(on_error)
        train = self.split_folders["train"]
        paths = train.iterdir() if train.is_dir() else ()
        self.classes = tuple(sorted(path.name for path in paths if path.is_dir()))
        if not self.classes:
            raise FileError(f"{folder}: needs one folder per class, got none")

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[ImageExample]:
        """Images from number `start`; train repeats forever, reshuffled every epoch."""
        number = 0
        for epoch in range(10**9 if split == "train" else 1):
            before = number
            for example in self._once(split, f"{seed}/{epoch}" if split == "train" else None):
                if number >= start:
                    yield example
                number += 1
            if number == before:
                raise FileError(
                    f"{self.split_folders['train']}: needs images for {split}, got none"
                )

    def _once(self, split: Split, shuffle_key: str | None) -> Iterator[ImageExample]:
        self.report.clear()
        root = self.split_folders.get(split, self.split_folders["train"])
        files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).rglob("*"))
            if path.is_file()
        ]
        for index in range(len(files)):
            path, label = files[
                index if shuffle_key is None else permute_index(index, len(files), shuffle_key)
            ]
            if len(self.split_folders) == 1 and hash_split(path.read_bytes()) != split:
                continue
            image = self._open(path)
            if image is not None:
                self.report.loaded += 1
                yield ImageExample(image, label)

    def _open(self, path: Path) -> torch.Tensor | None:
        try:
            return read_image(path, size=self.size, channels=self.channels)
        except FileError as error:
            self.report.skip(path, None, f"not an image ({type(error.__cause__).__name__})")
            return None
