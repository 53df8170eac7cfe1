"""Recipes: small functions that each return a whole training as one frozen config."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from regard.data import Phrases
from regard.errors import ConfigError
from regard.models import RecurrentTranslatorConfig, TranslatorConfig, translator_tiny
from regard.models.config import check_positive
from regard.train.config import TrainConfig

TWELVE = ("cs", "de", "en", "es", "fi", "fr", "it", "ja", "nl", "pl", "pt", "tr")


@dataclass(frozen=True, kw_only=True)
class PhrasesData:
    """Which phrases: the languages, those that are read, and how many unseen facts are scored.

    The words of the first `texts` examples are the vocabulary; others are spelled out.

    >>> len(PhrasesData().languages)
    12
    """

    languages: tuple[str, ...] = TWELVE
    sources: tuple[str, ...] = ("en",)
    kinds: tuple[str, ...] = ("date", "time", "moment", "duration", "unit", "money", "list")
    texts: int = 20000
    valid: int = 300
    test: int = 1000
    longest: int = 100  # tokens of an answer; what is cut there is wrong

    def __post_init__(self) -> None:
        check_positive(self, "texts", "valid", "test", "longest")
        Phrases(self.languages, sources=self.sources, kinds=self.kinds)  # its errors, now


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole training: data, model and loop. The model's vocabulary comes from the tokenizer.

    >>> recipe("phrases").train.schedule
    'cosine'
    """

    name: str
    data: PhrasesData
    model: TranslatorConfig | RecurrentTranslatorConfig
    train: TrainConfig


def phrases() -> Recipe:
    """English dates, times, durations, units, money and lists into eleven languages.

    >>> phrases().model.layers
    2
    """
    return Recipe(
        name="phrases",
        data=PhrasesData(),
        model=translator_tiny(1, dim=128, heads=4, hidden=256, dropout=0.0),
        train=TrainConfig(
            steps=2000,
            tokens=512,
            lr=3e-3,
            warmup=200,
            watch="exact",
            evaluate_every=500,
            save_every=500,
        ),
    )


RECIPES: dict[str, Callable[[], Recipe]] = {"phrases": phrases}


def recipe(name: str) -> Recipe:
    """A recipe by its name.

    >>> recipe("phrase")
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: recipe: needs one of phrases, got 'phrase'; try phrases
    """
    if name in RECIPES:
        return RECIPES[name]()
    close = get_close_matches(name, RECIPES, 1)
    hint = f"; try {close[0]}" if close else ""
    raise ConfigError(f"recipe: needs one of {', '.join(RECIPES)}, got {name!r}{hint}")
