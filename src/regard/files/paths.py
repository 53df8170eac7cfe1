"""Folders, streams, file descriptors, and Python files to import."""

import importlib.util
import os
import stat
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.errors import ConfigError, FileError


def make_folder(folder: str | Path) -> Path:
    """Create a folder and its parents, or raise `FileError`.

    >>> make_folder("/dev/null/runs")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: /dev/null/runs: cannot be written, Not a directory
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be written, {error.strerror or error}") from error
    return Path(folder)


def import_file(file: str | Path) -> ModuleType:
    """Import a Python file as the module of its name.

    >>> import_file("no.py")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: no.py: needs a Python file, got none of that name
    """
    file = Path(file)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise FileError(f"{file}: needs a Python file, got none of that name")
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_extra(package: str, extra: str, purpose: str) -> Any:
    """Import a package of an optional extra, or raise with the command that installs it.

    >>> import_extra("no_such", "export", "to export")
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: no_such: needs the package of that name to export, got none; try pip install 'regard[export]'
    """  # noqa: E501
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{package}: needs the package of that name {purpose}, got none; "
            f"try pip install 'regard[{extra}]'"
        ) from error


def list_tree(folder: str | Path) -> list[Path]:
    """All files below a folder, sorted, without hidden ones; raises for a folder it cannot read.

    Links to folders are not followed.

    >>> list_tree("/proc/self/task/nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: /proc/self/task/nowhere: cannot be read, No such file or directory
    """

    def refuse(error: OSError) -> None:
        raise FileError(f"{error.filename}: cannot be read, {error.strerror}") from error

    files: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(file for file in files if file.is_file())


def is_stream(file: str | Path) -> bool:
    """Whether a path is a device, FIFO or open descriptor rather than a regular file.

    >>> is_stream("/dev/null"), is_stream("/dev/stdout"), is_stream("nowhere")
    (True, True, False)
    """
    status = stat_or_none(Path(file))
    if status is None or stat.S_ISDIR(status.st_mode):
        return False
    return not stat.S_ISREG(status.st_mode) or file_descriptor(file) is not None


def file_descriptor(file: str | Path) -> int | None:
    """The open descriptor that a path such as /dev/stdout refers to, or None.

    >>> file_descriptor("/dev/stdout"), file_descriptor("/dev/fd/2"), file_descriptor("/dev/null")
    (1, 2, None)
    """
    path = os.path.abspath(file)
    for _ in range(40):  # the kernel's limit for symbolic links
        folder, name = os.path.split(path)
        folder = os.path.realpath(folder)
        if name.isdigit() and folder in ("/dev/fd", f"/proc/{os.getpid()}/fd"):
            return int(name)
        path = os.path.join(folder, name)
        if not os.path.islink(path):
            return None
        path = os.path.join(folder, os.readlink(path))
    return None


def fsync_path(path: str | Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def stat_or_none(file: Path) -> os.stat_result | None:
    """`os.stat`, or None if the file does not exist."""
    try:
        return os.stat(file)
    except FileNotFoundError:
        return None
