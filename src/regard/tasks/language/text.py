"""Language models of plain text: Python's standard library, tiny shakespeare, or your own files."""

import bz2
import gzip
import lzma
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Unpack, get_args

import torch
from torch import Tensor

from regard.data import (
    Document,
    Split,
    TextFiles,
    Tokenizer,
)
from regard.errors import ConfigError, FileError
from regard.models import LanguageConfig
from regard.models.config import check_positive
from regard.tasks.language.windows import LanguageEvaluator, WindowBatches
from regard.tasks.recipe import DataContents, EvalSplit, Shard, Task
from regard.tasks.registry import task
from regard.tasks.text_tokenizer import TextTokenizer
from regard.train.config import TrainConfig


class LanguageTask(Task):
    """Language modelling.

    >>> rg.tasks.recipe("stdlib").data.objective
    'next_token'
    """

    objective: ClassVar[str] = "next_token"
    verb: ClassVar[str] = "generate"

    @abstractmethod
    def document_edges(self, tokenizer: Tokenizer) -> list[int]:
        """The tokens before and after each document; a prompt starts with them."""

    def resolve(self, model: LanguageConfig, tokenizer: Tokenizer) -> LanguageConfig:
        """The model's config with the vocabulary size."""
        return replace(model, vocab=tokenizer.vocab)


@task("text")
@dataclass(frozen=True, kw_only=True)
class TextTask(TextTokenizer, LanguageTask):
    """Text files, or Python's standard library.

    Args:
        folder: a file or a folder of files; "" is the standard library.
        split_by: "files" assigns each file to train, valid or test by a hash of its text; "tail"
            makes the last tenth of all text both valid and test.
        length: tokens per window.
        valid_windows: windows of the valid split to evaluate, evenly spaced; None is all.
        overlap: tokens of context that every prediction on the test split has at least.

    >>> TextTask().objective
    'next_token'
    """

    paths: ClassVar[tuple[str, ...]] = ("folder", "tokenizer_file")

    folder: str = ""
    split_by: Literal["files", "tail"] = "files"
    vocab_size: int = 4096
    length: int = 256
    valid_windows: int | None = None
    overlap: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "length", "valid_windows")
        if self.bpe_dropout:
            raise ConfigError(
                f"bpe_dropout: needs 0 for text, which is encoded once, got {self.bpe_dropout}"
            )
        if not 0 <= self.overlap < self.length:
            raise ConfigError(
                f"overlap: needs 0 to {self.length - 1}, less than length, got {self.overlap}"
            )

    def texts(self, split: Literal["train", "valid", "test"]) -> list[str]:
        """The texts of a split: its files, or with "tail" one text."""
        source = self._source()
        if self.split_by == "files":
            texts = [document.text for document in source.documents(split)]
        else:
            files = source.files["train"]
            documents = TextFiles(files, files, files).documents("train")  # all, whatever the hash
            text = "".join(document.text for document in documents)
            cut = int(0.9 * len(text))
            texts = [text[:cut] if split == "train" else text[cut:]]
        if not any(texts):
            raise FileError(
                f"folder: needs text for the {split} split, got none; try split_by=tail"
            )
        return texts

    def contents(self) -> DataContents:
        """Every document with its split, for `regard data`."""
        source, splits = self._source(), get_args(Split)
        documents = (
            (split, document)
            for split in splits
            for document in (
                source.documents(split)
                if self.split_by == "files"
                else [Document(self.texts(split)[0], "all files")]
            )
        )
        return DataContents(documents, source.report, source.files["train"])

    def _source(self) -> TextFiles:
        if self.folder and not Path(self.folder).exists():
            raise FileError(
                f"folder: needs a text file or a folder of them, got none at {self.folder!r}; "
                "try --set folder=PATH"
            )
        return TextFiles([self.folder]) if self.folder else TextFiles()

    def tokenizer(self, seed: int) -> Tokenizer:
        """Trained on the train split, or that of the file."""
        return self.make_tokenizer(lambda: self.texts("train"))

    def document_edges(self, tokenizer: Tokenizer) -> list[int]:
        """The end token around each file; none with "tail", which is cut anywhere."""
        return [tokenizer.eos_id] if self.split_by == "files" else []

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, **shard: Unpack[Shard]
    ) -> WindowBatches:
        """Windows of the train split, cut at another offset each epoch."""
        row = torch.cat(self._encode(tokenizer, self.texts("train")))
        rows = max(1, self.batch_limit(train) // self.length)
        return WindowBatches(row, length=self.length, rows=rows, seed=train.seed, **shard)

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> LanguageEvaluator:
        """Loss and bits per byte; on the test split of files also those of compressors."""
        texts = self.texts(split)
        rows, size = self._encode(tokenizer, texts), sum(len(text.encode()) for text in texts)
        if split == "valid":
            return LanguageEvaluator(rows, size, length=self.length, max_windows=self.valid_windows)
        baselines = compression_baselines(texts) if self.split_by == "files" else None
        return LanguageEvaluator(
            rows, size, length=self.length, overlap=self.overlap, baselines=baselines
        )

    def _encode(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Tensor]:
        edges = self.document_edges(tokenizer)
        encoded = (tokenizer.encode_input(text) for text in texts)
        return [torch.tensor([*edges, *ids, *edges], dtype=torch.int32) for ids in encoded]


def compression_baselines(texts: Sequence[str]) -> dict[str, float]:
    """Bits per byte of gzip -9, bzip2 -9 and xz -9e: of all texts joined, and of each separately.

    >>> compression_baselines(["a" * 1000])["gzip"]  # 29 bytes
    0.232
    """
    compressors = {
        "gzip": lambda data: gzip.compress(data, 9, mtime=0),
        "bzip2": lambda data: bz2.compress(data, 9),
        "xz": lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME),
    }
    encoded = [text.encode() for text in texts]
    joined = b"".join(encoded)
    bits = {name: 8 * len(compress(joined)) for name, compress in compressors.items()}
    bits |= {
        f"{name}_separate": 8 * sum(len(compress(text)) for text in encoded)
        for name, compress in compressors.items()
    }
    return {name: count / len(joined) for name, count in bits.items()}
