"""Phrases: dates, times, durations, units, money and lists, from one language into many."""

from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from regard.data import Batches, Phrases, Tokenizer, Words, pair_encoder, texts_of
from regard.models import RecurrentTranslatorConfig, translator_tiny
from regard.models.config import check_positive
from regard.train.config import TrainConfig
from regard.train.evaluation import TranslationScores
from regard.train.recipes.recipe import Part, Recipe

TWELVE = ("cs", "de", "en", "es", "fi", "fr", "it", "ja", "nl", "pl", "pt", "tr")


@dataclass(frozen=True, kw_only=True)
class PhrasesData:
    """Which phrases: the languages, those that are read, and how many unseen facts are scored.

    The words of the first `texts` examples are the vocabulary; others are spelled out, and so are
    numbers, by at most `digits` digits at a time.

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

    def __post_init__(self) -> None:
        check_positive(self, "texts", "digits", "valid", "test", "longest")
        self.source(1)  # its errors, now

    @property
    def objective(self) -> str:
        """The loss, by its name."""
        return "translation"

    def source(self, count: int) -> Phrases:
        """The phrases themselves, with so many in the parts that are scored."""
        return Phrases(self.languages, sources=self.sources, kinds=self.kinds, count=count)

    def tokenizer(self, seed: int) -> Tokenizer:
        """Words of the first examples, and a token for each language."""
        texts = texts_of(islice(self.source(1).examples("train", seed), self.texts))
        return Words.train(texts, languages=self.languages, digits=self.digits)

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
        return TranslationScores(source, tokenizer, split=part, limit=self.longest)


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
            steps=1900, tokens=512, lr=3e-3, warmup=100, watch="exact", evaluate_every=950,
            save_every=950,
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
