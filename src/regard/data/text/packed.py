"""Tokenized text as one memory-mapped array per split, read in fixed windows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.data.load_report import LoadReport
from regard.data.source import permute_index
from regard.data.split import Split
from regard.data.text.documents import TextFiles
from regard.data.text.tokenizers import Tokenizer
from regard.errors import ConfigError, FileError
from regard.files import atomic_write, make_folder, parse_json, write_text

PACKED_FILE = "packed.json"


class TokenWindow(NamedTuple):
    """Consecutive tokens, and the document index of each, counted from 0 in the window.

    >>> TokenWindow(torch.tensor([7, 2, 8]), torch.tensor([0, 0, 1])).tokens.shape
    torch.Size([3])
    """

    tokens: Int[Tensor, " time"]
    documents: Int[Tensor, " time"]


def pack_text(text: TextFiles, tokenizer: Tokenizer, folder: str | Path) -> LoadReport:
    """Tokenize all splits into a folder, each document ended by EOS; returns the load report.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = file.write_text("hello")
    >>> packed = file.parent / "packed"
    >>> _ = pack_text(TextFiles([file], [file], [file]), rg.data.ByteTokenizer(), packed)
    >>> PackedText(packed, length=5).token_count("test")
    6
    """
    folder = make_folder(folder)
    (folder / PACKED_FILE).unlink(missing_ok=True)  # the old data is about to be overwritten
    report, sizes = LoadReport(), {}
    dtype = "uint16" if tokenizer.vocab <= 1 << 16 else "uint32"
    for split in ("train", "valid", "test"):
        sizes[split], starts = 0, []
        with atomic_write(folder / f"{split}.tokens") as partial, partial.open("wb") as out:
            for document in text.documents(split):
                starts.append(sizes[split])
                ids = [*tokenizer.encode_input(document.text), tokenizer.eos_id]
                out.write(np.array(ids, dtype=dtype).tobytes())
                sizes[split] += len(ids)
        with atomic_write(folder / f"{split}.starts") as partial:
            np.array(starts, dtype="int64").tofile(partial)
        report.loaded += text.report.loaded
        if split == "test" or len(text.files) > 1:  # split by hash, all three read the same files
            report.reasons += text.report.reasons
            report.locations |= text.report.locations
    header = {"dtype": dtype, "vocab": tokenizer.vocab, "sizes": sizes}
    write_text(folder / PACKED_FILE, json.dumps(header))  # last: marks the folder as complete
    return report


class PackedText:
    """Windows of `length` + 1 tokens of packed text, for next-token prediction.

    Train is reshuffled and shifted every epoch; valid and test are read in order, so every
    token is predicted once.

    >>> PackedText("nowhere", length=8)
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere/packed.json: needs a packed text, got no such file
    """

    def __init__(self, folder: str | Path, length: int):
        file = Path(folder) / PACKED_FILE
        if length < 1:
            raise ConfigError(f"length: needs 1 or more, got {length}")
        if not file.is_file():
            raise FileError(f"{file}: needs a packed text, got no such file")
        try:
            header = parse_json(file.read_text())
            self.vocab, dtype, sizes = (header[name] for name in ("vocab", "dtype", "sizes"))
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"{file}: needs a packed text, got {error!r}") from error
        self.length, self._rows, self._starts = length, {}, {}
        for split, size in sizes.items():
            self._rows[split] = _mapped(Path(folder) / f"{split}.tokens", dtype, size)
            self._starts[split] = _mapped(Path(folder) / f"{split}.starts", "int64", None)

    def token_count(self, split: Split) -> int:
        """Number of tokens of a split."""
        return len(self._rows[split])

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[TokenWindow]:
        """Windows from number `start`; train repeats forever."""
        size = self.token_count(split)
        if size < 2 or (split == "train" and size <= self.length):
            raise ConfigError(f"length: needs more than that in {split}, got {size} tokens in all")
        if split != "train":
            for first in range(start * self.length, size - 1, self.length):
                yield self._window(split, first)
            return
        windows = max(1, (size - 1) // self.length - 1)  # one fewer: the first offset varies
        number = start
        while True:
            epoch, index = divmod(number, windows)
            shift = permute_index(epoch % self.length, self.length, f"{seed}/shift")
            shift = min(shift, size - 1 - windows * self.length)
            first = shift + self.length * permute_index(index, windows, f"{seed}/{epoch}")
            yield self._window(split, first)
            number += 1

    def _window(self, split: Split, first: int) -> TokenWindow:
        row, starts = self._rows[split], self._starts[split]
        ids = torch.from_numpy(row[first : first + self.length + 1].astype("int64"))
        positions = np.arange(first, first + len(ids))
        documents = np.searchsorted(starts, positions, side="right")
        return TokenWindow(ids, torch.from_numpy(documents - documents[0]))


def _mapped(file: Path, dtype: str, size: int | None) -> np.ndarray:
    if not file.is_file() or (
        size is not None and file.stat().st_size != size * np.dtype(dtype).itemsize
    ):
        raise FileError(f"{file}: needs {size} tokens of {dtype}, got a file cut short or none")
    if file.stat().st_size == 0:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(file, dtype=dtype, mode="r")
