"""Tokenized text as one file of tokens per split, read in fixed windows."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.data.load_report import LoadReport
from regard.data.source import permute_index
from regard.data.split import SPLITS, Split
from regard.data.text.documents import TextFiles
from regard.data.text.tokenizers import Tokenizer
from regard.data.token_cache import TokenCache, TokenRow, write_token_cache
from regard.errors import ConfigError


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
    folder, report = Path(folder), LoadReport()
    for split in SPLITS:
        rows = (
            {"text": [*tokenizer.encode_input(document.text), tokenizer.eos_id]}
            for document in text.documents(split)
        )
        write_token_cache(folder / split, rows, vocab=tokenizer.vocab)
        report.loaded += text.report.loaded
        if split == "test" or len(text.files) > 1:  # split by hash, all three read the same files
            report.reasons += text.report.reasons
            report.locations |= text.report.locations
    return report


class PackedText:
    """Windows of `length` + 1 tokens of packed text, for next-token prediction.

    Train is reshuffled and shifted every epoch; valid and test are read in order, so every
    token is predicted once.

    >>> PackedText("nowhere", length=8)
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere/train/cache.json: needs a token cache, got no such file
    """

    def __init__(self, folder: str | Path, length: int):
        if length < 1:
            raise ConfigError(f"length: needs 1 or more, got {length}")
        self.length = length
        self._caches = {s: TokenCache(Path(folder) / s) for s in SPLITS}

    def token_count(self, split: Split) -> int:
        """Number of tokens of a split."""
        return len(self._row(split))

    def _row(self, split: Split) -> TokenRow | np.ndarray:
        return self._caches[split].tokens.get("text", np.zeros(0))

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
        row, starts = self._row(split), self._caches[split].offsets["text"][:-1]
        ids = torch.from_numpy(row[first : first + self.length + 1].astype("int64"))
        positions = np.arange(first, first + len(ids))
        documents = np.searchsorted(starts, positions, side="right")
        return TokenWindow(ids, torch.from_numpy(documents - documents[0]))
