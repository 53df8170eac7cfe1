"""Text as one long row of tokens on disk, read in windows: any size, any place, at once."""

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
    """Neighbouring tokens, and for each the document it is from, counted from 0 in the window.

    >>> TokenWindow(torch.tensor([7, 2, 8]), torch.tensor([0, 0, 1])).tokens.shape
    torch.Size([3])
    """

    tokens: Int[Tensor, " time"]
    documents: Int[Tensor, " time"]


def pack_text(text: TextFiles, tokenizer: Tokenizer, folder: str | Path) -> LoadReport:
    """Write the documents of all splits as tokens, each with an end; what was left out comes back.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = file.write_text("hello")
    >>> report = pack_text(TextFiles([file], [file], [file]), rg.data.ByteTokenizer(), file.parent / "packed")
    >>> PackedText(file.parent / "packed", length=5).token_count("test")
    6
    """
    folder = make_folder(folder)
    (folder / PACKED_FILE).unlink(missing_ok=True)  # what is packed there is no longer whole
    whole, sizes = LoadReport(), {}
    kind = "uint16" if tokenizer.vocab <= 1 << 16 else "uint32"
    for split in ("train", "valid", "test"):
        sizes[split], starts = 0, []
        with atomic_write(folder / f"{split}.tokens") as place, place.open("wb") as out:
            for document in text.documents(split):
                starts.append(sizes[split])
                ids = [*tokenizer.encode_input(document.text), tokenizer.eos_id]
                out.write(np.array(ids, dtype=kind).tobytes())
                sizes[split] += len(ids)
        with atomic_write(folder / f"{split}.starts") as place:
            np.array(starts, dtype="int64").tofile(place)
        whole.loaded += text.report.loaded
        if split == "test" or len(text.files) > 1:  # by a hash, every split reads the same files
            whole.reasons += text.report.reasons
            whole.locations |= text.report.locations
    held = {"kind": kind, "vocab": tokenizer.vocab, "sizes": sizes}
    write_text(folder / PACKED_FILE, json.dumps(held))  # last: a folder without it is not whole
    return whole


class PackedText:
    """Windows of packed text: `length` tokens and the one after, so that each has its next.

    Training takes windows in an order of its own each time round, cut at another place; valid and
    test are read from end to end, every token once as a next one.

    >>> PackedText("nowhere", length=8)
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere/packed.json: needs to be what `pack_text` wrote, got nothing there
    """

    def __init__(self, folder: str | Path, length: int):
        file = Path(folder) / PACKED_FILE
        if length < 1:
            raise ConfigError(f"length: needs 1 or more, got {length}")
        if not file.is_file():
            raise FileError(f"{file}: needs to be what `pack_text` wrote, got nothing there")
        try:
            held = parse_json(file.read_text())
            self.vocab, kind, sizes = held["vocab"], held["kind"], held["sizes"]
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"{file}: needs to be what `pack_text` wrote, got {error!r}") from error
        self.length, self._rows, self._starts = length, {}, {}
        for split, size in sizes.items():
            self._rows[split] = _mapped(Path(folder) / f"{split}.tokens", kind, size)
            self._starts[split] = _mapped(Path(folder) / f"{split}.starts", "int64", None)

    def token_count(self, split: Split) -> int:
        """How many tokens a split has."""
        return len(self._rows[split])

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[TokenWindow]:
        """Windows from the one numbered `start`: for ever for train, once otherwise."""
        size = self.token_count(split)
        if size < 2 or (split == "train" and size <= self.length):
            raise ConfigError(f"length: needs more than that in {split}, got {size} tokens in all")
        if split != "train":
            for first in range(start * self.length, size - 1, self.length):
                yield self._window(split, first)
            return
        each = max(1, (size - 1) // self.length - 1)  # one less: the first cut moves
        number = start
        while True:
            turn, index = divmod(number, each)
            shift = permute_index(turn % self.length, self.length, f"{seed}/shift")
            shift = min(shift, size - 1 - each * self.length)
            first = shift + self.length * permute_index(index, each, f"{seed}/{turn}")
            yield self._window(split, first)
            number += 1

    def _window(self, split: Split, first: int) -> TokenWindow:
        row, starts = self._rows[split], self._starts[split]
        ids = torch.from_numpy(row[first : first + self.length + 1].astype("int64"))
        places = np.arange(first, first + len(ids))
        documents = np.searchsorted(starts, places, side="right")
        return TokenWindow(ids, torch.from_numpy(documents - documents[0]))


def _mapped(file: Path, kind: str, size: int | None) -> np.ndarray:
    if not file.is_file() or (
        size is not None and file.stat().st_size != size * np.dtype(kind).itemsize
    ):
        raise FileError(f"{file}: needs {size} tokens of {kind}, got a file cut short or none")
    if file.stat().st_size == 0:
        return np.zeros(0, kind)  # an empty file cannot be mapped
    return np.memmap(file, dtype=kind, mode="r")
