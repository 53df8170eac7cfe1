"""Phrases: dates, times, durations, units, money and lists, from one language into many."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

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
from regard.data.text.phrases.paraphrases import add_typo
from regard.models import RecurrentTranslatorConfig, translator_tiny
from regard.models.config import check_positive
from regard.tasks.recipe import EvalSplit, Recipe
from regard.tasks.translation.evaluator import MAX_GRADED, TranslationEvaluator
from regard.train.config import TrainConfig
from regard.train.metrics.calibration import GradedAnswer

NORMALIZE = ("typography", "lower")  # of what is read
TWELVE = ("cs", "de", "en", "es", "fi", "fr", "it", "ja", "nl", "pl", "pt", "tr")


@dataclass(frozen=True, kw_only=True)
class PhrasesData:
    """Which phrases: the languages, those that are read, and how many unseen facts are scored.

    The words of the first `texts` examples are the vocabulary; others are spelled out, and so are
    numbers, by at most `digits` digits at a time. Sources are normalised: case, spaces, quotes and
    dashes make no difference; answers keep CLDR's typography.

    `natural` is the share of training sources as people type them, `foreign` that of texts which
    are none of the facts, and whose answer is empty; valid and test are CLDR's own forms.

    >>> len(PhrasesData().languages)
    12
    """

    languages: tuple[str, ...] = TWELVE
    source_languages: tuple[str, ...] = ("en",)
    kinds: tuple[str, ...] = ("date", "time", "moment", "duration", "unit", "money", "list")
    vocab_texts: int = 20000
    digits_per_token: int = 2
    valid_size: int = 300
    test_size: int = 1000
    max_new_tokens: int = 100  # tokens of an answer; what is cut there is wrong
    natural_fraction: float = 0.0
    ood_fraction: float = 0.0

    def __post_init__(self) -> None:
        check_positive(
            self, "vocab_texts", "digits_per_token", "valid_size", "test_size", "max_new_tokens"
        )
        self.source(1)  # its errors, now

    @property
    def objective(self) -> str:
        """The loss, by its name."""
        return "translation"

    def source(self, count: int) -> Phrases:
        """The phrases themselves, with so many in the parts that are scored."""
        return Phrases(
            self.languages, source_languages=self.source_languages, kinds=self.kinds, eval_size=count,
            natural_fraction=self.natural_fraction, ood_fraction=self.ood_fraction,
        )  # fmt: skip

    def tokenizer(self, seed: int) -> Tokenizer:
        """Words of the first examples, and a token for each language.

        What is none of the facts adds no words: it is spelled out, as all that is unknown will be.
        """
        pairs = islice(self.source(1).examples("train", seed), self.vocab_texts)
        known = (p._replace(source=normalize_text(p.source, NORMALIZE)) for p in pairs if p.target)
        tokenizer = WordTokenizer.train(
            iter_texts(known), languages=self.languages, max_digits=self.digits_per_token
        )
        tokenizer.normalizers = NORMALIZE
        return tokenizer

    def resolve(self, model: Any, tokenizer: Tokenizer) -> Any:
        """The model's config with the tokenizer's vocabulary on both sides."""
        return replace(model, source_vocab=tokenizer.vocab, target_vocab=tokenizer.vocab)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world_size: int = 1
    ) -> Batches:
        """Pairs of like lengths together."""
        return Batches(
            self.source(1), pair_preprocessor(tokenizer), split="train", batch_tokens=train.batch_tokens,
            seed=train.seed, rank=rank, world_size=world_size, pad_id=tokenizer.pad_id,
        )  # fmt: skip

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> TranslationEvaluator:
        """Loss, exact answers and BLEU on unseen facts."""
        source = self.source(self.valid_size if split == "valid" else self.test_size)
        return PhrasesEvaluator(source, tokenizer, split=split, limit=self.max_new_tokens)


class PhrasesEvaluator(TranslationEvaluator):
    """What a translator gets on phrases: on CLDR's own forms, and where it was trained on them, on
    what people type (`natural`: exact answers) and on what is no fact (`foreign`: empty answers).

    >>> source = Phrases(("en", "de"), source_languages=("en",), count=2)
    >>> scores = PhrasesEvaluator(source, rg.data.ByteTokenizer(("en", "de")), split="test")
    >>> [len(some) for some in (scores.pairs, scores.natural_fraction, scores.ood_pairs)]
    [2, 2, 2]
    """

    def __init__(self, source: Phrases, tokenizer: Tokenizer, *, split: EvalSplit, **given: Any):
        super().__init__(source, tokenizer, split=split, **given)
        self.source = source
        self.split: EvalSplit = split

    @cached_property
    def natural(self) -> list[Pair]:
        """The same facts as people type them."""
        return list(islice(self.source.natural_examples(self.split), MAX_GRADED))

    @property
    def ood_pairs(self) -> list[Pair]:
        """Texts that are none of the facts."""
        return list(islice(self.source.ood_examples(self.split), MAX_GRADED))

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of answers that the model gave."""
        scores = super().score(model, answers)
        both = {"natural": self.natural if self.source.natural_fraction else []}
        both |= {"foreign": self.ood_pairs if self.source.ood_fraction else []}
        for name, pairs in both.items():
            found = zip(self.translate(model, pairs), pairs, strict=True)
            right = [answer.text == pair.target for answer, pair in found]
            scores |= {name: sum(right) / len(right)} if right else {}
        return scores

    def grade(self, model: nn.Module) -> list[GradedAnswer]:
        """Answers with their raw scores: to CLDR's forms, natural ones, and foreign texts.

        Natural texts come with and without a slip of the keys: a good model makes its mistakes
        there, and confidence is calibrated on mistakes.
        """
        slips = [p._replace(source=add_typo(p.source, f"{n}")) for n, p in enumerate(self.natural)]
        pairs = self.natural + slips
        found = zip(self.translate(model, pairs), pairs, strict=True)
        graded = [
            GradedAnswer(answer.raw_score, answer.text == pair.target) for answer, pair in found
        ]
        return super().grade(model) + graded


def phrases() -> Recipe:
    """English dates, times, durations, units, money and lists into eleven languages.

    >>> phrases().model.layers
    1
    """
    return Recipe(
        name="phrases",
        data=PhrasesData(),
        # One layer that reads and one that writes learn it in half the time of two and two; and
        # small batches learn more than as many tokens in larger ones.
        model=translator_tiny(
            1, layers=1, decoder_layers=1, dim=128, heads=8, hidden=256, dropout=0.0,
            positions="none", rope_theta=10000.0,
            tied=False,  # a tied readout begins by repeating what it reads: half the speed
        ),
        train=TrainConfig(
            steps=2000, batch_tokens=512, lr=3e-3, warmup=100, monitor="exact", evaluate_every=1000,
            save_every=1000,
        ),
    )  # fmt: skip


def phrases_gru() -> Recipe:
    """The same by a GRU with Luong's attention, of about as many parameters.

    >>> phrases_gru().model.cell
    'gru'
    """
    model = RecurrentTranslatorConfig(
        source_vocab=1, target_vocab=1, cell="gru", attention="luong", dim=128, hidden=248
    )
    base = phrases()
    loop = replace(base.train, steps=1000, batch_tokens=1024, evaluate_every=500, save_every=500)
    return replace(base, name="phrases-gru", model=model, train=loop)


def phrases_long() -> Recipe:
    """The same by a larger Transformer, for a GPU.

    >>> phrases_long().model.dim
    256
    """
    base = phrases()
    model = replace(base.model, dim=256, heads=8, ffn_dim=512, layers=3, decoder_layers=3)
    loop = replace(
        base.train, steps=3000, batch_tokens=8192, lr=1.5e-3, warmup=300, evaluate_every=1500,
        save_every=1500,
    )  # fmt: skip
    return replace(base, name="phrases-long", model=model, train=loop)


def phrases_natural() -> Recipe:
    """The pretrained `phrases`: also reads what people type, and says what is none of its facts.

    >>> recipe = phrases_natural()
    >>> recipe.data.natural_fraction, recipe.data.ood_pairs
    (0.5, 0.12)
    """
    base = phrases_long()
    model = replace(base.model, dim=192, heads=6, ffn_dim=384, layers=3, decoder_layers=2)
    data = replace(base.data, natural_fraction=0.5, ood_fraction=0.12)
    loop = replace(base.train, steps=8000, lr=2e-3, evaluate_every=2000, save_every=1000)
    return replace(base, name="phrases-natural", data=data, model=model, train=loop)
