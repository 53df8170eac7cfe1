"""Atomic file writing: a file is replaced as a whole, or left as it was."""

import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.errors import FileError, RegardError
from regard.files.paths import file_descriptor, fsync_path, is_stream, stat_or_none

# Both suffixes are on disk: a folder left by a killed process must stay recognisable.
SCRATCH_SUFFIX = ".writing"  # folder in which a file is written before it is moved into place
PARTIAL_SUFFIX = ".partial"  # appended to the name of an interrupted file that is kept

# no permission to replace the name (folder, sticky bit), or the name is a mount point
_NOT_REPLACEABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


@contextmanager
def atomic_write(file: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends it replaces `file` in one step.

    - The old file stays untouched until the new one is complete and flushed to disk. An exception
      leaves nothing behind; a killed process leaves a folder `.NAME.writing`, which the next
      process that writes the same file removes.
    - A new file gets the mode given by the umask; an existing one keeps its mode and owner.
    - Symbolic links are followed and kept, also dangling ones. Of several hard links only this
      name gets the new content.
    - Devices, FIFOs and /dev/stdout are written to, not replaced.
    - A file in a read-only folder, or a mount point, is overwritten in place.

    Raises `FileError` where the operating system refuses; `atomic_path` raises the `OSError`.

    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic_write(file) as temporary:
    ...     _ = temporary.write_text("complete")
    >>> file.read_text(), len(list(file.parent.iterdir()))
    ('complete', 1)
    """
    try:
        with atomic_path(file) as temporary:
            yield temporary
    except BrokenPipeError:  # the reader of a FIFO stopped reading; not an error of the file
        raise
    except OSError as error:
        raise FileError(f"{file}: cannot be written, {error.strerror or error}") from error


@contextmanager
def atomic_path(file: str | Path) -> Iterator[Path]:
    """`atomic_write` that lets an `OSError` through.

    >>> with atomic_path("nowhere/at/all.txt"):
    ...     pass
    Traceback (most recent call last):
        ...
    FileNotFoundError: [Errno 2] No such file or directory: 'nowhere/at/all.txt'
    """
    file = Path(file)
    target, old = Path(os.path.realpath(file)), stat_or_none(file)
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if old is not None and stat.S_ISREG(old.st_mode):
        os.close(os.open(file, os.O_WRONLY))  # raises if it is write-protected
    with _scratch_folder(file, target, old) as (folder, is_movable):
        temporary = folder / (target.name if is_movable else file.name)
        yield temporary
        _copy_owner_and_mode(temporary, old)
        fsync_path(temporary)
        if not (is_movable and _replace(temporary, target, old)):
            _copy_into(temporary, file)


def partial_path(file: str | Path) -> Path:
    """Where the finished part of a file is kept until it is complete: NAME.partial.

    >>> partial_path("/nowhere/a.txt")
    PosixPath('/nowhere/a.txt.partial')
    """
    target = Path(os.path.realpath(file))
    return target.with_name(_fit_name(target.parent, target.name, PARTIAL_SUFFIX))


@contextmanager
def _scratch_folder(
    file: Path, target: Path, old: os.stat_result | None
) -> Iterator[tuple[Path, bool]]:
    """A folder to write in, and whether a file can be moved from there onto the target.

    A folder, not a file: other libraries put temporary files beside what they write.
    """
    folder, lock = None, None
    if old is None or not is_stream(file):
        try:
            folder, lock = _make_locked_folder(target)
        except OSError as error:
            if old is None or error.errno not in _NOT_REPLACEABLE:
                raise OSError(error.errno, error.strerror, str(file)) from error
    is_movable = folder is not None
    folder = folder or Path(tempfile.mkdtemp(prefix="regard-", suffix=SCRATCH_SUFFIX))
    try:
        yield folder, is_movable
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _make_locked_folder(target: Path) -> tuple[Path, int | None]:
    """A new folder beside the target, and the lock that marks its process as alive."""
    for number in range(1000):
        suffix = f".{number}{SCRATCH_SUFFIX}" if number else SCRATCH_SUFFIX
        folder = target.parent / _fit_name(target.parent, f".{target.name}", suffix)
        with suppress(BlockingIOError):  # locked by another process: try the next name
            if not _make_new(folder):
                if (lock := _lock(folder)) is None:
                    continue
                shutil.rmtree(folder, ignore_errors=True)  # left behind by a killed process
                os.close(lock)
                if not _make_new(folder):
                    continue
            return folder, _lock(folder)
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))


def _make_new(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _lock(folder: Path) -> int | None:
    """Lock a folder; None if the file system has no locks, BlockingIOError if it is locked.

    The kernel releases the lock when its process ends, however it ends.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise BlockingIOError from error
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # another process may have removed and recreated the folder before it was locked
        if os.path.samestat(os.fstat(handle), os.lstat(folder)):
            return handle
        raise BlockingIOError
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError | FileNotFoundError):
            raise BlockingIOError from error
        return None


def _fit_name(folder: Path, name: str, suffix: str) -> str:
    """The name with a suffix, truncated to the length that the file system allows."""
    try:
        longest = os.pathconf(folder, "PC_NAME_MAX")
    except OSError:  # no such folder: opening the file reports it
        longest = 255
    return os.fsencode(name)[: longest - len(suffix)].decode(errors="ignore") + suffix


def _copy_owner_and_mode(temporary: Path, old: os.stat_result | None) -> None:
    """Give a new file the owner and mode of the old one, or the default mode."""
    if old is None or not stat.S_ISREG(old.st_mode):
        # reads the umask without setting it: other threads write files too
        probe = temporary.with_name(".mode")
        handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        mode = os.fstat(handle).st_mode
        os.close(handle)
        probe.unlink()
    else:
        mode, new = old.st_mode, temporary.stat()
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            with suppress(OSError):  # only root may
                os.chown(temporary, old.st_uid, old.st_gid)
    os.chmod(temporary, mode & 0o777)


def _replace(temporary: Path, target: Path, old: os.stat_result | None) -> bool:
    """Move the file into place; False where the name cannot be replaced but its content can."""
    try:
        os.replace(temporary, target)
    except OSError as error:
        if old is None or error.errno not in _NOT_REPLACEABLE:
            raise
        return False
    try:
        fsync_path(target.parent)
    except OSError as error:  # some file systems do not support it, some folders are unreadable
        if error.errno not in (errno.EACCES, errno.EINVAL, errno.ENOTSUP):
            raise
    return True


def _copy_into(temporary: Path, file: Path) -> None:
    """Copy the content into an existing device, FIFO, descriptor or unreplaceable file."""
    descriptor = file_descriptor(file)
    if descriptor is not None:
        sys.stdout.flush()  # keep the order with earlier prints
        out = os.fdopen(os.dup(descriptor), "wb")  # opened by path it would restart at offset 0
    else:
        out = file.open("wb")
    try:
        with temporary.open("rb") as source, out:
            shutil.copyfileobj(source, out)
            out.flush()
            with suppress(OSError):  # a FIFO has no disk
                os.fsync(out.fileno())
    except OSError as error:
        if is_stream(file):
            raise
        rescued = Path(tempfile.mkdtemp(prefix="regard-")) / file.name
        shutil.move(temporary, rescued)
        message = f"{error.strerror or error}; the complete new file is {rescued}"
        raise OSError(error.errno, message, str(file)) from error


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
