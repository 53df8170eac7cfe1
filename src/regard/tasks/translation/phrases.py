"""Phrases: dates, times, durations, units, prices and lists in twelve languages, from CLDR."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Unpack

from torch import nn

from regard.data import (
    Batches,
    Pair,
    Phrases,
    Tokenizer,
    WordTokenizer,
    iter_texts,
    normalize_text,
    pair_preprocessor,
)
from regard.data.content.phrases.paraphrases import add_typo
from regard.models.config import check_positive
from regard.tasks.base import EvalSplit, Shard
from regard.tasks.registry import task
from regard.tasks.translation.data import TranslationTask
from regard.tasks.translation.evaluator import MAX_GRADED, TranslationEvaluator
from regard.tasks.translation.search import SearchConfig
from regard.train.config import TrainConfig
from regard.train.metrics import GradedAnswer, IsCorrect

NORMALIZE = ("typography", "lower")  # of sources
TWELVE = ("cs", "de", "en", "es", "fi", "fr", "it", "ja", "nl", "pl", "pt", "tr")


@task("phrases")
@dataclass(frozen=True, kw_only=True)
class PhrasesTask(TranslationTask):
    """Phrases generated from Unicode CLDR.

    Sources are normalised: case, spaces, quotes and dashes make no difference. Targets keep CLDR's
    typography. The valid and test splits are CLDR's own forms.

    Args:
        languages: all languages.
        source_languages: those translated from.
        kinds: of phrases.
        vocab_texts: examples whose words are the vocabulary; other words are spelled out.
        digits_per_token: at most.
        valid_size, test_size: examples of these splits.
        search: for translations.
        natural_fraction: of training sources as people type them.
        ood_fraction: of out-of-distribution training sources, whose target is empty.

    >>> len(PhrasesTask().languages)
    12
    """

    languages: tuple[str, ...] = TWELVE
    source_languages: tuple[str, ...] = ("en",)
    kinds: tuple[str, ...] = ("date", "time", "moment", "duration", "unit", "money", "list")
    vocab_texts: int = 20000
    digits_per_token: int = 2
    valid_size: int = 300
    test_size: int = 1000
    search: SearchConfig = SearchConfig()
    natural_fraction: float = 0.0
    ood_fraction: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self, "vocab_texts", "digits_per_token", "valid_size", "test_size")
        self.source(1)  # raises for settings that cannot be generated

    def source(self, count: int) -> Phrases:
        """The generator of phrases, with `count` examples in the held-out splits."""
        return Phrases(
            self.languages, source_languages=self.source_languages, kinds=self.kinds,
            eval_size=count, natural_fraction=self.natural_fraction, ood_fraction=self.ood_fraction,
        )  # fmt: skip

    def target_languages(self, tokenizer: Tokenizer) -> list[str]:
        """All languages but a single source language; of several, each is also a target."""
        sources = self.source_languages
        return [x for x in tokenizer.languages if len(sources) != 1 or x not in sources]

    def tokenizer(self, seed: int) -> Tokenizer:
        """Words of the first examples, and a token per language.

        Out-of-distribution texts add no words: they are spelled out, as unknown words will be.
        """
        pairs = islice(self.source(1).examples("train", seed), self.vocab_texts)
        normalized = (
            p._replace(source=normalize_text(p.source, NORMALIZE)) for p in pairs if p.target
        )
        tokenizer = WordTokenizer.train(
            iter_texts(normalized), languages=self.languages, max_digits=self.digits_per_token
        )
        tokenizer.normalizers = NORMALIZE
        return tokenizer

    def batches(self, tokenizer: Tokenizer, train: TrainConfig, **shard: Unpack[Shard]) -> Batches:
        """Pairs of similar length."""
        return Batches(
            self.source(1), pair_preprocessor(tokenizer), split="train", pad_id=tokenizer.pad_id,
            batch_tokens=self.batch_limit(train), seed=train.seed, **shard,
        )  # fmt: skip

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> "PhrasesEvaluator":
        """Loss, exact match and BLEU on held-out phrases."""
        source = self.source(self.valid_size if split == "valid" else self.test_size)
        return PhrasesEvaluator(source, tokenizer, split=split, search=self.search)


class PhrasesEvaluator(TranslationEvaluator):
    """A `TranslationEvaluator` of phrases.

    Where the training had them, it adds the exact match on natural sources, `natural_exact`, and
    the fraction of empty answers to out-of-distribution sources, `ood_empty`.

    >>> source = Phrases(("en", "de"), source_languages=("en",), eval_size=2)
    >>> tokenizer = rg.data.ByteTokenizer(("en", "de"))
    >>> evaluator = PhrasesEvaluator(source, tokenizer, split="test")
    >>> len(evaluator.pairs), len(evaluator.natural_pairs), len(evaluator.ood_pairs)
    (2, 2, 2)
    """

    @cached_property
    def natural_pairs(self) -> list[Pair]:
        """The same phrases as people type them."""
        return list(islice(self.source.natural_examples(self.split), MAX_GRADED))

    @property
    def ood_pairs(self) -> list[Pair]:
        """Out-of-distribution texts, whose target is empty."""
        return list(islice(self.source.ood_examples(self.split), MAX_GRADED))

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        scores = super().score(model, answers)
        if self.source.natural_fraction:
            scores["natural_exact"] = self._exact(model, self.natural_pairs)
        if self.source.ood_fraction:
            scores["ood_empty"] = self._exact(model, self.ood_pairs)
        return scores

    def _exact(self, model: nn.Module, pairs: Sequence[Pair]) -> float:
        answers = self.translate(model, pairs)
        correct = [a.text == pair.target for a, pair in zip(answers, pairs, strict=True)]
        return sum(correct) / len(correct)

    def grade(self, model: nn.Module, is_correct: IsCorrect) -> list[GradedAnswer]:
        """Graded answers to CLDR's forms, natural sources and out-of-distribution texts.

        Natural sources come with and without a typo: a good model makes its mistakes there, and
        calibration needs mistakes.
        """
        pairs = self.natural_pairs
        typos = [p._replace(source=add_typo(p.source, f"{n}")) for n, p in enumerate(pairs)]
        graded = super().grade(model, is_correct)
        return graded + self.grade_pairs(model, pairs + typos, is_correct)
