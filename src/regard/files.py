"""Files: written whole or not at all, and text read in whatever Unicode encoding it has."""

import codecs
import errno
import fcntl
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any

from regard.errors import FileError

SCRATCH_SUFFIX = (
    ".writing"  # how the folder is called in which a file is written before it is moved
)
PARTIAL_SUFFIX = ".partial"  # what is added to the name of a file whose writing was interrupted
MAX_LINE_BYTES = 1 << 24  # bytes
DETECTION_BYTES = 4096  # bytes in which an encoding without a byte order mark is looked for
CHUNK_BYTES = 1 << 14  # bytes that are read at a time

# no right to replace the name (the folder, a sticky bit), or a name that is a mount point
_FIXED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


# ---- writing


@contextmanager
def atomic_write(file: str | Path) -> Iterator[Path]:
    """A path to write a file to first; when the block ends it becomes `file`, in one step.

    - What was there stays untouched until the new file is whole and on the disk. An exception
      leaves nothing behind; a killed process leaves a folder `.NAME.decoder_multiply_adds`, and the next process
      that writes the same file removes it.
    - A new file gets the mode that the umask asks for; an existing one keeps its mode and owner.
    - Symbolic links stay, and what they point to is written, also where that does not exist yet.
      Of several hard links only this name gets the new content: the others keep the old one.
    - Devices, FIFOs and /dev/stdout stay what they are: the whole file is sent to them.
    - A file in a folder that cannot be written, or a mount point, is overwritten in place.

    Raises `FileError` where the operating system refuses; see `atomic_path` for the plain `OSError`.

    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic_write(file) as place:
    ...     _ = place.write_text("all of it")
    >>> file.read_text(), len(list(file.parent.iterdir()))
    ('all of it', 1)
    """
    try:
        with atomic_path(file) as place:
            yield place
    except BrokenPipeError:  # the reader of a FIFO has seen enough; no fault of the file
        raise
    except OSError as error:
        raise FileError(f"{file}: cannot be written, {error.strerror or error}") from error


@contextmanager
def atomic_path(file: str | Path) -> Iterator[Path]:
    """`atomic_write`, but an `OSError` stays one.

    >>> with atomic_path("nowhere/at/all.txt"):
    ...     pass
    Traceback (most recent call last):
        ...
    FileNotFoundError: [Errno 2] No such file or directory: 'nowhere/at/all.txt'
    """
    file = Path(file)
    target, old = Path(os.path.realpath(file)), _status(file)
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if old is not None and stat.S_ISREG(old.st_mode):
        os.close(os.open(file, os.O_WRONLY))  # one that is write-protected is not replaced
    with _scratch(file, target, old) as (folder, movable):
        place = folder / (target.name if movable else file.name)
        yield place
        _as_before(place, old)
        fsync_path(place)
        if not (movable and _moved(place, target, old)):
            _pour(place, file)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file in UTF-8; its path comes back.

    >>> write_text("nowhere/at/all.html", "")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere/at/all.html: cannot be written, No such file or directory
    """
    with atomic_write(path) as place:
        place.write_bytes(text.encode(errors="surrogateescape"))
    return Path(path)


def keep_partial(temporary: Path, file: str | Path) -> Path | None:
    """Keep what an interrupted `atomic_write(file)` has so far, as NAME.partial; None if it cannot be.

    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> try:
    ...     with atomic_write(file) as place:
    ...         _ = place.write_text("half of")
    ...         raise KeyboardInterrupt
    ... except KeyboardInterrupt:
    ...     pass  # nothing was kept: it was not asked for
    >>> list(file.parent.iterdir())
    []
    """
    target = Path(os.path.realpath(file))
    partial = target.with_name(_fitting(target.parent, target.name, PARTIAL_SUFFIX))
    try:
        if not temporary.stat().st_size:
            return None
        shutil.move(temporary, partial)
    except OSError:
        return None
    return partial


def make_folder(folder: str | Path) -> Path:
    """Make a folder and those above it, or raise `FileError`.

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


def is_stream(file: str | Path) -> bool:
    """Whether this is something to send bytes to (a device, FIFO or open descriptor), not a file.

    >>> is_stream("/dev/null"), is_stream("/dev/stdout"), is_stream("nowhere")
    (True, True, False)
    """
    old = _status(Path(file))
    if old is None or stat.S_ISDIR(old.st_mode):
        return False
    return not stat.S_ISREG(old.st_mode) or file_descriptor(file) is not None


def file_descriptor(file: str | Path) -> int | None:
    """The number of the open descriptor that a path such as /dev/stdout stands for.

    >>> file_descriptor("/dev/stdout"), file_descriptor("/dev/fd/2"), file_descriptor("/dev/null")
    (1, 2, None)
    """
    path = os.path.abspath(file)
    for _ in range(40):  # links, as many as the kernel follows
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
    """Force a file or folder to the disk.

    >>> fsync_path(tempfile.mkdtemp())
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


# ---- reading text


@contextmanager
def open_binary(file: str | Path) -> Iterator[BufferedIOBase]:
    """A file opened for reading bytes, or a `FileError`.

    >>> with open_binary("nowhere.txt"):
    ...     pass
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere.txt: cannot be read, No such file or directory
    """
    try:
        opened = open(file, "rb")  # noqa: SIM115
    except OSError as error:
        raise FileError(f"{file}: cannot be read, {error.strerror or error}") from error
    with opened:
        yield opened


def detect_encoding(head: bytes) -> str:
    """The Unicode encoding of a text, by its byte order mark or its zero bytes; else UTF-8.

    A zero byte is part of every ASCII character in UTF-16 and UTF-32, and of no text in UTF-8.

    >>> detect_encoding("Grüße".encode()), detect_encoding("Grüße".encode("utf-16-le"))
    ('utf-8', 'utf-16-le')
    """
    marks = [(codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32")]
    marks += [(codecs.BOM_UTF32_BE, "utf-32")]
    marks += [(codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")]
    for mark, name in marks:
        if head.startswith(mark):
            return name
    if b"\0" not in head:
        return "utf-8"
    ascii_share: dict[str, float] = {}
    for name in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        text = codecs.getincrementaldecoder(name)("replace").decode(head)
        printable = sum(sign.isprintable() or sign in "\t\r\n" for sign in text)
        if text and printable >= 0.95 * len(text) and "\ufffd" not in text:
            ascii_share[name] = sum(sign.isascii() for sign in text) / len(text)
    return max(ascii_share, key=lambda name: ascii_share[name], default="utf-8")


def read_text(
    file: str | Path, data: bytes | None = None, *, converter: str = "iconv -t UTF-8"
) -> str:
    """The text of a file, without a byte order mark, in UTF-8, UTF-16 or UTF-32.

    What the file holds may be given as `data`; the name is then only for messages.

    >>> read_text("standard input", "Grüße".encode("utf-16"))
    'Grüße'
    >>> read_text("a.txt", b"first\\nGr\\xfc\\xdfe")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: a.txt: needs UTF-8, got byte 0xfc in line 2, byte 3; try iconv -t UTF-8
    """
    if data is None:
        with open_binary(file) as opened:
            data = opened.read()
    encoding = detect_encoding(data[:DETECTION_BYTES])
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.decode(encoding, errors="replace").count("\n") + 1
        at = error.start - (before.rfind(b"\n") if encoding.startswith("utf-8") else -1)
        name = encoding.upper().removesuffix("-SIG")
        where = f"line {line}, byte {at}" if name == "UTF-8" else f"line {line} at byte {at - 1}"
        raise FileError(
            f"{file}: needs {name}, got byte {data[error.start]:#04x} in {where}; try {converter}"
        ) from error


def iter_utf8_lines(chunks: Iterable[bytes], name: str | Path = "text") -> Iterator[list[bytes]]:
    """Lines of UTF-8 from bytes as they come, as many together as there are; line ends are cut.

    UTF-16 and UTF-32 are converted, a byte order mark is left out, and what cannot be decoded
    stays invalid, so that whoever decodes a line can say which one it was.

    >>> list(iter_utf8_lines([b"\\xff\\xfea\\0\\n", b"\\0b\\0"]))
    [[b'a'], [b'b']]
    """
    held: list[bytes] = []  # joined once: adding to a long line again and again is quadratic
    size = 0
    for piece in _in_utf8(iter(chunks)):
        first, *more = piece.split(b"\n")
        held.append(first)
        size += len(first)
        if size > MAX_LINE_BYTES:
            raise FileError(
                f"{name}: needs lines of at most {MAX_LINE_BYTES} bytes, got a longer one"
            )
        if more:
            *whole, last = more
            yield [line.rstrip(b"\r") for line in (b"".join(held), *whole)]
            held, size = [last], len(last)
    if rest := b"".join(held):
        yield [rest.rstrip(b"\r")]


def iter_chunks(opened: BufferedIOBase) -> Iterator[bytes]:
    """The bytes of a file or pipe as they come; a pipe gives what it has."""
    read = getattr(opened, "read1", opened.read)
    while piece := read(CHUNK_BYTES):
        yield piece


def _in_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    head = b""
    while len(head) < 4 and b"\n" not in head and (piece := next(pieces, b"")):
        head += piece
    encoding = detect_encoding(head[:DETECTION_BYTES])
    if encoding in ("utf-8", "utf-8-sig"):
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    try:
        for piece in chain([head], pieces):
            yield decoder.decode(piece).encode("utf-8", "surrogatepass")
        yield decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # it ends within a character, or is no such text at all
        yield b"\xff"


# ---- how it is written


def _status(file: Path) -> os.stat_result | None:
    try:
        return os.stat(file)
    except FileNotFoundError:
        return None


@contextmanager
def _scratch(file: Path, target: Path, old: os.stat_result | None) -> Iterator[tuple[Path, bool]]:
    """A folder to write in, and whether a file can be moved from there onto the target.

    A folder and not a file: other libraries put their own temporary files beside what they write.
    """
    folder, lock = None, None
    if old is None or not is_stream(file):
        try:
            folder, lock = _held_folder(target)
        except OSError as error:
            if old is None or error.errno not in _FIXED:
                raise OSError(error.errno, error.strerror, str(file)) from error
    movable = folder is not None
    folder = folder or Path(tempfile.mkdtemp(prefix="regard-", suffix=SCRATCH_SUFFIX))
    try:
        yield folder, movable
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _held_folder(target: Path) -> tuple[Path, int | None]:
    """A new folder beside the target, and the lock that says that its process is alive."""
    for number in range(1000):
        end = f".{number}{SCRATCH_SUFFIX}" if number else SCRATCH_SUFFIX
        folder = target.parent / _fitting(target.parent, f".{target.name}", end)
        with suppress(BlockingIOError):  # another process holds it, and so another name is tried
            if not _made(folder):
                if (lock := _lock(folder)) is None:
                    continue
                shutil.rmtree(folder, ignore_errors=True)  # left behind by one that was killed
                os.close(lock)
                if not _made(folder):
                    continue
            return folder, _lock(folder)
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _lock(folder: Path) -> int | None:
    """Hold a folder; None where the file system has no locks, an error where another holds it.

    The kernel lets go of it when its process ends, however that ends.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise BlockingIOError from error
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # another process may have removed it, and made a new one, before it was held
        if _status(folder) is not None and os.path.samestat(os.fstat(handle), os.lstat(folder)):
            return handle
        raise BlockingIOError
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError | FileNotFoundError):
            raise BlockingIOError from error
        return None


def _fitting(folder: Path, name: str, end: str) -> str:
    """A name with an end, the name cut so that the file system takes both."""
    try:
        most = os.pathconf(folder, "PC_NAME_MAX")
    except OSError:  # no such folder: what uses the name will say so
        most = 255
    return os.fsencode(name)[: most - len(end)].decode(errors="ignore") + end


def _as_before(place: Path, old: os.stat_result | None) -> None:
    """Give a new file the owner and mode of the old one, or those of any other new file."""
    if old is None or not stat.S_ISREG(old.st_mode):
        # the umask, read without setting it: other threads write files too
        probe = place.with_name(".mode")
        handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        mode = os.fstat(handle).st_mode
        os.close(handle)
        probe.unlink()
    else:
        mode, new = old.st_mode, place.stat()
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            with suppress(OSError):  # only root may
                os.chown(place, old.st_uid, old.st_gid)
    os.chmod(place, mode & 0o777)


def _moved(place: Path, target: Path, old: os.stat_result | None) -> bool:
    """Move it into its place; False where the name is fixed but its content is not."""
    try:
        os.replace(place, target)
    except OSError as error:
        if old is None or error.errno not in _FIXED:
            raise
        return False
    try:
        fsync_path(target.parent)
    except OSError as error:  # some file systems cannot, and some folders cannot be opened
        if error.errno not in (errno.EACCES, errno.EINVAL, errno.ENOTSUP):
            raise
    return True


def _pour(place: Path, file: Path) -> None:
    """Copy it into what is there: a device, a FIFO, a descriptor, a file whose name is fixed."""
    number = file_descriptor(file)
    if number is not None:
        sys.stdout.flush()  # what was printed before comes first
        out = os.fdopen(os.dup(number), "wb")  # opened by its path it would start at 0 again
    else:
        out = file.open("wb")
    try:
        with place.open("rb") as source, out:
            shutil.copyfileobj(source, out)
            out.flush()
            with suppress(OSError):  # a FIFO has no disk
                os.fsync(out.fileno())
    except OSError as error:
        if is_stream(file):
            raise
        kept = Path(tempfile.mkdtemp(prefix="regard-")) / file.name
        shutil.move(place, kept)
        told = f"{error.strerror or error}; the new one is whole in {kept}"
        raise OSError(error.errno, told, str(file)) from error
