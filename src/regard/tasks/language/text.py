"""Language models of plain text: Python's standard library, tiny shakespeare, or your own files."""

import json
import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Unpack

import torch
from torch import Tensor

from regard.data import ByteTokenizer, Document, Split, TextFiles, Tokenizer, normalize_text
from regard.data.split import SPLITS
from regard.errors import ConfigError, FileError
from regard.models import LanguageConfig, NgramModel
from regard.models.config import check_positive
from regard.tasks.base import Baseline, DataContents, EncodedCache, EvalSplit, Shard, Task
from regard.tasks.language.baseline import (
    fit_best_ngrams,
    fit_byte_ngrams,
    name_beside_xz,
    take_texts,
    text_baseline,
)
from regard.tasks.language.generate import GenerationPipeline
from regard.tasks.language.verb import Generate
from regard.tasks.language.windows import ByteLosses, LanguageEvaluator, WindowBatches
from regard.tasks.registry import task
from regard.tasks.text_tokenizer import TextTokenizer, encode_train_split
from regard.train.config import TrainConfig

PIECE_CHARS = 10_000  # of texts that a tokenizer's sample consists of


class LanguageTask(Generate, Task):
    """Language modelling.

    >>> rg.tasks.recipe("stdlib").data.objective
    'next_token'
    """

    objective: ClassVar[str] = "next_token"
    pipeline_type = GenerationPipeline

    @abstractmethod
    def document_edges(self, tokenizer: Tokenizer) -> list[int]:
        """The tokens before and after each document; a prompt starts with them."""

    def resolve(self, model: LanguageConfig, tokenizer: Tokenizer) -> LanguageConfig:
        return replace(model, vocab=tokenizer.vocab)

    def format_output(self, output: str) -> str:
        """The text as a JSON string, in one line."""
        return json.dumps(output, ensure_ascii=False)


@task("text")
@dataclass(frozen=True, kw_only=True)
class TextTask(TextTokenizer, LanguageTask):
    """Text files, or Python's standard library.

    Texts are streamed: the train split is encoded once into a token cache, so that it may be larger
    than memory.

    Args:
        folder: a file or a folder of files; "" is the standard library.
        split_by: "files" assigns each file to train, valid or test by a hash of its text; "tail"
            makes the last tenth of all text both valid and test, "halves" each a half of it.
        tokenizer_chars: characters of the train split that the tokenizer is trained on, at most;
            of a longer one evenly spaced pieces.
        eval_chars: characters of valid and of test to evaluate, at most, of files in random order;
            None is all.
        length: tokens per window.
        valid_windows: windows of the valid split to evaluate, evenly spaced; None is all.
        overlap: tokens of context that every prediction on the test split has at least.
        ngrams: mix in n-grams of the tokens, as the valid split decides.

    >>> TextTask().objective
    'next_token'
    """

    paths: ClassVar[tuple[str, ...]] = ("folder", "tokenizer_file")

    folder: str = ""
    split_by: Literal["files", "tail", "halves"] = "files"
    vocab_size: int = 4096
    tokenizer_chars: int = 50_000_000
    eval_chars: int | None = None
    length: int = 256
    valid_windows: int | None = None
    overlap: int = 0
    ngrams: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "tokenizer_chars", "eval_chars", "length", "valid_windows")
        if self.bpe_dropout:
            raise ConfigError(
                f"bpe_dropout: needs 0 for text, which is encoded once, got {self.bpe_dropout}"
            )
        if not 0 <= self.overlap < self.length:
            raise ConfigError(
                f"overlap: needs 0 to {self.length - 1}, less than length, got {self.overlap}"
            )

    def documents(self, split: Split) -> Iterator[Document]:
        """One pass over the documents of a split, some of which are cut where it ends."""
        share = self.train_share if split == "train" else 1.0
        for document in self._documents(self._source(), split):
            yield document._replace(text=document.text[: round(share * len(document.text))])

    def _documents(
        self, source: TextFiles, split: Split, shuffle_key: str | None = None
    ) -> Iterator[Document]:
        if self.split_by == "files":
            yield from source.documents(split, shuffle_key)
            return
        ends = {"train": (0.0, 0.9), "valid": (0.9, 0.95), "test": (0.95, 1.0)}
        start, end = (0.9, 1.0) if self.split_by == "tail" and split != "train" else ends[split]
        start, end, at = int(start * self.size[0]), int(end * self.size[0]), 0
        for document in source.all_documents():
            if text := document.text[max(0, start - at) : max(0, end - at)]:
                yield Document(text, document.name)
            at += len(document.text)

    @property
    def size(self) -> tuple[int, int]:
        """Characters and documents of all splits; one pass, repeated only when a file changes."""
        files = self._source().files["train"]
        return _count(tuple(files), tuple(file.stat().st_mtime_ns for file in files))

    def texts(self, split: Split) -> list[str]:
        """The texts of a split, of valid and test those to evaluate; one where it is cut."""
        limit = None if split == "train" else self.eval_chars
        texts, documents = list[str](), self.documents(split)
        if limit is not None:
            documents = self._documents(self._source(), split, "eval")
        for document in documents:
            texts.append(document.text[:limit])
            if limit is not None and (limit := limit - len(texts[-1])) <= 0:
                break
        if not texts:
            self._raise_empty(split)
        return texts if self.split_by == "files" else ["".join(texts)]

    def _raise_empty(self, split: Split) -> NoReturn:
        raise FileError(f"folder: needs text for the {split} split, got none; try split_by=tail")

    def contents(self) -> DataContents:
        source = self._source()
        documents: Iterator[tuple[Split, Document]] = (
            (split, x) for split in SPLITS for x in self._documents(source, split)
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
        return self.make_tokenizer(self._sample_texts)

    def resolve(self, model: LanguageConfig, tokenizer: Tokenizer) -> LanguageConfig:
        """The model's config with the sizes of vocabulary and n-grams."""
        entries = self._fit_ngrams(tokenizer).config.entries if self.ngrams else ()
        return replace(super().resolve(model, tokenizer), ngrams=entries)

    def prepare_model(self, model: Any, tokenizer: Tokenizer, train: TrainConfig) -> None:
        """Fit the n-grams of the model."""
        if self.ngrams:
            model.ngrams.tables.load_state_dict(self._fit_ngrams(tokenizer).state_dict())

    def _fit_ngrams(self, tokenizer: Tokenizer) -> NgramModel:
        files = self._source().files["train"]
        return _fit_ngrams(self, tokenizer, tuple(file.stat().st_mtime_ns for file in files))

    def document_edges(self, tokenizer: Tokenizer) -> list[int]:
        """The end token around each file; none in a text that is cut anywhere."""
        return [tokenizer.eos_id] if self.split_by == "files" else []

    def _sample_texts(self) -> Iterator[str]:
        """The train split, or one piece of every so many."""
        every, number = math.ceil(0.9 * self.size[0] / self.tokenizer_chars), 0
        document = None
        for document in self.documents("train"):
            if every <= 1:
                yield document.text
                continue
            for at in range(0, len(document.text), PIECE_CHARS):
                if not number % every:
                    yield document.text[at : at + PIECE_CHARS]
                number += 1
        if document is None:
            self._raise_empty("train")

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, **shard: Unpack[Shard]
    ) -> WindowBatches:
        """Windows of the train split, cut at another offset each epoch."""
        return self.cached_batches(tokenizer, train, EncodedCache(), **shard)

    def cached_batches(
        self, tokenizer: Tokenizer, train: TrainConfig, cache: EncodedCache, **shard: Unpack[Shard]
    ) -> WindowBatches:
        """`batches` from a token cache."""
        rows = ({"text": self.encode(tokenizer, x.text)} for x in self.documents("train"))
        encoded = encode_train_split(
            self, tokenizer, rows, self._source().files["train"], cache=cache,
            count=lambda: round(0.9 * self.size[1]),
        )  # fmt: skip
        if not len(encoded):
            self._raise_empty("train")
        windows = max(1, self.batch_limit(train) // self.length)
        return WindowBatches(
            encoded.tokens["text"], length=self.length, rows=windows, seed=train.seed, **shard
        )

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> LanguageEvaluator:
        texts = self.texts(split)
        rows = [torch.tensor(self.encode(tokenizer, text), dtype=torch.int32) for text in texts]
        size = sum(len(text.encode()) for text in texts)
        token_bytes = _token_bytes(tokenizer, torch.cat(rows))
        if split == "valid":
            return LanguageEvaluator(
                rows, size, length=self.length, max_windows=self.valid_windows, fits_mix=True,
                token_bytes=token_bytes,
            )  # fmt: skip
        return LanguageEvaluator(
            rows, size, length=self.length, overlap=self.overlap, token_bytes=token_bytes
        )

    def fit_baseline(self) -> Baseline:
        """N-grams of bytes with Kneser-Ney smoothing."""
        train = take_texts(document.text for document in self.documents("train"))
        model = fit_byte_ngrams(train, valid := self.texts("valid"))
        order = model.config.order  # each byte after all that the model reads
        windows = {"length": max(self.length, 4 * order), "overlap": max(self.overlap, order)}
        data = replace(self, tokenizer_type="bytes", tokenizer_file="", **windows)
        return Baseline(name_beside_xz(model, train, valid), model, data, ByteTokenizer())

    def baseline(self, split: EvalSplit) -> tuple[str, ByteLosses]:
        """N-grams of bytes with Kneser-Ney smoothing, or xz where that is better."""
        train = (document.text for document in self.documents("train"))
        return text_baseline(take_texts(train), self.texts("valid"), self.texts(split))

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """The tokens of a document."""
        edges = self.document_edges(tokenizer)
        (ids,) = tokenizer.encode_batch([normalize_text(text, tokenizer.normalizers)])
        return [*edges, *ids, *edges]


@lru_cache(1)  # the config has their sizes, then the model their tables; trials begin with the same
def _fit_ngrams(task: TextTask, tokenizer: Tokenizer, stamps: tuple[int, ...]) -> NgramModel:
    """N-grams of the tokens of the train split, as long as the valid split decides."""
    train = take_texts(document.text for document in task.documents("train"))
    splits = [[torch.tensor(task.encode(tokenizer, x)) for x in texts]
              for texts in (train, task.texts("valid"))]  # fmt: skip
    return fit_best_ngrams(*splits, vocab=tokenizer.vocab)


def _token_bytes(tokenizer: Tokenizer, row: Tensor) -> Tensor:
    """The length of each token in bytes."""
    known, index = row.unique(return_inverse=True)
    return torch.tensor([len(tokenizer.decode([n]).encode()) for n in known.tolist()])[index]


@lru_cache(2)
def _count(files: tuple[Path, ...], stamps: tuple[int, ...]) -> tuple[int, int]:
    sizes = [len(document.text) for document in TextFiles(files).all_documents()]
    return sum(sizes), len(sizes)
