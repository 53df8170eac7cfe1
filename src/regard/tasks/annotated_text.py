"""What tasks on own annotated texts share: files, splits, class names and the tokenizer."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar, Unpack

import torch
from torch import Tensor, nn

from regard.data import Batches, LoadReport, Split, Tokenizer, collate, hash_split
from regard.data.batches import Encoded, batch_by_length
from regard.data.split import SPLITS, in_share
from regard.errors import ConfigError, FileError
from regard.models import ClassifierConfig
from regard.tasks.base import DataContents, EvalSplit, Shard, Task
from regard.tasks.class_names import class_warnings, file_stamp, fit_names
from regard.tasks.ngram_fit import fit_mix, fit_ngrams
from regard.tasks.text_tokenizer import TextTokenizer
from regard.train import mean_loss, objective
from regard.train.config import TrainConfig
from regard.train.linear import fit_best_linear
from regard.train.metrics import Tally

BATCH_SIZE = 64  # texts that are evaluated together
HEAD_EXAMPLES = 2048  # that a head is fitted to before the training
MAX_TOKENS = 1024  # of a text that the model reads at once: attention takes their square
MAX_BYTES = 1 << 20  # of one that a baseline reads
A = TypeVar("A", bound="AnnotatedTextTask")


class AnnotatedSplits(NamedTuple):
    """The examples of each split, how many there are of each class, and what was skipped."""

    examples: dict[Split, list[Any]]
    counts: dict[Split, Counter[str]]
    report: LoadReport


@dataclass(frozen=True, kw_only=True)
class AnnotatedTextTask(TextTokenizer, Task):
    """Own texts with labels, in one file or one per split.

    Args:
        train: file of the train split.
        valid, test: files of these splits; "" takes a twentieth of `train`, by a hash of the text.
        names: of the classes; () takes the labels of the data. A run keeps them.
        max_tokens: of a text that the model reads at once.
    """

    paths: ClassVar[tuple[str, ...]] = (*SPLITS, "tokenizer_file")
    fitted: ClassVar[dict[str, Any]] = {"names": ()}  # settings that `fit` fills in, unset

    train: str
    valid: str = ""
    test: str = ""
    names: tuple[str, ...] = ()
    max_tokens: int = MAX_TOKENS

    @abstractmethod
    def read(self, path: str, report: LoadReport) -> Iterator[Any]:
        """The examples of a file."""

    @abstractmethod
    def text(self, example: Any) -> str:
        """The text of an example."""

    @abstractmethod
    def labels(self, example: Any) -> Sequence[str]:
        """The labels of an example: one, or one per word."""

    @abstractmethod
    def encoder(self, tokenizer: Tokenizer) -> Callable[[Any], Encoded]:
        """Encodes an example for a batch, with `tokens`."""

    def load(self) -> AnnotatedSplits:
        """All splits, read again only when a file has changed."""
        stamps = tuple(file_stamp(path) for path in (self.train, self.valid, self.test))
        return _load(replace(self, **self.fitted), stamps)

    def contents(self) -> DataContents:
        splits = self.load()
        rows: list[tuple[Split, Any]] = [
            (split, row) for split in SPLITS for row in splits.examples[split]
        ]
        files = [Path(path) for path in (self.train, self.valid, self.test) if path]
        return DataContents(rows, splits.report, files)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their numbers."""
        return self.names or self.fit(0).names

    def fit(self, seed: int) -> "AnnotatedTextTask":
        """With the names of the classes; raises for a label that is not among given names."""
        hint = "a larger file, or a file for each split"
        return replace(self, names=fit_names(self.names, self.load().counts, hint))

    def over_bytes(self: A) -> A:
        """The task for a model that reads the bytes of whole texts, such as the baseline."""
        return replace(
            self, tokenizer_type="bytes", tokenizer_file="", bpe_dropout=0.0, max_tokens=MAX_BYTES
        )

    def data_warnings(self) -> list[str]:
        """Skipped records, and classes without training examples."""
        splits = self.load()
        skipped = [str(splits.report)] if splits.report.skipped else []
        return skipped + class_warnings(self.fit(0).names, splits.counts)

    def tokenizer(self, seed: int) -> Tokenizer:
        """Trained on the texts of the train split, or that of the file."""
        return self.make_tokenizer(lambda: map(self.text, self.load().examples["train"]))

    def resolve(self, model: ClassifierConfig, tokenizer: Tokenizer) -> ClassifierConfig:
        if not isinstance(model, ClassifierConfig):
            kind = type(model).__name__.removesuffix("Config").lower()
            raise ConfigError(f"model.type: needs classifier for {self.name}, got {kind}")
        return replace(model, vocab=tokenizer.vocab, classes=len(self.class_names))

    def prepare_model(self, model: Any, tokenizer: Tokenizer, train: TrainConfig) -> None:
        """Fit the n-gram weights, where the model has some."""
        if model.config.ngrams:
            fit_ngrams(self, model, tokenizer)

    def encoded(self, tokenizer: Tokenizer, split: Split) -> list[Encoded]:
        """The examples of a split as tensors."""
        fitted = self.fit(0)  # raises for labels that came into the files after the run began
        rows = map(fitted.encoder(tokenizer), fitted.load().examples[split])
        return [{name: torch.tensor(x) for name, x in row.items()} for row in rows]

    def batches(self, tokenizer: Tokenizer, train: TrainConfig, **shard: Unpack[Shard]) -> Batches:
        """Examples of similar length, in a new order each epoch."""
        fitted = self.fit(0)
        source, encode = self.encoded_source(
            fitted.load().examples["train"], fitted.encoder, tokenizer, train.seed
        )
        return Batches(
            source, encode, split="train", batch_tokens=self.batch_limit(train),
            pad_id=tokenizer.pad_id, seed=train.seed, **shard,
        )  # fmt: skip


class AnnotatedTextEvaluator(ABC):
    """Loss and scores of a text classifier or tagger on a split."""

    def __init__(self, data: Any, tokenizer: Tokenizer, split: EvalSplit):
        self.data, self.tokenizer, self.split = data, tokenizer, split
        self.encoded = data.encoded(tokenizer, split)
        self.examples: list[Any] = data.load().examples[split]

    @abstractmethod
    def predict(self, model: nn.Module) -> list[Any]:
        """The answer of a model to each example."""

    @abstractmethod
    def tally(self, answers: Sequence[Any]) -> Tally:
        """Counts of each example, whose sums give the scores."""

    def score(self, model: nn.Module, answers: Sequence[Any]) -> dict[str, Any]:
        """The scores of a model that gave these answers."""
        groups = range(0, len(self.encoded), BATCH_SIZE)
        batches = (collate(self.encoded[n : n + BATCH_SIZE]) for n in groups)
        loss = mean_loss(model, objective(self.data.objective), batches)
        return {"loss": loss, **self.tally(answers).scores()}

    def __call__(self, model: Any) -> dict[str, Any]:
        """The scores during a training, which fits how n-grams are mixed in to the valid split."""
        if self.split == "valid" and getattr(model.config, "ngrams", 0):
            fit_mix(model, self.encoded)
        return self.score(model, self.predict(model))


@lru_cache(4)
def _load(task: AnnotatedTextTask, stamps: tuple[int, ...]) -> AnnotatedSplits:
    examples: dict[Split, list[Any]] = {split: [] for split in SPLITS}
    files: dict[Split, str] = {split: getattr(task, split) for split in SPLITS}
    report = LoadReport()
    for split, path in files.items():
        before = report.loaded
        for example in task.read(path, report) if path else ():
            hashed: Split = hash_split(task.text(example).encode()) if split == "train" else split
            examples[split if files[hashed] else hashed].append(example)
        if path and report.loaded == before:
            raise FileError(
                f"{path}: needs annotated texts, got none: {report.summary or 'no rows'}"
            )
    if task.train_share < 1:
        rows = enumerate(examples["train"])
        examples["train"] = [row for n, row in rows if in_share(n, task.train_share)]
    counts: dict[Split, Counter[str]] = {
        split: Counter(label for example in rows for label in task.labels(example))
        for split, rows in examples.items()
    }
    return AnnotatedSplits(examples, counts, report)


@torch.no_grad()
def compute_logits(
    model: nn.Module, rows: Sequence[list[int]], method: str = "forward"
) -> list[Tensor]:
    """The logits of a classifier for each row of token ids, on the CPU; or of another `method`."""
    device, logits = next(model.parameters()).device, dict[int, Tensor]()
    for indices in batch_by_length([len(row) for row in rows], BATCH_SIZE):
        batch = collate([{"tokens": rows[i]} for i in indices])
        call = model if method == "forward" else getattr(model, method)
        output = call(batch["tokens"].to(device), batch["tokens_lengths"].to(device))
        logits |= zip(indices, output.float().cpu(), strict=True)
    return [logits[i] for i in range(len(rows))]


@torch.no_grad()
def fit_head(task: AnnotatedTextTask, model: Any, tokenizer: Any) -> None:
    """Set the head of a classifier to logistic regression on the outputs of its encoder."""
    device = next(model.parameters()).device

    def features(split: Split) -> tuple[Tensor, Tensor]:
        rows = task.encoded(tokenizer, split)
        rows, xs, ys = rows[:: 1 + len(rows) // HEAD_EXAMPLES], list[Tensor](), list[Tensor]()
        for indices in batch_by_length([len(row["tokens"]) for row in rows], BATCH_SIZE):
            batch = collate([rows[i] for i in indices])
            lengths = batch["tokens_lengths"].to(device)
            x = model.encode(batch["tokens"].to(device), lengths).cpu()
            tags = batch.get("tags")
            xs.append(model.pool(x, lengths.cpu()) if tags is None else x[tags > 0])
            ys.append(batch["label"] if tags is None else tags[tags > 0] - 1)
        return torch.cat(xs), torch.cat(ys)

    model.eval()
    weight, bias = fit_best_linear(features("train"), features("valid"), model.config.classes)
    model.train()
    model.head.weight.copy_(weight.mT)
    model.head.bias.copy_(bias)
