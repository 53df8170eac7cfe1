"""Evaluation of translators: loss, exact match, BLEU, and graded answers for calibration."""

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import nn

from regard.data import Pair, Source, Tokenizer, collate, pair_preprocessor
from regard.models.phrase_table import NEVER
from regard.tasks.base import EvalSplit
from regard.tasks.translation.phrase_table import fit_limits
from regard.tasks.translation.search import SearchConfig, Translation, TranslationSearch
from regard.train.evaluation import mean_loss, score_texts, text_tally
from regard.train.losses import objective
from regard.train.metrics import GradedAnswer, IsCorrect, Tally

MAX_GRADED = 400  # answers of a split that confidence is calibrated on


def shuffle_letters(text: str) -> str:
    """A text with the letters of every word shuffled, seeded by the text itself.

    >>> shuffle_letters("a small house") == shuffle_letters("a small house") != "a small house"
    True
    """
    rng = Random(text)
    return " ".join("".join(rng.sample(word, len(word))) for word in text.split())


class TranslationEvaluator:
    """Loss, exact match and BLEU of a translator on a fixed split.

    Args:
        source: of the pairs.
        tokenizer: of the model's training.
        split: valid or test.
        search: greedy by default.

    >>> run = rg.load("phrases", device="cpu")
    >>> pairs = rg.data.InMemorySource(valid=[rg.data.Pair("2 days", "2 Tage", "de")])
    >>> TranslationEvaluator(pairs, run.tokenizer, split="valid")(run.model)["exact"]
    1.0
    """

    def __init__(
        self,
        source: Source,
        tokenizer: Tokenizer,
        *,
        split: EvalSplit,
        search: SearchConfig | None = None,
    ):
        self.source: Any = source
        self.split: EvalSplit = split
        self.pairs: list[Pair] = list(source.examples(split, 0))
        self.tokenizer, self.search = tokenizer, search or SearchConfig()

    def __call__(self, model: Any) -> dict[str, Any]:
        """The scores during a training, which fits the limits of a phrase table to valid."""
        table = getattr(model, "phrase_table", None)
        if self.split == "valid" and table is not None:
            table.limits.copy_(torch.tensor(NEVER))
            answers = self.translate(model, self.pairs)
            phrases = fit_limits(table, self.tokenizer, self.pairs, answers)
            pairs = zip(self.pairs, answers, strict=True)
            return self.score(model, [phrases.answer(p.source, x).text for p, x in pairs])
        return self.score(model, self.predict(model))

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of a model that gave these answers."""
        return {"loss": self.loss(model), **score_texts(answers, self.references)}

    @property
    def sources(self) -> list[str]:
        """The source texts, each with its target language."""
        return [p.source if p.language is None else f"{p.language}: {p.source}" for p in self.pairs]

    @property
    def references(self) -> list[str]:
        return [pair.target for pair in self.pairs]

    def predict(self, model: nn.Module) -> list[str]:
        return [text for text, _ in self.predict_scored(model)]

    def predict_scored(self, model: nn.Module) -> list[tuple[str, float]]:
        """Translations with the raw score that confidence is calibrated on."""
        return [(answer.text, answer.raw_score) for answer in self.translate(model, self.pairs)]

    def tally(self, answers: Sequence[str]) -> Tally:
        """Exact match and BLEU statistics of each answer."""
        return text_tally(answers, self.references)

    def translate(self, model: nn.Module, pairs: Sequence[Pair]) -> list[Translation]:
        """The best translation of each pair's source, by the search of `regard translate`."""
        search = TranslationSearch(model, self.tokenizer, self.search)
        results = search([pair.source for pair in pairs], [[pair.language] for pair in pairs])
        return [row[0][0] for row in results]

    def grade(self, model: nn.Module, is_correct: IsCorrect) -> list[GradedAnswer]:
        """Graded answers of the split and, as incorrect, to out-of-distribution texts."""
        ood_answers = self.translate(model, self.ood_pairs)
        ood_graded = [GradedAnswer(answer.raw_score, False) for answer in ood_answers]
        return self.grade_pairs(model, self.pairs[:MAX_GRADED], is_correct) + ood_graded

    def grade_pairs(
        self, model: nn.Module, pairs: Sequence[Pair], is_correct: IsCorrect
    ) -> list[GradedAnswer]:
        """Graded answers to the sources of pairs."""
        answers = zip(self.translate(model, pairs), pairs, strict=True)
        return [GradedAnswer(x.raw_score, is_correct(x.text, p.target)) for x, p in answers]

    @property
    def ood_pairs(self) -> list[Pair]:
        """Out-of-distribution texts: sources of the split with shuffled letters."""
        pairs = self.pairs[: MAX_GRADED // 2]
        return [pair._replace(source=shuffle_letters(pair.source)) for pair in pairs]

    def loss(self, model: nn.Module) -> float:
        """Cross-entropy of the references, in nats per token."""
        encode = pair_preprocessor(self.tokenizer)
        encoded = [encode(pair) for pair in self.pairs]
        batches = (collate(encoded[n : n + 128]) for n in range(0, len(encoded), 128))
        return mean_loss(model, objective("translation"), batches)
