"""How good a model is: its loss, how many answers are exact, and BLEU with its signature."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from regard.data import Pair, Source, Tokenizer, collate, pair_encoder
from regard.data.batches import like_lengths
from regard.decode import beam, greedy, make_stepper
from regard.errors import ShapeError
from regard.train.loss import Batch, Objective, objective

# answers that are written together, all places of the beam counted: a step of a GPU is all waiting
ROWS = {"cpu": 128, "cuda": 8192}


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
def translate(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    languages: Sequence[str | None],
    *,
    width: int = 1,
    penalty: float = 0.6,
    limit: int = 100,
) -> list[str]:
    """Texts in other languages, a language for each (None where a model knows but one).

    A `width` of 1 is greedy; a wider beam has the `penalty` of `decode.beam` for short answers.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> len(translate(model, rg.data.Bytes(languages=("de",)), ["two"], ["de"], limit=3))
    1
    """
    encode, stepper = pair_encoder(tokenizer), make_stepper(model)
    device = next(model.parameters()).device
    pairs = [Pair(text, "", to) for text, to in zip(texts, languages, strict=True)]
    encoded = [encode(pair) for pair in pairs]
    answers, together = [""] * len(pairs), max(1, ROWS.get(device.type, 128) // width)
    for rows in like_lengths([len(one["source"]) for one in encoded], together):
        batch = {k: x.to(device) for k, x in collate([encoded[n] for n in rows]).items()}
        state = stepper.start(batch["source"], batch["source_lengths"])
        first = batch["target"][:, 0]
        if width == 1:
            found = greedy(stepper, state, first, end=tokenizer.end, limit=limit)
        else:
            found = beam(
                stepper, state, first, end=tokenizer.end, limit=limit, width=width, penalty=penalty
            )
        for n, ids in zip(rows, found.lists(), strict=True):
            answers[n] = tokenizer.decode(ids)
    return answers


@torch.no_grad()
def mean_loss(model: nn.Module, of: Objective, batches: Iterable[Batch]) -> float:
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
        total += float(of.total(model, batch, 0.0))
        size += int(of.size(batch))
    return total / max(1, size)


class TranslationScores:
    """What a translator gets on a fixed part of a source: loss, exact answers, BLEU.

    >>> pairs = rg.data.Listed(valid=[rg.data.Pair("two", "zwei", "de")])
    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> scores = TranslationScores(pairs, rg.data.Bytes(languages=("de",)), split="valid", limit=9)
    >>> sorted(scores(model))
    ['bleu', 'exact', 'loss', 'signature']
    """

    def __init__(
        self,
        source: Source,
        tokenizer: Tokenizer,
        *,
        split: str,
        width: int = 1,
        penalty: float = 0.6,
        limit: int = 100,
    ):
        self.pairs: list[Pair] = list(source.examples(split, 0))  # type: ignore[arg-type]
        self.tokenizer, self.width, self.penalty, self.limit = tokenizer, width, penalty, limit

    def __call__(self, model: nn.Module) -> dict[str, Any]:
        return self.judge(model, self.answers(model))

    def judge(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of answers that the model gave."""
        return {"loss": self.loss(model), **score_texts(answers, self.right)}

    @property
    def asked(self) -> list[str]:
        """What the model is asked, in words."""
        return [p.source if p.language is None else f"{p.language}: {p.source}" for p in self.pairs]

    @property
    def right(self) -> list[str]:
        """The right answers."""
        return [pair.target for pair in self.pairs]

    def answers(self, model: nn.Module) -> list[str]:
        """What the model makes of each source."""
        return translate(
            model,
            self.tokenizer,
            [pair.source for pair in self.pairs],
            [pair.language for pair in self.pairs],
            width=self.width,
            penalty=self.penalty,
            limit=self.limit,
        )

    def loss(self, model: nn.Module) -> float:
        """How surprising the right answers are, in nats a token."""
        encode = pair_encoder(self.tokenizer)
        ready = [encode(pair) for pair in self.pairs]
        batches = (collate(ready[at : at + 128]) for at in range(0, len(ready), 128))
        return mean_loss(model, objective("translation"), batches)
