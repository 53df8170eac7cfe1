"""Parallel text in aligned files, and the Multi30k recipes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import nn

from regard.data import (
    Batches,
    BPETokenizer,
    InMemorySource,
    Pair,
    ParallelCorpus,
    Tokenizer,
    WordTokenizer,
    iter_texts,
    pair_preprocessor,
)
from regard.errors import FileError
from regard.models.config import check_choices, check_positive
from regard.tasks.recipe import EvalSplit, Shard
from regard.tasks.registry import task
from regard.tasks.translation.data import TranslationTask
from regard.tasks.translation.evaluator import TranslationEvaluator
from regard.tasks.translation.search import SearchConfig
from regard.train.config import TrainConfig
from regard.train.evaluation import score_texts

CORRECT_CHRF = 50.0  # chrF from which an answer is graded as correct
SORT_WINDOW = 8192  # pairs sorted by length together: little padding, and all are in memory anyway


@task("pairs")
@dataclass(frozen=True, kw_only=True)
class PairsTask(TranslationTask):
    """Sentence pairs in two aligned files per split: `folder`/train.de and `folder`/train.en, …

    All pairs are held in memory, encoded once.

    Args:
        folder: of the files.
        source_language, target_language: their suffixes.
        train_stem, valid_stem, test_stem: their names before the suffix.
        tokenizer_type: byte-pair encoding or words.
        vocab_size: of the vocabulary that both sides share.
        lowercase: lower-case both sides.
        bidirectional: also train in the other direction; the first target token is the language.
        search: on the test split; the valid split is searched greedily.

    >>> PairsTask(folder="multi30k").files("valid")
    (PosixPath('multi30k/val.de'), PosixPath('multi30k/val.en'))
    """

    paths: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str = ""
    source_language: str = "de"
    target_language: str = "en"
    train_stem: str = "train"
    valid_stem: str = "val"
    test_stem: str = "test_2016_flickr"
    tokenizer_type: Literal["bpe", "words"] = "bpe"
    vocab_size: int = 8000
    lowercase: bool = False
    bidirectional: bool = False
    search: SearchConfig = SearchConfig(length_penalty=1.0, max_new_tokens=80)

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "vocab_size")

    def files(self, split: Literal["train", "valid", "test"]) -> tuple[Path, Path]:
        """The two files of a split."""
        stem = {"train": self.train_stem, "valid": self.valid_stem, "test": self.test_stem}[split]
        folder = Path(self.folder)
        return folder / f"{stem}.{self.source_language}", folder / f"{stem}.{self.target_language}"

    def pairs(self, split: Literal["train", "valid", "test"]) -> list[Pair]:
        """All pairs of a split, lower-cased and in both directions if configured."""
        self._check_files()
        files = [self.files(name) for name in ("train", "valid", "test")]
        languages = (self.source_language, self.target_language)
        pairs = list(ParallelCorpus(*files, languages=languages).pairs(split))
        if self.lowercase:
            pairs = [p._replace(source=p.source.lower(), target=p.target.lower()) for p in pairs]
        if self.bidirectional and split == "train":
            pairs += [Pair(p.target, p.source, self.source_language) for p in pairs]
        return pairs

    def target_languages(self, tokenizer: Tokenizer) -> list[str]:
        """The target language and, if bidirectional, the source language."""
        return [self.target_language, *([self.source_language] if self.bidirectional else [])]

    def tokenizer(self, seed: int) -> Tokenizer:
        """One vocabulary for both sides, trained on the train split."""
        texts = iter_texts(self.pairs("train"))
        languages = (self.source_language, self.target_language)
        if self.tokenizer_type == "words":
            tokenizer = WordTokenizer.train(texts, languages=languages, vocab_size=self.vocab_size)
        else:
            tokenizer = BPETokenizer.train(texts, self.vocab_size, languages=languages)
        tokenizer.normalizers = ("lower",) if self.lowercase else ()
        return tokenizer

    def batches(self, tokenizer: Tokenizer, train: TrainConfig, **shard: Unpack[Shard]) -> Batches:
        """Pairs of similar length, in a new order each epoch."""
        encoded = InMemorySource(train=list(_encode(self.pairs("train"), tokenizer)))
        return Batches(
            encoded, _identity, split="train", batch_tokens=self.batch_limit(train),
            sort_window=SORT_WINDOW, pad_id=tokenizer.pad_id, seed=train.seed, **shard,
        )  # fmt: skip

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> TranslationEvaluator:
        """Loss, exact match and BLEU, cased and lower-cased."""
        search = self.search if split == "test" else replace(self.search, beam_width=1)
        source = InMemorySource(**{split: self.pairs(split)})
        return ParallelTextEvaluator(source, tokenizer, split=split, search=search)

    def _check_files(self) -> None:
        """Raise for a missing file before anything is read; nothing is downloaded."""
        for split in ("train", "valid", "test"):
            for file in self.files(split):
                if self.folder and file.is_file():
                    continue
                packed = file.with_name(f"{file.name}.gz").is_file()
                fix = f"gunzip --keep {file}.gz" if packed else "--set folder=…"
                raise FileError(
                    f"folder: needs {file.name}, one sentence per line, got "
                    f"{'it packed' if packed else 'none'} in {self.folder!r}; try {fix}"
                )


class ParallelTextEvaluator(TranslationEvaluator):
    """A `TranslationEvaluator` with lower-cased BLEU, `bleu_lower`, beside the cased one.

    >>> run, pairs = rg.load("phrases"), InMemorySource(valid=[Pair("2 days", "2 TAGE", "de")])
    >>> evaluator = ParallelTextEvaluator(pairs, run.tokenizer, split="valid")
    >>> sorted(evaluator(run.model))[:3]
    ['bleu', 'bleu_lower', 'exact']
    """

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of a model that gave these answers."""
        lower = score_texts([a.lower() for a in answers], [r.lower() for r in self.references])
        return super().score(model, answers) | {"bleu_lower": lower["bleu"]}

    def is_correct(self, answer: str, reference: str) -> bool:
        """Whether chrF (character n-gram F-score) is at least `CORRECT_CHRF`: few are identical."""
        from sacrebleu.metrics.chrf import CHRF

        return CHRF().sentence_score(answer, [reference]).score >= CORRECT_CHRF


def _encode(pairs: list[Pair], tokenizer: Tokenizer) -> Iterator[dict[str, torch.Tensor]]:
    encode = pair_preprocessor(tokenizer)
    for pair in pairs:
        yield {name: torch.tensor(ids) for name, ids in encode(pair).items()}


def _identity(example: Any) -> Any:
    return example
