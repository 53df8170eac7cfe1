"""Uploaded or generated content as a file, which is how the library reads it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import RegardError
from regard.files import atomic_write


@contextmanager
def temporary_path(name: str) -> Iterator[Path]:
    """A path for a new file; errors raised inside call it by its name, without the folder.

    >>> with temporary_path("body") as path:
    ...     path.name
    'body'
    """
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        path = Path(folder) / name
        try:
            yield path
        except RegardError as error:
            raise type(error)(str(error).replace(str(path), name)) from error


@contextmanager
def temporary_file(content: bytes, name: str = "file") -> Iterator[Path]:
    """A file with this content, as `temporary_path`.

    >>> with temporary_file(b"abc") as path:
    ...     path.read_bytes()
    b'abc'
    """
    with temporary_path(name) as path:
        with atomic_write(path) as new:
            new.write_bytes(content)
        yield path
