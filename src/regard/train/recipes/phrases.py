"""Phrases: dates, times, durations, units, money and lists, from one language into many."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from torch import nn

from regard.data import Batches, Pair, Phrases, Tokenizer, Words, normalized, pair_encoder, texts_of
from regard.data.natural import typo
from regard.models import RecurrentTranslatorConfig, translator_tiny
from regard.models.config import check_positive
from regard.train.confidence import Graded
from regard.train.config import TrainConfig
from regard.train.evaluation import GRADED, TranslationScores
from regard.train.recipes.recipe import Part, Recipe

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
    sources: tuple[str, ...] = ("en",)
    kinds: tuple[str, ...] = ("date", "time", "moment", "duration", "unit", "money", "list")
    texts: int = 20000
    digits: int = 2
    valid: int = 300
    test: int = 1000
    longest: int = 100  # tokens of an answer; what is cut there is wrong
    natural: float = 0.0
    foreign: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self, "texts", "digits", "valid", "test", "longest")
        self.source(1)  # its errors, now

    @property
    def objective(self) -> str:
        """The loss, by its name."""
        return "translation"

    def source(self, count: int) -> Phrases:
        """The phrases themselves, with so many in the parts that are scored."""
        return Phrases(
            self.languages, sources=self.sources, kinds=self.kinds, count=count,
            natural=self.natural, foreign=self.foreign,
        )  # fmt: skip

    def tokenizer(self, seed: int) -> Tokenizer:
        """Words of the first examples, and a token for each language.

        What is none of the facts adds no words: it is spelled out, as all that is unknown will be.
        """
        pairs = islice(self.source(1).examples("train", seed), self.texts)
        known = (p._replace(source=normalized(p.source, NORMALIZE)) for p in pairs if p.target)
        tokenizer = Words.train(texts_of(known), languages=self.languages, digits=self.digits)
        tokenizer.normalize = NORMALIZE
        return tokenizer

    def sized(self, model: Any, tokenizer: Tokenizer) -> Any:
        """The model's config with the tokenizer's vocabulary on both sides."""
        return replace(model, source_vocab=tokenizer.vocab, target_vocab=tokenizer.vocab)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world: int = 1
    ) -> Batches:
        """Pairs of like lengths together."""
        return Batches(
            self.source(1), pair_encoder(tokenizer), split="train", tokens=train.tokens,
            seed=train.seed, rank=rank, world=world, pad=tokenizer.pad,
        )  # fmt: skip

    def scores(self, tokenizer: Tokenizer, part: Part) -> TranslationScores:
        """Loss, exact answers and BLEU on unseen facts."""
        source = self.source(self.valid if part == "valid" else self.test)
        return PhrasesScores(source, tokenizer, split=part, limit=self.longest)


class PhrasesScores(TranslationScores):
    """What a translator gets on phrases: on CLDR's own forms, and where it was trained on them, on
    what people type (`natural`: exact answers) and on what is no fact (`foreign`: empty answers).

    >>> source = Phrases(("en", "de"), sources=("en",), count=2)
    >>> scores = PhrasesScores(source, rg.data.Bytes(("en", "de")), split="test")
    >>> [len(some) for some in (scores.pairs, scores.natural, scores.foreign)]
    [2, 2, 2]
    """

    def __init__(self, source: Phrases, tokenizer: Tokenizer, *, split: Part, **given: Any):
        super().__init__(source, tokenizer, split=split, **given)
        self.source = source
        self.split: Part = split

    @cached_property
    def natural(self) -> list[Pair]:
        """The same facts as people type them."""
        return list(islice(self.source.natural_examples(self.split), GRADED))

    @property
    def foreign(self) -> list[Pair]:
        """Texts that are none of the facts."""
        return list(islice(self.source.foreign_examples(self.split), GRADED))

    def judge(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of answers that the model gave."""
        scores = super().judge(model, answers)
        both = {"natural": self.natural if self.source.natural else []}
        both |= {"foreign": self.foreign if self.source.foreign else []}
        for name, pairs in both.items():
            found = zip(self.translations(model, pairs), pairs, strict=True)
            right = [answer.text == pair.target for answer, pair in found]
            scores |= {name: sum(right) / len(right)} if right else {}
        return scores

    def graded(self, model: nn.Module) -> list[Graded]:
        """Answers with their raw scores: to CLDR's forms, natural ones, and foreign texts.

        Natural texts come with and without a slip of the keys: a good model makes its mistakes
        there, and confidence is calibrated on mistakes.
        """
        slips = [p._replace(source=typo(p.source, f"{n}")) for n, p in enumerate(self.natural)]
        pairs = self.natural + slips
        found = zip(self.translations(model, pairs), pairs, strict=True)
        graded = [Graded(answer.raw, answer.text == pair.target) for answer, pair in found]
        return super().graded(model) + graded


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
            positions="none", rotary=10000.0,
            tied=False,  # a tied readout begins by repeating what it reads: half the speed
        ),
        train=TrainConfig(
            steps=2000, tokens=512, lr=3e-3, warmup=100, watch="exact", evaluate_every=1000,
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
    loop = replace(base.train, steps=1000, tokens=1024, evaluate_every=500, save_every=500)
    return replace(base, name="phrases-gru", model=model, train=loop)


def phrases_long() -> Recipe:
    """The same by a larger Transformer, for a GPU.

    >>> phrases_long().model.dim
    256
    """
    base = phrases()
    model = replace(base.model, dim=256, heads=8, hidden=512, layers=3, decoder_layers=3)
    loop = replace(
        base.train, steps=3000, tokens=8192, lr=1.5e-3, warmup=300, evaluate_every=1500,
        save_every=1500,
    )  # fmt: skip
    return replace(base, name="phrases-long", model=model, train=loop)


def phrases_natural() -> Recipe:
    """The pretrained `phrases`: also reads what people type, and says what is none of its facts.

    >>> recipe = phrases_natural()
    >>> recipe.data.natural, recipe.data.foreign
    (0.5, 0.12)
    """
    base = phrases_long()
    model = replace(base.model, dim=192, heads=6, hidden=384, layers=3, decoder_layers=2)
    data = replace(base.data, natural=0.5, foreign=0.12)
    loop = replace(base.train, steps=8000, lr=2e-3, evaluate_every=2000, save_every=1000)
    return replace(base, name="phrases-natural", data=data, model=model, train=loop)
