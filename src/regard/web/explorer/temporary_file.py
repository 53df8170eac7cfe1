"""An uploaded or generated file as a path, which is how the library reads files."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import RegardError
from regard.files import atomic_write


@contextmanager
def temporary_file(content: bytes, name: str = "file") -> Iterator[Path]:
    """A file with this content; errors raised inside call it by its name, without a path.

    >>> with temporary_file(b"abc") as path:
    ...     path.read_bytes()
    b'abc'
    """
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        path = Path(folder) / name
        with atomic_write(path) as new:
            new.write_bytes(content)
        try:
            yield path
        except RegardError as error:
            raise type(error)(str(error).replace(str(path), name)) from error
