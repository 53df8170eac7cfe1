"""A lock on the folder of a run: one training process at a time."""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.errors import FileError

LOCK_FILE = ".lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a run; raise a FileError that names the process which holds it, if any.

    The operating system releases it when the process ends, however it ends.
    """
    file = folder / LOCK_FILE
    handle = _open(file)
    try:
        os.truncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether a training holds the lock of a run; the lock itself is not touched.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with lock_folder(folder):
    ...     is_locked(folder)
    True
    >>> is_locked(folder)
    False
    """
    try:
        holder = (folder / LOCK_FILE).read_text(errors="replace").split()
    except OSError:
        return False
    if len(holder) < 4 or not holder[1].isdigit() or holder[3] != socket.gethostname():
        return True  # of another machine: a file that exists is all that can be known
    try:
        os.kill(int(holder[1]), 0)
    except ProcessLookupError:
        return False  # left over from a process that was killed
    except OSError:
        pass
    return True


def _open(file: Path) -> int:
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # its last holder may have removed the file between our open and our lock
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), file.stat()):
                    return handle
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
                return handle  # a file system without locks
            holder = os.read(handle, 200).decode(errors="replace") or "another process"
            os.close(handle)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise FileError(
                    f"{file.parent}: needs to be free, got a training that runs there ({holder}); "
                    f"try again when it has ended"
                ) from None
            raise
        os.close(handle)
