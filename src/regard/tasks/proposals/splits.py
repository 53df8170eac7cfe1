"""Files of own data: readable, and assigned to splits by their names."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from regard.data import Split
from regard.errors import FileError

ALIASES: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "valid": ("valid", "val", "dev", "validation", "devel"),
    "test": ("test", "testing"),
}


def list_files(path: str | Path) -> list[Path]:
    """The files of a folder without those below it and hidden ones; or the file itself.

    >>> list_files("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs to be a file or a folder, got no such file
    """
    root = Path(path)
    check_readable(root)
    if root.is_file():
        return [root]
    return sorted(f for f in root.iterdir() if f.is_file() and not f.name.startswith("."))


def check_readable(path: Path) -> None:
    """Raise `FileError` for a file or folder that is missing or cannot be read."""
    if not path.exists():
        raise FileError(f"{path}: needs to be a file or a folder, got no such file")
    try:
        if path.is_dir():
            os.scandir(path).close()
        else:
            path.open("rb").close()
    except OSError as error:
        raise FileError(f"{path}: cannot be read, {error.strerror or error}") from error


def split_of(file: Path) -> Split | None:
    """The split that a file name begins with: train, valid (val, dev, …) or test.

    >>> split_of(Path("dev.tsv")), split_of(Path("test_2016.en.gz")), split_of(Path("data.csv"))
    ('valid', 'test', None)
    """
    stem = file.name.lower().partition(".")[0]
    word = stem.replace("-", "_").partition("_")[0]
    return next((split for split, names in ALIASES.items() if word in names), None)


def find_splits(files: Sequence[Path], accepts: Callable[[Path], bool]) -> dict[Split, list[Path]]:
    """The files of each split by their names; one file, or the only ones, are all train.

    >>> find_splits([Path("train.csv"), Path("dev.csv"), Path("notes.md")], lambda f: f.suffix == ".csv")
    {'train': [PosixPath('train.csv')], 'valid': [PosixPath('dev.csv')]}
    """  # noqa: E501
    usable = [file for file in files if accepts(file)]
    found: dict[Split, list[Path]] = {}
    for file in usable:
        if (split := split_of(file)) is not None:
            found.setdefault(split, []).append(file)
    return found if "train" in found else {"train": usable} if usable else {}
