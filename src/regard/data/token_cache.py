"""Encoded examples on disk: corpora larger than memory."""

import json
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from regard.data.batches import Encoded
from regard.errors import FileError
from regard.files import atomic_write, make_folder, parse_json, write_text

CACHE_FILE = "cache.json"
DTYPES = ("uint16", "uint32")  # of tokens
ENDINGS = ("tokens", "offsets")  # of the two files per field
BUFFER_SIZE = 1 << 18  # tokens and offsets of a field that are written together


class TokenRow:
    """All tokens of one field of a cache, read from the file slice by slice.

    Not memory-mapped: every page that a random read touches would count as memory of the process.

    >>> import tempfile
    >>> cache = write_token_cache(tempfile.mkdtemp(), [{"x": [1, 2]}, {"x": [3]}], vocab=4)
    >>> len(cache.tokens["x"]), cache.tokens["x"][1:].tolist()
    (3, [2, 3])
    """

    def __init__(self, file: Path, dtype: str, size: int):
        self.file, self.dtype, self.size = file, np.dtype(dtype), size
        self._width = self.dtype.itemsize
        if not file.is_file() or file.stat().st_size != size * self._width:
            raise FileError(
                f"{file}: needs {size} numbers of {dtype}, got a file cut short or none"
            )
        self._handle = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: slice) -> np.ndarray:
        first, last, _ = index.indices(self.size)
        return self.read(first, max(first, last))

    def read(self, first: int, last: int) -> np.ndarray:
        """The tokens from `first` to before `last`."""
        if not 0 <= first <= last <= self.size:
            raise FileError(f"{self.file}: needs offsets up to {self.size}, got {first} to {last}")
        size = (last - first) * self._width
        data = os.pread(self._handle, size, first * self._width)
        if len(data) < size:
            raise FileError(f"{self.file}: needs {self.size} tokens, got a file cut short")
        return np.frombuffer(data, self.dtype)


class TokenCache(Sequence[dict[str, np.ndarray]]):
    """Examples written by `write_token_cache`, each a dict of arrays of token ids.

    Every field is one file of tokens, with the offset of each example in another: opening takes no
    time and no memory.

    >>> TokenCache("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere/cache.json: needs a token cache, got no such file
    """

    def __init__(self, folder: str | Path):
        self.folder, self.offsets = Path(folder), dict[str, np.ndarray]()
        self.tokens, self._offsets = dict[str, TokenRow](), dict[str, TokenRow]()
        header = read_cache_header(self.folder)
        if header is None:
            raise FileError(f"{self.folder / CACHE_FILE}: needs a token cache, got no such file")
        try:
            self.size, fields, dtype = _check_header(header)
            for name, count in fields.items():
                file = self.folder / f"{name}.offsets"
                self._offsets[name] = TokenRow(file, "int64", self.size + 1)
                # a plain view: indexing a np.memmap takes several times as long
                self.offsets[name] = np.asarray(np.memmap(file, dtype="int64", mode="r"))
                self.tokens[name] = TokenRow(self.folder / f"{name}.tokens", dtype, count)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, FileError):
                raise
            raise FileError(
                f"{self.folder / CACHE_FILE}: needs a token cache, got {error!r}"
            ) from error

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < self.size:
            raise IndexError(index)
        ends = {name: row.read(index, index + 2).tolist() for name, row in self._offsets.items()}
        return {name: row.read(*ends[name]) for name, row in self.tokens.items()}

    def lengths(self, field: str) -> np.ndarray:
        """Number of tokens of each example in a field."""
        lengths = np.diff(self.offsets[field])
        if (lengths < 0).any():
            file = self.folder / f"{field}.offsets"
            raise FileError(f"{file}: needs offsets that grow, got others: it was damaged")
        return lengths


def write_token_cache(
    folder: str | Path, examples: Iterable[Encoded], *, vocab: int, key: str = ""
) -> TokenCache:
    """Write examples, each a dict of lists of token ids, and open them as a `TokenCache`.

    Args:
        folder: of the cache; an old one there is replaced.
        examples: consumed one at a time; all have the same fields.
        vocab: number of ids, which decides the size of a token on disk.
        key: says what the cache was made of, for `read_cache_header`.

    >>> import tempfile
    >>> cache = write_token_cache(tempfile.mkdtemp(), [{"x": [1, 2]}, {"x": [3]}], vocab=4)
    >>> len(cache), cache[1]["x"].tolist()
    (2, [3])
    """
    folder = make_folder(folder)
    (folder / CACHE_FILE).unlink(missing_ok=True)  # the old data is about to be overwritten
    dtype = "uint16" if vocab <= 1 << 16 else "uint32"
    size, counts = 0, dict[str, int]()
    with ExitStack() as stack:
        fields: dict[str, tuple[BinaryIO, array, BinaryIO, array]] = {}

        def open_field(name: str) -> None:
            paths = (stack.enter_context(atomic_write(folder / f"{name}.{end}")) for end in ENDINGS)
            tokens, offsets = (stack.enter_context(path.open("wb")) for path in paths)
            fields[name] = tokens, array(np.dtype(dtype).char), offsets, array("q", [0])
            counts[name] = 0

        def flush() -> None:
            for tokens, ids, offsets, ends in fields.values():
                for file, values in ((tokens, ids), (offsets, ends)):
                    file.write(values.tobytes())
                    del values[:]

        for example in examples:
            for name, ids in example.items():
                if name not in fields:
                    open_field(name)
                _, pending, _, ends = fields[name]
                if isinstance(ids, np.ndarray):  # far quicker than one number at a time
                    pending.frombytes(ids.astype(dtype).tobytes())
                else:
                    pending.extend(ids)
                counts[name] += len(ids)
                ends.append(counts[name])
            size += 1
            if any(len(ids) + len(ends) >= BUFFER_SIZE for _, ids, _, ends in fields.values()):
                flush()
        flush()
    header = {"key": key, "size": size, "dtype": dtype, "fields": counts}
    write_text(folder / CACHE_FILE, json.dumps(header) + "\n")  # last: marks it as complete
    return TokenCache(folder)


def cached_examples(
    folder: str | Path | None, examples: Iterable[Encoded], *, vocab: int, key: str
) -> TokenCache:
    """The token cache of a folder if its key is this one, else a new one of the examples.

    Args:
        folder: of the cache; None is a temporary one, removed with the object.
        examples: consumed only if the cache has to be written.
        vocab: number of ids.
        key: says what the examples depend on.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = cached_examples(folder, [{"x": [1, 2]}], vocab=4, key="a")
    >>> cached_examples(folder, [], vocab=4, key="a")[0]["x"].tolist()
    [1, 2]
    """
    if folder is None:
        temporary = tempfile.TemporaryDirectory(prefix="regard-")
        cache = write_token_cache(temporary.name, examples, vocab=vocab, key=key)
        weakref.finalize(cache, temporary.cleanup)
        return cache
    try:
        if (read_cache_header(folder) or {}).get("key") == key:
            return TokenCache(folder)
    except FileError:  # damaged: written again
        pass
    return write_token_cache(folder, examples, vocab=vocab, key=key)


def read_cache_header(folder: str | Path) -> dict[str, Any] | None:
    """The header of a complete cache, with its `key`; None where there is none."""
    file = Path(folder) / CACHE_FILE
    if not file.is_file():
        return None
    try:
        header = parse_json(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise FileError(f"{file}: needs a token cache, got {error}") from error
    return header if isinstance(header, dict) else {}


def _check_header(header: dict[str, Any]) -> tuple[int, dict[str, int], str]:
    size, fields, dtype = header["size"], header["fields"], header["dtype"]
    names_are_files = all(name.isidentifier() for name in fields)
    counts = [size, *fields.values()]
    if dtype not in DTYPES or not names_are_files or any(type(n) is not int for n in counts):
        raise ValueError(f"{dtype!r:.20}, {fields!r:.60}, {size!r:.20}")
    return size, fields, dtype
