"""Language models of plain text: Python's own library, tiny shakespeare, or files of your own."""

import bz2
import gzip
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.data import BPETokenizer, ByteTokenizer, CharTokenizer, TextFiles, Tokenizer
from regard.errors import ConfigError, FileError
from regard.models import LanguageConfig, language_small
from regard.models.config import check_choices, check_positive
from regard.tasks.language.windows import LanguageEvaluator, WindowBatches
from regard.tasks.recipe import EvalSplit, Recipe
from regard.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class TextData:
    """Which text: a file or a folder of files, or (folder left out) Python's standard library.

    parts="files": each file goes to train, valid or test by a hash of its text. parts="tail": the
    last tenth of all text is not trained on; it is both valid and test. Windows of `length` tokens
    are trained on; `valid` of them, evenly spread, are scored on the way (None: all). On the test
    part every token has `overlap` tokens of its own file before it, where there are so many.

    >>> TextData().objective
    'next_token'
    """

    folder: str = ""
    split_by: Literal["files", "tail"] = "files"
    tokenizer_type: Literal["characters", "bytes", "bpe"] = "bpe"
    vocab_size: int = 4096  # of the vocabulary, where it is byte pairs
    length: int = 256
    valid_windows: int | None = None
    overlap: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "vocab_size", "length", "valid_windows")
        if not 0 <= self.overlap < self.length:
            raise ConfigError(
                f"overlap: needs 0 to {self.length - 1}, less than length, got {self.overlap}"
            )

    @property
    def objective(self) -> str:
        """The loss, by its name."""
        return "next_token"

    def texts(self, split: Literal["train", "valid", "test"]) -> list[str]:
        """The texts of a part: its files, or its share of all text in one."""
        if self.folder and not Path(self.folder).exists():
            raise FileError(
                f"folder: needs a text file or a folder of them, got nothing at {self.folder!r}"
            )
        source = TextFiles([self.folder]) if self.folder else TextFiles()
        if self.split_by == "files":
            texts = [document.text for document in source.documents(split)]
        else:
            files = source.files["train"]
            pieces = TextFiles(files, files, files).documents(
                "train"
            )  # all of them, whatever the hash
            whole = "".join(document.text for document in pieces)
            cut = int(0.9 * len(whole))
            texts = [whole[:cut] if split == "train" else whole[cut:]]
        if not any(texts):
            raise FileError(f"folder: needs text for the {split} part, got none; try parts=tail")
        return texts

    def tokenizer(self, seed: int) -> Tokenizer:
        """Characters or byte pairs of the train part; bytes need no training."""
        if self.tokenizer_type == "bytes":
            return ByteTokenizer()
        texts = self.texts("train")
        if self.tokenizer_type == "characters":
            return CharTokenizer.train(texts)
        return BPETokenizer.train(texts, self.vocab_size)

    def resolve(self, model: Any, tokenizer: Tokenizer) -> Any:
        """The model's config with the tokenizer's vocabulary."""
        return replace(model, vocab=tokenizer.vocab)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world_size: int = 1
    ) -> WindowBatches:
        """Windows of the train part, cut at another place each turn."""
        row = torch.cat(self._rows(tokenizer, self.texts("train")))
        rows = max(1, train.batch_tokens // self.length)
        return WindowBatches(
            row, length=self.length, rows=rows, seed=train.seed, rank=rank, world_size=world_size
        )

    def evaluator(
        self, tokenizer: Tokenizer, split: EvalSplit
    ) -> Callable[[nn.Module], dict[str, Any]]:
        """Loss and bits per byte; on the test part beside what compressors make of it."""
        texts = self.texts(split)
        rows, size = self._rows(tokenizer, texts), sum(len(text.encode()) for text in texts)
        if split == "valid":
            return LanguageEvaluator(rows, size, length=self.length, max_windows=self.valid_windows)
        beside = compression_baselines(texts) if self.split_by == "files" else None
        return LanguageEvaluator(
            rows, size, length=self.length, overlap=self.overlap, baselines=beside
        )

    def _rows(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Tensor]:
        """The tokens of each text; a file is between two ends, a share of a whole has none."""
        edge = [tokenizer.eos_id] if self.split_by == "files" else []
        found = (tokenizer.encode_input(text) for text in texts)
        return [torch.tensor([*edge, *ids, *edge], dtype=torch.int32) for ids in found]


def compression_baselines(texts: Sequence[str]) -> dict[str, float]:
    """Bits per byte of gzip -9, bzip2 -9 and xz -9e: all texts joined, and each text apart.

    >>> compression_baselines(["a" * 1000])["gzip"]  # 29 bytes
    0.232
    """
    with_ = {
        "gzip": lambda data: gzip.compress(data, 9, mtime=0),
        "bzip2": lambda data: bz2.compress(data, 9),
        "xz": lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME),
    }
    parts = [text.encode() for text in texts]
    whole = b"".join(parts)
    joined = {name: 8 * len(pack(whole)) / len(whole) for name, pack in with_.items()}
    apart = {
        f"{name}_apart": 8 * sum(len(pack(part)) for part in parts) / len(whole)
        for name, pack in with_.items()
    }
    return joined | apart


def shakespeare() -> Recipe:
    """Tiny shakespeare by the character: 6 layers of 384, windows of 256, the size of nanoGPT's.

    >>> shakespeare().model.layers
    6
    """
    model = LanguageConfig(
        vocab=1, layers=6, dim=384, heads=6, bias=False, positions="none", scale_embedding=False,
        rope_theta=10000.0, dropout=0.3, attention_dropout=0.2,
    )  # fmt: skip
    train = TrainConfig(
        steps=1800, batch_tokens=64 * 256, lr=2e-3, warmup=100, betas=(0.9, 0.99), weight_decay=0.2,
        evaluate_every=225, save_every=900,
    )  # fmt: skip
    data = TextData(split_by="tail", tokenizer_type="characters", length=256)
    return Recipe(name="shakespeare", data=data, model=model, train=train)


def stdlib() -> Recipe:
    """Python's standard library on this machine, by a small model: minutes on a CPU.

    >>> stdlib().data.tokenizer_type
    'bpe'
    """
    train = TrainConfig(
        steps=1500, batch_tokens=1024, lr=4e-3, warmup=100, weight_decay=0.1,
        evaluate_every=250, save_every=250,
    )  # fmt: skip
    return Recipe(
        name="stdlib",
        data=TextData(vocab_size=4096, length=256, valid_windows=64, overlap=64),
        model=language_small(1, layers=3, dim=128, heads=4, kv_heads=4, hidden=352, dropout=0.0),
        train=train,
    )


def stdlib_long() -> Recipe:
    """The same by a larger model: minutes on a GPU.

    >>> stdlib_long().model.dim
    512
    """
    train = TrainConfig(
        steps=2500, batch_tokens=32768, lr=1.5e-3, warmup=200, weight_decay=0.1,
        evaluate_every=1250, save_every=1250,
    )  # fmt: skip
    return Recipe(
        name="stdlib-long",
        data=TextData(vocab_size=8192, length=512, valid_windows=256, overlap=256),
        model=language_small(
            1, layers=8, dim=512, heads=8, kv_heads=8, hidden=1408, dropout=0.1
        ),
        train=train,
    )  # fmt: skip
