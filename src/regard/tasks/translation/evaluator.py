"""How good a model is: its loss, how many answers are exact, and BLEU with its signature."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import torch
from torch import nn

from regard.data import Pair, Source, Tokenizer, collate, pair_preprocessor
from regard.errors import ShapeError
from regard.tasks.translation.search import Translation, TranslationSearch
from regard.train.losses import Batch, Objective, objective
from regard.train.metrics.calibration import GradedAnswer

MAX_GRADED = 400  # answers of a part, at most, that confidence is calibrated on


def shuffle_letters(text: str) -> str:
    """A text of no meaning: the letters of every word in another order, by a hash of the text.

    >>> shuffle_letters("a small house") == shuffle_letters("a small house") != "a small house"
    True
    """
    rng = Random(text)
    return " ".join("".join(rng.sample(word, len(word))) for word in text.split())


def score_texts(answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """The share of exact answers, and BLEU by sacrebleu, with the signature that says which BLEU.

    >>> scores = score_texts(["one two three four", "five"], ["one two three four", "six"])
    >>> scores["exact"], round(scores["bleu"], 1)  # 4 of 5 words, all pairs: (4/5)^(1/4)
    (0.5, 94.6)
    """
    from sacrebleu.metrics.bleu import BLEU  # only who scores waits for it

    if not answers or len(answers) != len(references):
        raise ShapeError(
            f"answers: needs one for each of {len(references)} references, got {len(answers)}"
        )
    bleu = BLEU()
    score = bleu.corpus_score(list(answers), [list(references)]).score
    exact = sum(a == b for a, b in zip(answers, references, strict=True)) / len(answers)
    return {"exact": exact, "bleu": score, "signature": str(bleu.get_signature())}


@torch.no_grad()
def mean_loss(model: nn.Module, objective: Objective, batches: Iterable[Batch]) -> float:
    """The loss over all batches, each token counting the same; without smoothing.

    Σ_batches total / Σ_batches size

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=8)).eval()
    >>> batch = {"tokens": torch.zeros(1, 5, dtype=torch.long)}
    >>> mean_loss(model, objective("next_token"), [batch]) > 0
    True
    """
    device = next(model.parameters()).device
    total, size = 0.0, 0
    for batch in batches:
        batch = {name: x.to(device) for name, x in batch.items()}
        total += float(objective.loss_sum(model, batch, 0.0))
        size += int(objective.size(batch))
    return total / max(1, size)


class TranslationEvaluator:
    """What a translator gets on a fixed part of a source: loss, exact answers, BLEU.

    `graded` is for the calibration of confidence: the answers of the part and those to `foreign`
    texts, to which no answer is right.

    >>> pairs = rg.data.InMemorySource(valid=[rg.data.Pair("two", "zwei", "de")])
    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> scores = TranslationEvaluator(pairs, rg.data.ByteTokenizer(languages=("de",)), split="valid", max_new_tokens=9)
    >>> sorted(scores(model))
    ['bleu', 'exact', 'loss', 'signature']
    """

    def __init__(
        self,
        source: Source,
        tokenizer: Tokenizer,
        *,
        split: str,
        beam_width: int = 1,
        length_penalty: float = 0.6,
        max_new_tokens: int = 100,
    ):
        self.pairs: list[Pair] = list(source.examples(split, 0))  # type: ignore[arg-type]
        self.tokenizer, self.beam_width, self.length_penalty, self.max_new_tokens = (
            tokenizer,
            beam_width,
            length_penalty,
            max_new_tokens,
        )

    def __call__(self, model: nn.Module) -> dict[str, Any]:
        return self.score(model, self.predict(model))

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of answers that the model gave."""
        return {"loss": self.loss(model), **score_texts(answers, self.references)}

    @property
    def sources(self) -> list[str]:
        """What the model is asked, in words."""
        return [p.source if p.language is None else f"{p.language}: {p.source}" for p in self.pairs]

    @property
    def references(self) -> list[str]:
        """The right answers."""
        return [pair.target for pair in self.pairs]

    def predict(self, model: nn.Module) -> list[str]:
        """What the model makes of each source."""
        return [answer.text for answer in self.translate(model, self.pairs)]

    def translate(self, model: nn.Module, pairs: Sequence[Pair]) -> list[Translation]:
        """The answers to some pairs' sources, by the search that `regard translate` runs."""
        search = TranslationSearch(
            model,
            self.tokenizer,
            beam_width=self.beam_width,
            length_penalty=self.length_penalty,
            max_new_tokens=self.max_new_tokens,
        )
        found = search([pair.source for pair in pairs], [[pair.language] for pair in pairs])
        return [row[0][0] for row in found]

    def grade(self, model: nn.Module) -> list[GradedAnswer]:
        """Answers with their raw scores: of the part, and to foreign texts, which are not right."""
        pairs, foreign = self.pairs[:MAX_GRADED], self.ood_pairs
        found = zip(self.translate(model, pairs), pairs, strict=True)
        graded = [
            GradedAnswer(a.raw_score, self.is_correct(a.text, pair.target)) for a, pair in found
        ]
        return graded + [GradedAnswer(a.raw_score, False) for a in self.translate(model, foreign)]

    @property
    def ood_pairs(self) -> list[Pair]:
        """Texts that no answer is right for: the part's own with the letters of words shuffled."""
        return [
            pair._replace(source=shuffle_letters(pair.source))
            for pair in self.pairs[: MAX_GRADED // 2]
        ]

    def is_correct(self, answer: str, reference: str) -> bool:
        """Whether an answer counts as right."""
        return answer == reference

    def loss(self, model: nn.Module) -> float:
        """How surprising the right answers are, in nats a token."""
        encode = pair_preprocessor(self.tokenizer)
        ready = [encode(pair) for pair in self.pairs]
        batches = (collate(ready[at : at + 128]) for at in range(0, len(ready), 128))
        return mean_loss(model, objective("translation"), batches)
