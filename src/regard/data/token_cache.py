"""Encoded examples on disk, memory-mapped: corpora larger than memory."""

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import Encoded
from regard.errors import FileError
from regard.files import atomic_write, make_folder, parse_json, write_text

CACHE_FILE = "cache.json"
OFFSET_DTYPE = "int64"
ENDINGS = ("tokens", "offsets")  # of the two files per field


class TokenCache(Sequence[dict[str, Tensor]]):
    """Examples written by `write_token_cache`, each a dict of token sequences.

    Every field is one memory-mapped array of tokens, with the offset of each example in another:
    opening takes no time and no memory, and the tokens of neighbouring examples are contiguous.

    >>> TokenCache("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere/cache.json: needs a token cache, got no such file
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        header = read_cache_header(self.folder)
        if header is None:
            raise FileError(f"{self.folder / CACHE_FILE}: needs a token cache, got no such file")
        try:
            self.size, fields, dtype = header["size"], header["fields"], header["dtype"]
            self.tokens = {
                name: _mapped(self.folder / f"{name}.tokens", dtype, count)
                for name, count in fields.items()
            }
            self.offsets = {
                name: _mapped(self.folder / f"{name}.offsets", OFFSET_DTYPE, self.size + 1)
                for name in fields
            }
        except (KeyError, TypeError, AttributeError) as error:
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
        return {name: self._row(name, index) for name in self.tokens}

    def _row(self, field: str, index: int) -> Tensor:
        first, last = self.offsets[field][index : index + 2]
        return torch.from_numpy(self.tokens[field][first:last].astype("int64"))

    def lengths(self, field: str) -> np.ndarray:
        """Number of tokens of each example in a field."""
        return np.diff(self.offsets[field])


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
    >>> folder = tempfile.mkdtemp()
    >>> cache = write_token_cache(folder, [{"x": [1, 2]}, {"x": [3]}], vocab=4)
    >>> len(cache), cache[1], cache.tokens["x"].tolist()
    (2, {'x': tensor([3])}, [1, 2, 3])
    """
    folder = make_folder(folder)
    (folder / CACHE_FILE).unlink(missing_ok=True)  # the old data is about to be overwritten
    dtype = "uint16" if vocab <= 1 << 16 else "uint32"
    size, counts = 0, dict[str, int]()
    with ExitStack() as stack:
        files: dict[str, tuple[Any, Any]] = {}

        def open_field(name: str) -> None:
            paths = (stack.enter_context(atomic_write(folder / f"{name}.{end}")) for end in ENDINGS)
            tokens, offsets = (stack.enter_context(path.open("wb")) for path in paths)
            offsets.write(np.zeros(1, OFFSET_DTYPE).tobytes())
            files[name], counts[name] = (tokens, offsets), 0

        for example in examples:
            for name, ids in example.items():
                if name not in files:
                    open_field(name)
                tokens, offsets = files[name]
                counts[name] += len(ids)
                tokens.write(np.asarray(ids, dtype).tobytes())
                offsets.write(np.array([counts[name]], OFFSET_DTYPE).tobytes())
            size += 1
    header = {"key": key, "size": size, "dtype": dtype, "fields": counts}
    write_text(folder / CACHE_FILE, json.dumps(header) + "\n")  # last: marks it as complete
    return TokenCache(folder)


def read_cache_header(folder: str | Path) -> dict[str, Any] | None:
    """The header of a complete cache, with its `key`; None where there is none.

    >>> read_cache_header("nowhere") is None
    True
    """
    file = Path(folder) / CACHE_FILE
    if not file.is_file():
        return None
    try:
        header = parse_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{file}: needs a token cache, got {error}") from error
    return header if isinstance(header, dict) else {}


def _mapped(file: Path, dtype: str, count: int) -> np.ndarray:
    size = count * np.dtype(dtype).itemsize
    if not file.is_file() or file.stat().st_size != size:
        raise FileError(f"{file}: needs {count} numbers of {dtype}, got a file cut short or none")
    if not size:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(file, dtype=dtype, mode="r")
