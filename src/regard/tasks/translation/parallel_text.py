"""Sentence pairs of own files, in every format of `data.ParallelCorpus`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack

from torch import nn

from regard.data import (
    Batches,
    InMemorySource,
    Pair,
    ParallelCorpus,
    Split,
    Tokenizer,
    iter_texts,
    pair_preprocessor,
)
from regard.data.split import SPLITS
from regard.data.text.parallel_corpus import CorpusPath
from regard.errors import ConfigError, FileError
from regard.tasks.recipe import DataContents, EvalSplit, Shard
from regard.tasks.registry import task
from regard.tasks.text_tokenizer import TextTokenizer
from regard.tasks.translation.data import TranslationTask
from regard.tasks.translation.evaluator import TranslationEvaluator
from regard.tasks.translation.search import SearchConfig
from regard.train.config import TrainConfig
from regard.train.evaluation import score_texts

CORRECT_CHRF = 50.0  # chrF from which an answer is graded as correct
DROPOUT_WINDOW = 1024  # encoded before the first step
SORT_WINDOW = 8192  # pairs sorted by length together: little padding, and all are in memory anyway


@task("pairs")
@dataclass(frozen=True, kw_only=True)
class PairsTask(TextTokenizer, TranslationTask):
    """Sentence pairs of own files: aligned files, .tsv, .csv, .jsonl, .po, .mo or .tmx.

    All pairs are held in memory, encoded once (with `bpe_dropout` each time). Where a file is
    missing and NAME.gz exists, that is read.

    Args:
        folder: that the files are relative to.
        train: one file of pairs, or two aligned files, source and target.
        valid, test: the same; without them a hash of the source assigns 5% of the pairs each.
        source_language, target_language: their names, such as "de" and "en".
        columns: of source and target in a table, by number, or by name with `header` or in .jsonl.
        header: whether the first line of a .tsv or .csv names its columns.
        lowercase: lower-case both sides.
        bidirectional: also train in the other direction; the first target token is the language.
        search: on the test split; the valid split is searched greedily.

    >>> PairsTask(train=("pairs.tsv",)).corpus()
    Traceback (most recent call last):
        ...
    regard.errors.FileError: train: needs files in folder='.', got no pairs.tsv; try --set folder=…
    """

    paths: ClassVar[tuple[str, ...]] = ("folder", "tokenizer_file")

    folder: str = "."
    train: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    source_language: str = "source"
    target_language: str = "target"
    columns: tuple[str, str] = ("1", "2")
    header: bool = False
    vocab_size: int = 8000
    lowercase: bool = False
    bidirectional: bool = False
    search: SearchConfig = SearchConfig(length_penalty=1.0, max_new_tokens=80)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in SPLITS:
            files = getattr(self, name)
            if len(files) > 2 or not files and (name == "train" or self.valid or self.test):
                rule = "one file of pairs, or two aligned files"
                extra = "" if name == "train" else ", valid and test both or neither"
                raise ConfigError(f"{name}: needs {rule}{extra}, got {list(files)}")

    def corpus(self) -> ParallelCorpus:
        """The pairs of all splits; its `report` counts skipped ones."""
        files = [self._files(name) for name in SPLITS if getattr(self, name)]
        return ParallelCorpus(
            *files, languages=(self.source_language, self.target_language),
            columns=self.columns, header=self.header,
        )  # fmt: skip

    def pairs(self, split: Split) -> list[Pair]:
        """All pairs of a split, lower-cased and in both directions if configured."""
        pairs = list(self.corpus().pairs(split))
        if not pairs:
            raise FileError(
                f"{split if self.valid else 'train'}: needs pairs for the {split} split, got none "
                f"in {', '.join(self.valid and getattr(self, split) or self.train)}"
                f"{'' if self.valid else '; try more pairs, or files for valid and test'}"
            )
        if self.lowercase:
            pairs = [p._replace(source=p.source.lower(), target=p.target.lower()) for p in pairs]
        if self.bidirectional and split == "train":
            pairs += [Pair(p.target, p.source, self.source_language) for p in pairs]
        return pairs

    def contents(self) -> DataContents:
        """Every pair with its split, for `regard data`."""
        corpus = self.corpus()
        paths = corpus.paths.values()
        files = [file for path in paths for file in (path if isinstance(path, tuple) else (path,))]
        return DataContents(corpus.assigned_pairs(), corpus.report, files)

    def target_languages(self, tokenizer: Tokenizer) -> list[str]:
        """The target language and, if bidirectional, the source language."""
        return [self.target_language, *([self.source_language] if self.bidirectional else [])]

    def tokenizer(self, seed: int) -> Tokenizer:
        """One vocabulary for both sides, trained on the train split."""
        languages = (self.source_language, self.target_language)
        tokenizer = self.make_tokenizer(lambda: iter_texts(self.pairs("train")), languages)
        if self.lowercase and "lower" not in tokenizer.normalizers:
            tokenizer.normalizers = (*tokenizer.normalizers, "lower")
        return tokenizer

    def batches(self, tokenizer: Tokenizer, train: TrainConfig, **shard: Unpack[Shard]) -> Batches:
        """Pairs of similar length, in a new order each epoch."""
        source, encode = self.encoded_source(
            self.pairs("train"), pair_preprocessor, tokenizer, train.seed
        )
        return Batches(
            source, encode, split="train", batch_tokens=self.batch_limit(train),
            sort_window=SORT_WINDOW if encode is None else DROPOUT_WINDOW,
            pad_id=tokenizer.pad_id, seed=train.seed, **shard,
        )  # fmt: skip

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> TranslationEvaluator:
        """Loss, exact match and BLEU, cased and lower-cased."""
        search = self.search if split == "test" else replace(self.search, beam_width=1)
        source = InMemorySource(**{split: self.pairs(split)})
        return ParallelTextEvaluator(source, tokenizer, split=split, search=search)

    def _files(self, split: str) -> CorpusPath:
        """The file or files of a split, found before anything is read; nothing is downloaded."""
        files = []
        for name in getattr(self, split):
            file = Path(self.folder) / name
            packed = file.with_name(f"{file.name}.gz")
            if not file.is_file() and not packed.is_file():
                raise FileError(
                    f"{split}: needs files in folder={self.folder!r}, got no {name}; "
                    "try --set folder=…"
                )
            files.append(file if file.is_file() else packed)
        return files[0] if len(files) == 1 else (files[0], files[1])


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
