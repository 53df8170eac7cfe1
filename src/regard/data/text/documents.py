"""Plain text from files, streamed, and its tokens packed into windows."""

import sysconfig
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.data.source import LoadReport, OnError, permute_index, repeat_epochs
from regard.data.split import SPLITS, Split, hash_split
from regard.data.text.tokenizers import Tokenizer
from regard.data.token_cache import TokenCache, TokenRow, write_token_cache
from regard.errors import ConfigError, FileError
from regard.files import DETECTION_BYTES, detect_encoding, list_tree, open_binary

MAX_CHARS = 1 << 20  # per document; a longer file becomes several, cut between lines
EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}


class Document(NamedTuple):
    """A text and the name of its file."""

    text: str
    name: str


def stdlib_files() -> list[Path]:
    """Source files of Python's standard library: megabytes of text on every machine.

    >>> "argparse.py" in {path.name for path in stdlib_files()}
    True
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    return [path for path in sorted(root.rglob("*.py")) if not EXCLUDED_FOLDERS & set(path.parts)]


class TextFiles:
    """Documents from files, gzipped or not, or folders of them, streamed.

    Without `valid` and `test` a hash of the text assigns each document to a split (90% train), so
    copies of a file are in the same split.

    Args:
        train: files or folders; the standard library by default.
        valid: the same for validation; needs `test` too.
        test: the same for testing.
        on_error: "skip" counts unreadable files in `report`, "raise" stops.
        max_chars: longest document; longer files are cut between lines.

    >>> first = next(TextFiles().examples("train", seed=0))
    >>> first.name.endswith(".py"), len(first.text) > 0
    (True, True)
    """

    def __init__(
        self,
        train: Iterable[str | Path] | None = None,
        valid: Iterable[str | Path] | None = None,
        test: Iterable[str | Path] | None = None,
        *,
        on_error: OnError = "skip",
        max_chars: int = MAX_CHARS,
    ):
        if (valid is None) != (test is None):
            raise ConfigError("valid, test: need to be given both or not at all, got one of them")
        self.files = {"train": _paths(train)}
        if valid is not None and test is not None:
            self.files |= {"valid": _paths(valid), "test": _paths(test)}
        self.max_chars, self.report = max_chars, LoadReport(on_error)

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Document]:
        """Documents from number `start`; train repeats forever, reshuffled every epoch."""

        def one_pass(epoch: int) -> Iterator[Document]:
            return self.documents(split, f"{seed}/{epoch}" if split == "train" else None)

        missing = ConfigError(f"split: needs one that has documents, got {split} of {self!r}")
        return repeat_epochs(one_pass, split, start, missing)

    def documents(self, split: Split, shuffle_key: str | None = None) -> Iterator[Document]:
        """One pass over the documents of a split; `report` counts unreadable files."""
        self.report.clear()
        files, is_hashed = self.files.get(split, self.files["train"]), len(self.files) == 1
        for index in range(len(files)):
            number = index if shuffle_key is None else permute_index(index, len(files), shuffle_key)
            for document in self._read(files[number]):
                if (
                    not is_hashed
                    or hash_split(document.text.encode(errors="surrogatepass")) == split
                ):
                    self.report.loaded += 1
                    yield document

    def all_documents(self) -> Iterator[Document]:
        """One pass over the documents of the train files, whatever their split."""
        self.report.clear()
        for path in self.files["train"]:
            for document in self._read(path):
                self.report.loaded += 1
                yield document

    def _read(self, path: Path) -> Iterator[Document]:
        try:
            with open_binary(path) as opened:
                encoding = detect_encoding(opened.read(DETECTION_BYTES))
            with open_binary(path) as opened:
                binary: Any = opened
                lines = TextIOWrapper(binary, encoding, newline="")  # keep line endings
                number = 0
                while text := lines.read(self.max_chars):
                    text += lines.readline(self.max_chars)
                    yield Document(text, f"{path.name}" + f"#{number}" * (number > 0))
                    number += 1
                if not number:
                    self.report.skip(path, None, "an empty file")
        except UnicodeDecodeError as error:
            self.report.skip(path, None, f"not UTF-8 ({error.reason})")
        except FileError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.strerror:
                self.report.skip(path, None, f"cannot be read ({error.__cause__.strerror})")
            else:
                self.report.skip(path, None, "not a complete gzip file")

    def __repr__(self) -> str:
        return f"TextFiles of {sum(map(len, self.files.values()))} files"


def _paths(given: Iterable[str | Path] | None) -> list[Path]:
    """The given files, with each folder replaced by all files in it."""
    if given is None:
        return stdlib_files()
    given = [given] if isinstance(given, str | Path) else list(given)
    files: list[Path] = []
    for path in map(Path, given):
        if not path.exists():
            raise FileError(f"{path}: needs to be a file or a folder, got no such file")
        files += list_tree(path) if path.is_dir() else [path]
    if not files:
        raise FileError(f"{', '.join(map(str, given))}: needs files of text, got none")
    return files


class TokenWindow(NamedTuple):
    """Consecutive tokens, and the document index of each, counted from 0 in the window."""

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
        for number in count(start):
            epoch, index = divmod(number, windows)
            shift = permute_index(epoch % self.length, self.length, f"{seed}/shift")
            shift = min(shift, size - 1 - windows * self.length)
            first = shift + self.length * permute_index(index, windows, f"{seed}/{epoch}")
            yield self._window(split, first)

    def _window(self, split: Split, first: int) -> TokenWindow:
        row, starts = self._row(split), self._caches[split].offsets["text"][:-1]
        ids = torch.from_numpy(row[first : first + self.length + 1].astype("int64"))
        positions = np.arange(first, first + len(ids))
        documents = np.searchsorted(starts, positions, side="right")
        return TokenWindow(ids, torch.from_numpy(documents - documents[0]))
