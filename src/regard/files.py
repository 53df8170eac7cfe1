"""Files that are whole or not there: written beside their place, then moved in one step."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.errors import FileError


@contextmanager
def beside(file: Path) -> Iterator[Path]:
    """Where to write a file first; once all is on the disk it takes the file's place.

    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with beside(file) as place:
    ...     _ = place.write_text("all of it")
    >>> file.read_text(), len(list(file.parent.iterdir()))
    ('all of it', 1)
    """
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.resolve().parent)
    os.close(handle)
    try:
        yield Path(name)
        # mkstemp is for secrets, 0600; this has the rights of any other new file
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        to_disk(name)
        os.replace(name, file)
        to_disk(file.resolve().parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def to_disk(path: str | Path) -> None:
    """Force a file or folder to the disk.

    >>> to_disk(tempfile.mkdtemp())
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; whatever is wrong with it is a ValueError.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
        ...
    ValueError: nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_page(path: str | Path, text: str) -> Path:
    """Write a text for people, such as a page; the file's path comes back.

    >>> write_page("nowhere/at/all.html", "")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere/at/all.html: cannot be written, No such file or directory
    """
    file = Path(path)
    try:
        with beside(file) as place:
            place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"{file}: cannot be written, {error.strerror or error}") from error
    return file
