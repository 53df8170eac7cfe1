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

from regard.data import BPE, Bytes, Characters, Text, Tokenizer
from regard.errors import ConfigError, FileError
from regard.models import LanguageConfig, language_small
from regard.models.config import check_choices, check_positive
from regard.train.config import TrainConfig
from regard.train.recipes.recipe import Part, Recipe
from regard.train.recipes.windows import TextScores, Windows


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
    parts: Literal["files", "tail"] = "files"
    units: Literal["characters", "bytes", "bpe"] = "bpe"
    size: int = 4096  # of the vocabulary, where it is byte pairs
    length: int = 256
    valid: int | None = None
    overlap: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "size", "length", "valid")
        if not 0 <= self.overlap < self.length:
            raise ConfigError(
                f"overlap: needs 0 to {self.length - 1}, less than length, got {self.overlap}"
            )

    @property
    def objective(self) -> str:
        """The loss, by its name."""
        return "next_token"

    def texts(self, part: Literal["train", "valid", "test"]) -> list[str]:
        """The texts of a part: its files, or its share of all text in one."""
        if self.folder and not Path(self.folder).exists():
            raise FileError(
                f"folder: needs a text file or a folder of them, got nothing at {self.folder!r}"
            )
        source = Text([self.folder]) if self.folder else Text()
        if self.parts == "files":
            texts = [document.text for document in source.documents(part)]
        else:
            files = source.files["train"]
            pieces = Text(files, files, files).documents("train")  # all of them, whatever the hash
            whole = "".join(document.text for document in pieces)
            cut = int(0.9 * len(whole))
            texts = [whole[:cut] if part == "train" else whole[cut:]]
        if not any(texts):
            raise FileError(f"folder: needs text for the {part} part, got none; try parts=tail")
        return texts

    def tokenizer(self, seed: int) -> Tokenizer:
        """Characters or byte pairs of the train part; bytes need no training."""
        if self.units == "bytes":
            return Bytes()
        texts = self.texts("train")
        if self.units == "characters":
            return Characters.train(texts)
        return BPE.train(texts, self.size)

    def sized(self, model: Any, tokenizer: Tokenizer) -> Any:
        """The model's config with the tokenizer's vocabulary."""
        return replace(model, vocab=tokenizer.vocab)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world: int = 1
    ) -> Windows:
        """Windows of the train part, cut at another place each turn."""
        row = torch.cat(self._rows(tokenizer, self.texts("train")))
        rows = max(1, train.tokens // self.length)
        return Windows(row, length=self.length, rows=rows, seed=train.seed, rank=rank, world=world)

    def scores(self, tokenizer: Tokenizer, part: Part) -> Callable[[nn.Module], dict[str, Any]]:
        """Loss and bits per byte; on the test part beside what compressors make of it."""
        texts = self.texts(part)
        rows, size = self._rows(tokenizer, texts), sum(len(text.encode()) for text in texts)
        if part == "valid":
            return TextScores(rows, size, length=self.length, most=self.valid)
        beside = compressed(texts) if self.parts == "files" else None
        return TextScores(rows, size, length=self.length, overlap=self.overlap, beside=beside)

    def _rows(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Tensor]:
        """The tokens of each text; a file is between two ends, a share of a whole has none."""
        edge = [tokenizer.end] if self.parts == "files" else []
        found = (tokenizer.read(text) for text in texts)
        return [torch.tensor([*edge, *ids, *edge], dtype=torch.int32) for ids in found]


def compressed(texts: Sequence[str]) -> dict[str, float]:
    """Bits per byte of gzip -9, bzip2 -9 and xz -9e: all texts joined, and each text apart.

    >>> compressed(["a" * 1000])["gzip"]  # 29 bytes
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
        vocab=1, layers=6, dim=384, heads=6, bias=False, positions="none", scaled=False,
        rotary=10000.0, dropout=0.3, attention_dropout=0.2,
    )  # fmt: skip
    train = TrainConfig(
        steps=1800, tokens=64 * 256, lr=2e-3, warmup=100, betas=(0.9, 0.99), decay=0.2,
        evaluate_every=225, save_every=900,
    )  # fmt: skip
    data = TextData(parts="tail", units="characters", length=256)
    return Recipe(name="shakespeare", data=data, model=model, train=train)


def stdlib() -> Recipe:
    """Python's standard library on this machine, by a small model: minutes on a CPU.

    >>> stdlib().data.units
    'bpe'
    """
    train = TrainConfig(
        steps=1500, tokens=1024, lr=4e-3, warmup=100, decay=0.1,
        evaluate_every=250, save_every=250,
    )  # fmt: skip
    return Recipe(
        name="stdlib",
        data=TextData(size=4096, length=256, valid=64, overlap=64),
        model=language_small(1, layers=3, dim=128, heads=4, key_heads=4, hidden=352, dropout=0.0),
        train=train,
    )


def stdlib_long() -> Recipe:
    """The same by a larger model: minutes on a GPU.

    >>> stdlib_long().model.dim
    512
    """
    train = TrainConfig(
        steps=2500, tokens=32768, lr=1.5e-3, warmup=200, decay=0.1,
        evaluate_every=1250, save_every=1250,
    )  # fmt: skip
    return Recipe(
        name="stdlib-long",
        data=TextData(size=8192, length=512, valid=256, overlap=256),
        model=language_small(
            1, layers=8, dim=512, heads=8, key_heads=8, hidden=1408, dropout=0.1
        ),
        train=train,
    )  # fmt: skip
