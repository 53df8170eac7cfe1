"""Translation pairs without a download: facts formatted by Unicode CLDR in many languages."""

from collections.abc import Iterator, Sequence
from datetime import date, time
from decimal import Decimal
from functools import lru_cache
from itertools import count
from typing import Any

from babel import Locale, UnknownLocaleError
from babel.dates import DateTimeFormat, format_time, match_skeleton
from babel.lists import format_list
from babel.numbers import format_currency, format_decimal, get_decimal_symbol
from babel.units import format_unit

from regard.data.content.phrases.facts import FACT_KINDS, Fact, HashRng, check_kinds, draw_fact
from regard.data.content.phrases.ood_text import ood_text
from regard.data.content.phrases.paraphrases import paraphrase, typical_fact
from regard.data.split import Split
from regard.data.text.parallel_corpus import Pair
from regard.errors import ConfigError

LANGUAGES = (
    *("ar", "cs", "de", "el", "en", "es", "fi", "fr"),
    *("it", "ja", "nl", "pl", "pt", "ru", "tr", "zh"),
)
CACHE_SIZE = 1 << 16  # cached texts per kind: a few megabytes


class Phrases:
    """Endless translation pairs: dates, times, durations, units, money, and lists of these.

    Seed and example number determine a fact, which is formatted in two languages. No fact of the
    test split occurs in training, in any language, alone or in a list.

    Args:
        languages: target languages.
        source_languages: source languages; all of `languages` by default.
        kinds: kinds of facts.
        eval_size: number of examples of the valid and test splits.
        natural_fraction: fraction of English training sources as people type them.
        ood_fraction: fraction of training sources that are no facts; their target is empty.

    >>> phrases = Phrases(("en", "de"), source_languages=("en",), kinds=("duration",))
    >>> next(phrases.examples("train", seed=0))
    Pair(source='973 hours', target='973 Stunden', language='de')
    """

    def __init__(
        self,
        languages: Sequence[str] = LANGUAGES,
        *,
        source_languages: Sequence[str] | None = None,
        kinds: Sequence[str] = FACT_KINDS,
        eval_size: int = 1000,
        natural_fraction: float = 0.0,
        ood_fraction: float = 0.0,
    ):
        self.languages, self.kinds, self.eval_size = tuple(languages), tuple(kinds), eval_size
        self.natural_fraction, self.ood_fraction = natural_fraction, ood_fraction
        if min(natural_fraction, ood_fraction) < 0 or natural_fraction + ood_fraction > 1:
            raise ConfigError(
                f"natural_fraction, ood_fraction: need 0 to 1 in sum, got {natural_fraction} "
                f"and {ood_fraction}"
            )
        self.source_languages = tuple(source_languages or languages)
        for language in {*self.languages, *self.source_languages}:
            _locale(language)
        if not all(set(self.languages) - {source} for source in self.source_languages or [""]):
            raise ConfigError(
                f"languages: need one beside the source, got {' '.join(self.languages) or 'none'}; "
                f"try en de"
            )
        check_kinds(self.kinds)

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Pair]:
        """Pairs from number `start`; train is endless, valid and test have `eval_size` pairs."""
        varied = split == "train" and self.natural_fraction + self.ood_fraction > 0
        for number, (fact, source, target) in enumerate(self.facts(split, seed, start), start):
            if varied:
                key = f"{seed}/{number}"
                uniform = HashRng(f"share/{key}")(1000) / 1000
                if uniform < self.ood_fraction:
                    yield self._ood_pair(key, split, target)
                    continue
                if uniform < self.ood_fraction + self.natural_fraction and source == "en":
                    yield _natural_pair(fact, key, target)
                    continue
            yield Pair(format_fact(fact, source), format_fact(fact, target), target)

    def natural_examples(self, split: Split) -> Iterator[Pair]:
        """The English sources of a held-out split, paraphrased."""
        for number, (fact, source, target) in enumerate(self.facts(split, 0)):
            if source == "en":
                yield _natural_pair(fact, f"{split}/{number}", target)

    def ood_examples(self, split: Split) -> Iterator[Pair]:
        """Held-out texts that are no facts; their target is empty."""
        for number, (_, _, target) in enumerate(self.facts(split, 0)):
            yield self._ood_pair(f"{split}/{number}", split, target)

    def _ood_pair(self, key: str, split: Split, target: str) -> Pair:
        """An out-of-distribution text; one in eight is a fact in a language that is no source."""
        rng = HashRng(f"unread/{key}")
        others = [name for name in self.languages if name not in self.source_languages]
        if others and rng(8) == 0:
            fact = draw_fact(f"{key}/unread", split, ("date", "duration"))
            text = format_fact(fact, rng.choice(others))
            if _words(text) - _words(format_fact(fact, "en")):  # else it could be English
                return Pair(text, "", target)
        return Pair(ood_text(key, split), "", target)

    def facts(self, split: Split, seed: int, start: int = 0) -> Iterator[tuple[Fact, str, str]]:
        """The fact, source language and target language of each example."""
        key = f"{seed}" if split == "train" else split
        for number in count(start) if split == "train" else range(start, self.eval_size):
            at = f"{key}/{number}"
            rng = HashRng(f"languages/{at}")
            source = rng.choice(self.source_languages)
            target = rng.choice([other for other in self.languages if other != source])
            yield draw_fact(at, split, self.kinds), source, target


def _natural_pair(fact: Fact, key: str, target: str) -> Pair:
    fact = typical_fact(fact, key)
    return Pair(paraphrase(fact, key), format_fact(fact, target), target)


def _words(text: str) -> set[str]:
    return {word for word in text.lower().split() if len(word) > 2 and word.isalpha()}


def format_fact(fact: Fact, language: str) -> str:
    """A fact as text, in the long form of Unicode CLDR.

    >>> fact = Fact("date", (2026, 11, 5), "full")
    >>> format_fact(fact, "en"), format_fact(fact, "tr")
    ('Thursday, November 5, 2026', '5 Kasım 2026 Perşembe')
    """
    kind, value, style = fact
    if kind == "date":
        return _format_date(value, style, language)
    if kind == "time":
        return _format_time(value, language)
    if kind == "unit":
        return _format_unit(*value, language=language)
    if kind == "money":
        return _format_money(*value, style=style, language=language)
    if kind == "duration":
        parts = [_format_unit(number, 0, span, language) for number, span in value]
    else:
        parts = [format_fact(part, language) for part in value]
    if kind == "moment":  # CLDR counts the time first
        return _at(language).format(*reversed(parts))
    return _join(language, style or "standard", len(parts)).format(*parts)


# Babel's patterns, parsed once per language and filled per phrase: three times faster than
# format_date, format_unit and format_currency, to which the tests compare it.


@lru_cache(None)
def _locale(language: str) -> Locale:
    try:
        return Locale.parse(language)
    except (UnknownLocaleError, ValueError) as error:
        raise ConfigError(
            f"languages: need languages of CLDR, got {language!r}; try {' '.join(LANGUAGES)}"
        ) from error


@lru_cache(None)
def _join(language: str, style: Any, count: int) -> str:
    return format_list([f"{{{i}}}" for i in range(count)], style, _locale(language))


@lru_cache(None)
def _at(language: str) -> str:
    return str(_locale(language).datetime_formats["long"])


@lru_cache(None)
def _pattern(language: str, style: str) -> tuple[str, tuple[str, ...]]:
    """Date pattern of a language, and the names of its fields."""
    locale = _locale(language)
    if style in ("full", "long"):
        pattern: Any = locale.date_formats[style]
    else:
        skeleton, skeletons = {"month": "yMMMM", "day": "MMMMd"}[style], locale.datetime_skeletons
        pattern = skeletons[match_skeleton(skeleton, skeletons) or skeleton]
    text = str(pattern.format)
    return text, tuple(part.partition(")")[0] for part in text.split("%(")[1:])


@lru_cache(None)
def _field(language: str, field: str, number: int) -> str:
    """One formatted field of a date: day, month, year, or weekday counted from Monday, 0."""
    days = {"d": (2026, 1, number), "M": (2026, number, 1), "L": (2026, number, 1)}
    days |= {"y": (number, 1, 1)}
    day = date(*days.get(field[0], (2026, 6, 1 + number)))  # 1 June 2026 is a Monday
    return DateTimeFormat(day, _locale(language))[field]


def _format_date(value: tuple[int, ...], style: str, language: str) -> str:
    style = style or ("month" if len(value) == 2 else "day")
    text, names = _pattern(language, style)
    year, month, day = (*value, 1)[:3]
    values = {"y": year, "M": month, "L": month, "d": day}
    weekday = date(year, month, day).weekday() if year else 0  # without a year none is shown
    return text % {name: _field(language, name, values.get(name[0], weekday)) for name in names}


@lru_cache(CACHE_SIZE)
def _format_time(value: tuple[int, int], language: str) -> str:
    return format_time(time(*value), "short", locale=_locale(language))


@lru_cache(CACHE_SIZE)
def _format_number(whole: int, language: str) -> str:
    return format_decimal(whole, locale=_locale(language))


@lru_cache(None)
def _point(language: str) -> str:
    return get_decimal_symbol(_locale(language))


@lru_cache(CACHE_SIZE)
def _plural(language: str, number: int, places: int) -> str:
    value = Decimal(number).scaleb(-places)
    return _locale(language).plural_form(value if places else number)


# of units and prices per plural form, derived from the first number of that form
_patterns: dict[tuple[str, ...], str] = {}


def _format_unit(number: int, places: int, unit: str, language: str) -> str:
    text = _format_number(number // 10**places, language)
    if places:
        text += f"{_point(language)}{number % 10**places:0{places}}"
    key = language, unit, _plural(language, number, places)
    if key not in _patterns:
        locale, value = _locale(language), Decimal(number).scaleb(-places)
        example = format_unit(value, unit, "long", locale=locale)
        if unit in example:  # no long form in CLDR: Babel returns the code of the unit
            example = format_unit(value, unit, "short", locale=locale)
        _patterns[key] = example.replace(format_decimal(value, locale=locale), "{}")
    return _patterns[key].format(text)


def _format_money(amount: int, currency: str, style: Any, language: str) -> str:
    cents, whole = amount % 100, amount // 100
    plural = _plural(language, amount, 2) if cents else _plural(language, whole, 0)
    key = language, currency, style, plural
    if key not in _patterns:
        locale, value = _locale(language), Decimal(amount).scaleb(-2)
        example = format_currency(value, currency, locale=locale, format_type=style)
        decimal = "#,##0" if currency == "JPY" else "#,##0.00"
        _patterns[key] = example.replace(format_decimal(value, decimal, locale=locale), "{}")
    text = _format_number(whole, language)
    text = text if currency == "JPY" else f"{text}{_point(language)}{cents:02}"
    return _patterns[key].format(text)
