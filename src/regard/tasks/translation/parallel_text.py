"""Sentence pairs of own files, in every format of `data.ParallelCorpus`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
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
from regard.data.source import Reservoir
from regard.data.split import SPLITS, in_share
from regard.data.text.parallel_corpus import CorpusPath, corpus_suffix
from regard.errors import ConfigError, FileError
from regard.files import iter_chunks, open_binary
from regard.models import TranslatorConfig
from regard.models.config import check_positive
from regard.tasks.base import DataContents, EncodedCache, EvalSplit, Shard
from regard.tasks.registry import task
from regard.tasks.text_tokenizer import TextTokenizer, encode_train_split
from regard.tasks.translation.baseline import pairs_baseline
from regard.tasks.translation.data import TranslationTask
from regard.tasks.translation.evaluator import TranslationEvaluator
from regard.tasks.translation.phrase_table import list_phrases
from regard.tasks.translation.search import SearchConfig
from regard.train.config import TrainConfig
from regard.train.evaluation import score_texts

CORRECT_CHRF = 50.0  # chrF from which an answer counts as correct
DROPOUT_WINDOW = 1024  # encoded before the first step
SORT_WINDOW = 8192  # pairs sorted by length together: little padding


@task("pairs")
@dataclass(frozen=True, kw_only=True)
class PairsTask(TextTokenizer, TranslationTask):
    """Sentence pairs of own files: aligned files, .tsv, .csv, .jsonl, .po, .mo or .tmx.

    Pairs are streamed: the train split is encoded once into a token cache, so that it may be larger
    than memory; with `bpe_dropout` it is held in memory and encoded each time. Where a file is
    missing and NAME.gz exists, that is read.

    Args:
        folder: that the files are relative to.
        train: one file of pairs, two aligned files, source and target, or a folder of .po files.
        valid, test: the same; without them a hash of the source assigns 5% of the pairs each.
        source_language, target_language: their names, such as "de" and "en".
        columns: of source and target in a table, by number, or by name with `header` or in .jsonl.
        header: whether the first line of a .tsv or .csv names its columns.
        tokenizer_pairs: train pairs that the tokenizer is trained on, at most; evenly spaced.
        eval_pairs: pairs of valid and of test to evaluate, at most, a uniform sample; None is all.
        lowercase: lower-case both sides.
        bidirectional: also train in the other direction; the first target token is the language.
        phrase_table: keep a dictionary and the train pairs in the model, to fall back on.
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
    tokenizer_pairs: int = 500_000
    eval_pairs: int | None = None
    lowercase: bool = False
    bidirectional: bool = False
    phrase_table: bool = False
    search: SearchConfig = SearchConfig(length_penalty=1.0, max_new_tokens=80)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "tokenizer_pairs", "eval_pairs")
        if self.phrase_table and self.bidirectional:
            raise ConfigError("phrase_table: needs one direction, got bidirectional=true")
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

    def stream_pairs(self, split: Split) -> Iterator[Pair]:
        """One pass over the pairs of a split, lower-cased if configured."""
        pair, share = None, self.train_share if split == "train" else 1.0
        for number, pair in enumerate(self.corpus().pairs(split)):
            if not in_share(number, share):
                continue
            if self.lowercase:
                pair = pair._replace(source=pair.source.lower(), target=pair.target.lower())
            yield pair
        if pair is None:
            raise FileError(
                f"{split if self.valid else 'train'}: needs pairs for the {split} split, got none "
                f"in {', '.join(self.valid and getattr(self, split) or self.train)}"
                f"{'' if self.valid else '; try more pairs, or files for valid and test'}"
            )

    def pairs(self, split: Split) -> list[Pair]:
        """The pairs of a split: all of train, of the others those to evaluate."""
        if split == "train":
            return list(self._train_pairs())
        if self.eval_pairs is None:
            return list(self.stream_pairs(split))
        sample = Reservoir[Pair](self.eval_pairs)
        sample.extend(self.stream_pairs(split))
        return sample.items

    def _train_pairs(self) -> Iterator[Pair]:
        """The train split, if configured followed by its other direction."""
        yield from self.stream_pairs("train")
        if self.bidirectional:
            for pair in self.stream_pairs("train"):
                yield Pair(pair.target, pair.source, self.source_language)

    def contents(self) -> DataContents:
        corpus = self.corpus()
        return DataContents(corpus.assigned_pairs(), corpus.report, corpus.files)

    def target_languages(self, tokenizer: Tokenizer) -> list[str]:
        """The target language and, if bidirectional, the source language."""
        return [self.target_language, *([self.source_language] if self.bidirectional else [])]

    def tokenizer(self, seed: int) -> Tokenizer:
        """One vocabulary for both sides, trained on a sample of the train split."""
        languages = (self.source_language, self.target_language)

        def sample_texts() -> Iterable[str]:
            # not held in memory: of so many strings, parts of the heap would stay in use
            every, size = -(-self._count_pairs() // self.tokenizer_pairs), self.tokenizer_pairs
            return iter_texts(islice(self.stream_pairs("train"), 0, every * size, every))

        tokenizer = self.make_tokenizer(sample_texts, languages)
        if self.lowercase and "lower" not in tokenizer.normalizers:
            tokenizer.normalizers = (*tokenizer.normalizers, "lower")
        return tokenizer

    def resolve(self, model: Any, tokenizer: Tokenizer) -> Any:
        """The model's config with the sizes of vocabulary and phrase table."""
        model = super().resolve(model, tokenizer)
        if not self.phrase_table:
            return model
        if not isinstance(model, TranslatorConfig):
            kind = type(model).__name__.removesuffix("Config")
            raise ConfigError(f"phrase_table: needs a Translator, got a {kind}; try false")
        sizes, _ = list_phrases(self.pairs("train"), tokenizer)
        return replace(model, phrase_table=sizes)

    def prepare_model(self, model: Any, tokenizer: Tokenizer, train: TrainConfig) -> None:
        """Fill the phrase table of the model."""
        if self.phrase_table:
            model.phrase_table.fill(list_phrases(self.pairs("train"), tokenizer)[1])

    def batches(self, tokenizer: Tokenizer, train: TrainConfig, **shard: Unpack[Shard]) -> Batches:
        """Pairs of similar length, in a new order each epoch."""
        return self.cached_batches(tokenizer, train, EncodedCache(), **shard)

    def cached_batches(
        self, tokenizer: Tokenizer, train: TrainConfig, cache: EncodedCache, **shard: Unpack[Shard]
    ) -> Batches:
        """`batches` from a token cache."""
        options: dict[str, Any] = {
            "split": "train", "pad_id": tokenizer.pad_id, "seed": train.seed,
            "batch_tokens": self.batch_limit(train), **shard,
        }  # fmt: skip
        if self.bpe_dropout:
            pairs = list(self._train_pairs())
            source, encode = self.encoded_source(pairs, pair_preprocessor, tokenizer, train.seed)
            return Batches(source, encode, sort_window=DROPOUT_WINDOW, **options)
        encoded = encode_train_split(
            self, tokenizer, map(pair_preprocessor(tokenizer), self._train_pairs()),
            self.corpus().files, cache=cache,
            count=lambda: self._count_pairs() * (2 if self.bidirectional else 1),
        )  # fmt: skip
        return Batches(InMemorySource(train=encoded), None, sort_window=SORT_WINDOW, **options)

    def _count_pairs(self) -> int:
        """About the number of train pairs; of tables and aligned files without parsing them."""
        file = self.corpus().paths["train"][0]
        if file.is_dir() or corpus_suffix(file) in (".po", ".mo", ".tmx"):
            return sum(1 for _ in self.stream_pairs("train"))
        with open_binary(file) as opened:
            lines = sum(chunk.count(b"\n") for chunk in iter_chunks(opened))
        return max(1, round(lines * (1.0 if self.valid else 0.9)))

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> TranslationEvaluator:
        """Loss, exact match and BLEU, cased and lower-cased."""
        search = self.search if split == "test" else replace(self.search, beam_width=1)
        source = InMemorySource(**{split: self.pairs(split)})
        return ParallelTextEvaluator(source, tokenizer, split=split, search=search)

    def baseline(self, split: EvalSplit) -> tuple[str, list[str]]:
        """Word by word with the dictionary of IBM Model 1, or a copy of the source."""
        sources = [pair.source for pair in self.pairs(split)]
        return pairs_baseline(self.stream_pairs("train"), self.pairs("valid"), sources)

    def is_correct(self, answer: str, reference: str) -> bool:
        """Whether chrF (character n-gram F-score) is at least `CORRECT_CHRF`: few are identical."""
        from sacrebleu.metrics.chrf import CHRF

        return CHRF().sentence_score(answer, [reference]).score >= CORRECT_CHRF

    def _files(self, split: str) -> CorpusPath:
        """The file or files of a split, found before anything is read; nothing is downloaded."""
        files = []
        for name in getattr(self, split):
            file = Path(self.folder) / name
            packed = file.with_name(f"{file.name}.gz")
            if not file.exists() and not packed.is_file():
                raise FileError(
                    f"{split}: needs files in folder={self.folder!r}, got no {name}; "
                    "try --set folder=…"
                )
            files.append(file if file.exists() else packed)
        return files[0] if len(files) == 1 else (files[0], files[1])


class ParallelTextEvaluator(TranslationEvaluator):
    """A `TranslationEvaluator` with lower-cased BLEU, `bleu_lower`, beside the cased one.

    >>> run, pairs = rg.load("phrases"), InMemorySource(valid=[Pair("2 days", "2 TAGE", "de")])
    >>> evaluator = ParallelTextEvaluator(pairs, run.tokenizer, split="valid")
    >>> sorted(evaluator(run.model))[:3]
    ['bleu', 'bleu_lower', 'exact']
    """

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        lower = score_texts([a.lower() for a in answers], [r.lower() for r in self.references])
        return super().score(model, answers) | {"bleu_lower": lower["bleu"]}
