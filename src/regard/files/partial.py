"""Output files that are written in parts, and continued by the same job after an interrupt."""

import fcntl
import json
import os
import shutil
import tempfile
import time
import zlib
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from regard.errors import FileError
from regard.files.atomic import atomic_write, partial_path
from regard.files.text import CHUNK_BYTES, parse_json, write_text

SAVE_SECONDS = 0.5  # between two records: a killed process loses what was done since
STATE_SUFFIX = ".json"  # of the file beside NAME.partial with the state of the job


class PartialFile:
    """Writes NAME.partial, which replaces NAME when it is complete.

    `commit` records the state of a job with the bytes written so far in NAME.partial.json; a later
    `PartialFile` of the same job continues there, also after a killed process.

    Args:
        file: the output.
        job: what identifies the job; a partial file of another one is an error.

    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> first = PartialFile(file, {"to": "de"})
    >>> first.write("one\\n"); first.commit({"lines": 1}); first.write("tw"); _ = first.close()
    >>> again = PartialFile(file, {"to": "de"})
    >>> again.state, again.write("two\\n"), again.complete()
    ({'lines': 1}, None, None)
    >>> file.read_text(), [path.name for path in file.parent.iterdir()]
    ('one\\ntwo\\n', ['a.txt'])
    """

    def __init__(self, file: str | Path, job: dict[str, Any]):
        self.file, self.job, self.state = Path(file), job, dict[str, Any]()
        self._size, self._saved = 0, time.monotonic()
        self._checksum = self._checked = 0  # CRC-32 of so many bytes
        self.partial = partial_path(self.file)
        if not os.access(self.partial.parent, os.W_OK):  # the file itself may still be writable
            self.partial = Path(tempfile.mkdtemp(prefix="regard-")) / self.partial.name
        self._state_file = self.partial.with_name(f"{self.partial.name}{STATE_SUFFIX}")
        try:
            if self.file.is_dir():
                raise IsADirectoryError(21, "Is a directory")
            if self.file.exists():
                os.close(os.open(self.file, os.O_WRONLY))  # raises if it is write-protected
            elif self.partial.parent != partial_path(self.file).parent:
                raise PermissionError(13, "Permission denied")
            self._out = self._open()
        except OSError as error:
            raise FileError(f"{file}: cannot be written, {error.strerror or error}") from error

    def _open(self) -> TextIOWrapper:
        if self._is_output():
            self._remove()
        if not self.partial.exists():  # of a job that ended, or deleted to start again
            self._state_file.unlink(missing_ok=True)
        handle = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o666)
        options: Any = {"encoding": "utf-8", "newline": "", "errors": "surrogateescape"}
        out = os.fdopen(handle, "r+", **options)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            out.close()
            raise FileError(f"{self.file}: needs one job at a time, got another's") from error
        except OSError:  # a file system without locks
            pass
        if self._state_file.exists():
            try:
                self._restore(out)
            except BaseException:
                out.close()
                raise
        else:  # of a process that was killed before its first commit, or of an older version
            out.truncate(0)
        return out

    def _restore(self, out: TextIOWrapper) -> None:
        try:
            record = parse_json(self._state_file.read_text())
            job, size, self.state = dict(record["job"]), int(record["bytes"]), dict(record["state"])
            checksum = int(record["checksum"])
            if not 0 <= size < 1 << 60:
                raise ValueError(f"{size} bytes")
        except (ValueError, KeyError, TypeError, OSError, OverflowError) as error:
            raise FileError(
                f"{self._state_file}: needs the state of a job, got a damaged one, {error}; "
                f"try deleting {self.partial}"
            ) from error
        if size > os.fstat(out.fileno()).st_size:
            raise FileError(f"{self.partial}: needs {size} bytes, got fewer; try deleting it")
        if (got := self._checksum_of(size)) != checksum:
            raise FileError(
                f"{self.partial}: needs checksum {checksum}, got {got}: it was damaged, or "
                "its state; try deleting it"
            )
        same = json.loads(json.dumps(self.job))
        if job != same:
            other = " ".join(key for key in same if job.get(key) != same[key]) or "job"
            raise FileError(
                f"{self.partial}: needs the same job to be continued, got another {other}; "
                "try deleting it, or the first command again"
            )
        out.truncate(size)
        out.seek(size)
        self._size = size

    def read(self) -> str:
        """What earlier processes wrote."""
        self._out.seek(0)
        return self._out.read()

    def write(self, text: str) -> None:
        """Append."""
        self._out.write(text)

    def journal(self, record: Any) -> None:
        """Append a JSON line, for a job whose text is written by `complete`."""
        self.write(json.dumps(record) + "\n")

    def commit(self, state: dict[str, Any]) -> None:
        """Record that everything up to here is finished, with the state to continue from."""
        self._out.flush()
        self.state, self._size = state, os.fstat(self._out.fileno()).st_size
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self._save()

    def _checksum_of(self, size: int) -> int:
        """CRC-32 of the first bytes, read from where that was before, and of the state."""
        with self.partial.open("rb") as written:
            written.seek(self._checked)
            while chunk := written.read(min(size - self._checked, CHUNK_BYTES)):
                self._checksum = zlib.crc32(chunk, self._checksum)
                self._checked += len(chunk)
        return zlib.crc32(json.dumps(self.state).encode(), self._checksum)

    def _save(self) -> None:
        checksum = self._checksum_of(self._size)
        record = {"job": self.job, "bytes": self._size, "checksum": checksum, "state": self.state}
        write_text(self._state_file, json.dumps(record))
        self._saved = time.monotonic()

    def complete(self, text: str | None = None) -> None:
        """Replace the file by what was written, or by `text`.

        NAME.partial stays until the file has its name: a signal at any point loses nothing.
        """
        self._out.close()
        if text is None:
            with atomic_write(self.file) as temporary:
                try:
                    os.link(self.partial, temporary)
                except OSError:  # another file system, or one without hard links
                    shutil.copyfile(self.partial, temporary)
        else:
            write_text(self.file, text)
        self._remove()

    def close(self) -> Path | None:
        """Stop before the end; returns the file with the committed part, None if there is none."""
        with suppress(OSError):  # a full disk: what was committed is there
            self._out.close()
        if self.state and self.partial.exists() and not self._is_output():
            with suppress(FileError):  # then the earlier record counts
                self._save()
            return self.partial
        self._remove()
        return None

    def _is_output(self) -> bool:
        """Whether the file has its name, but `complete` was stopped right after."""
        try:
            return self.file.samefile(self.partial)
        except OSError:
            return False

    def _remove(self) -> None:
        self.partial.unlink(missing_ok=True)  # first: a record alone means nothing
        self._state_file.unlink(missing_ok=True)


class StreamOutput:
    """Standard output, a FIFO or a device: written as it comes, nothing to continue."""

    def __init__(self, out: Any):
        self.out, self.state = out, dict[str, Any]()

    def read(self) -> str:
        return ""

    def write(self, text: str) -> None:
        self.out.write(text)

    def journal(self, record: Any) -> None:
        return

    def commit(self, state: dict[str, Any]) -> None:
        self.out.flush()

    def complete(self, text: str | None = None) -> None:
        self.out.write(text or "")
        self.out.flush()
