"""Translation without a download: facts said in many languages, in the words of Unicode's CLDR."""

from collections.abc import Iterator, Sequence
from datetime import date, time
from decimal import Decimal
from functools import lru_cache
from typing import Any

from babel import Locale, UnknownLocaleError
from babel.dates import DateTimeFormat, format_time, match_skeleton
from babel.lists import format_list
from babel.numbers import format_currency, format_decimal, get_decimal_symbol
from babel.units import format_unit

from regard.data.split import Split
from regard.data.text.pair import Pair
from regard.data.text.phrases.facts import FACT_KINDS, Fact, HashRng, check_kinds, draw_fact
from regard.data.text.phrases.ood_text import ood_text
from regard.data.text.phrases.paraphrases import paraphrase, typical_fact
from regard.errors import ConfigError

LANGUAGES = (
    *("ar", "cs", "de", "el", "en", "es", "fi", "fr"),
    *("it", "ja", "nl", "pl", "pt", "ru", "tr", "zh"),
)
CACHE_SIZE = 1 << 16  # cached texts of one kind: some megabytes


class Phrases:
    """Endless translations among languages: dates, times, durations, units, money, lists of these.

    A fact is drawn from the seed and the example's number, and said in two languages; no fact of
    the test is in the training, in any language, alone or in a list.

    Args:
        languages: those written.
        sources: those read; all if not given.
        kinds: the kinds of facts.
        count: examples of the valid and test splits.
        natural: share of English training sources as people type them instead of CLDR's form.
        foreign: share of training sources that are none of the facts; their target is empty.

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
        if not (
            natural_fraction >= 0 and ood_fraction >= 0 and natural_fraction + ood_fraction <= 1
        ):
            raise ConfigError(
                f"natural, foreign: need shares of at most 1 together, got {natural_fraction} and {ood_fraction}"
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
        """Pairs from the one numbered `start`: endless for train, the same `count` ones otherwise.

        >>> first = Phrases().examples("train", seed=0)
        >>> _ = next(first), next(first)
        >>> next(first) == next(Phrases().examples("train", seed=0, start=2))
        True
        """
        varied = split == "train" and self.natural_fraction + self.ood_fraction > 0
        for number, (fact, source, target) in enumerate(self.facts(split, seed, start), start):
            if varied:
                key = f"{seed}/{number}"
                share = HashRng(f"share/{key}")(1000) / 1000
                if share < self.ood_fraction:
                    yield self._foreign(key, split, target)
                    continue
                if share < self.ood_fraction + self.natural_fraction and source == "en":
                    yield _natural(fact, key, target)
                    continue
            yield Pair(format_fact(fact, source), format_fact(fact, target), target)

    def natural_examples(self, split: Split) -> Iterator[Pair]:
        """The facts of a held-out split as people type them, where English is read."""
        for number, (fact, source, target) in enumerate(self.facts(split, 0)):
            if source == "en":
                yield _natural(fact, f"{split}/{number}", target)

    def ood_examples(self, split: Split) -> Iterator[Pair]:
        """Held-out texts that are none of the facts; their target is empty."""
        for number, (_, _, target) in enumerate(self.facts(split, 0)):
            yield self._foreign(f"{split}/{number}", split, target)

    def _foreign(self, key: str, split: Split, target: str) -> Pair:
        """A text of no fact, one in eight a fact in a language that is not read."""
        dice = HashRng(f"unread/{key}")
        unread = [one for one in self.languages if one not in self.source_languages]
        if unread and dice(8) == 0:
            fact = draw_fact(f"{key}/unread", split, ("date", "duration"))
            text = format_fact(fact, dice.choice(unread))
            if _words(text) - _words(format_fact(fact, "en")):  # else it could be English
                return Pair(text, "", target)
        return Pair(ood_text(key, split), "", target)

    def facts(self, split: Split, seed: int, start: int = 0) -> Iterator[tuple[Fact, str, str]]:
        """What the examples say before it is said: the fact and its two languages."""
        key = f"{seed}" if split == "train" else split
        number = start
        while split == "train" or number < self.eval_size:
            at = f"{key}/{number}"
            dice = HashRng(f"languages/{at}")
            source = dice.choice(self.source_languages)
            target = dice.choice([other for other in self.languages if other != source])
            yield draw_fact(at, split, self.kinds), source, target
            number += 1


def _natural(fact: Fact, key: str, target: str) -> Pair:
    fact = typical_fact(fact, key)
    return Pair(paraphrase(fact, key), format_fact(fact, target), target)


def _words(text: str) -> set[str]:
    return {word for word in text.lower().split() if len(word) > 2 and word.isalpha()}


def format_fact(fact: Fact, language: str) -> str:
    """A fact in words, as CLDR has them.

    >>> fact = Fact("date", (2026, 11, 5), "full")
    >>> format_fact(fact, "en"), format_fact(fact, "tr")
    ('Thursday, November 5, 2026', '5 Kasım 2026 Perşembe')
    """
    value = fact.value
    if fact.kind == "list":
        parts = [format_fact(part, language) for part in value]
        return _join(language, fact.style, len(parts)).format(*parts)
    if fact.kind == "date":
        return _say_date(value, fact.style, language)
    if fact.kind == "time":
        return _say_time(value, language)
    if fact.kind == "moment":
        day, hour = (format_fact(part, language) for part in value)
        return _at(language).format(hour, day)
    if fact.kind == "duration":
        parts = [_say_unit(number, 0, span, language) for number, span in value]
        return _join(language, "standard", len(parts)).format(*parts)
    if fact.kind == "unit":
        number, places, unit = value
        return _say_unit(number, places, unit, language)
    amount, currency = value
    return _say_money(amount, currency, fact.style, language)


# What follows is Babel's own answer, taken apart once a language and put together a phrase: the
# tests hold it to format_date, format_unit and format_currency, which are three times slower.


@lru_cache(None)
def _locale(language: str) -> Locale:
    try:
        return Locale.parse(language)
    except (UnknownLocaleError, ValueError) as error:
        raise ConfigError(
            f"languages: need those that CLDR knows, got {language!r}; try {' '.join(LANGUAGES)}"
        ) from error


@lru_cache(None)
def _join(language: str, style: Any, many: int) -> str:
    return format_list([f"{{{i}}}" for i in range(many)], style, _locale(language))


@lru_cache(None)
def _at(language: str) -> str:
    return str(_locale(language).datetime_formats["long"])


@lru_cache(None)
def _pattern(language: str, style: str) -> tuple[str, tuple[str, ...]]:
    """How a date is written here, with holes, and what goes into them."""
    locale = _locale(language)
    if style in ("full", "long"):
        pattern: Any = locale.date_formats[style]
    else:
        wanted = {"month": "yMMMM", "day": "MMMMd"}[style]
        pattern = locale.datetime_skeletons[
            match_skeleton(wanted, locale.datetime_skeletons) or wanted
        ]
    text = str(pattern.format)
    holes = text.split("%(")[1:]
    return text, tuple(hole.partition(")")[0] for hole in holes)


@lru_cache(None)
def _field(language: str, hole: str, number: int) -> str:
    """One hole of a date: a day of the month, a month, a year or a weekday from 0, Monday."""
    days = {"d": (2026, 1, number), "M": (2026, number, 1), "L": (2026, number, 1)}
    days |= {"y": (number, 1, 1)}
    day = date(*days.get(hole[0], (2026, 6, 1 + number)))  # 1 June 2026 is a Monday
    return DateTimeFormat(day, _locale(language))[hole]


def _say_date(value: tuple[int, ...], style: str, language: str) -> str:
    style = style or ("month" if len(value) == 2 else "day")
    text, holes = _pattern(language, style)
    year, month, day = (*value, 1)[:3]
    of = {"y": year, "M": month, "L": month, "d": day}
    return text % {
        hole: _field(language, hole, of[hole[0]] if hole[0] in of else date(*value).weekday())
        for hole in holes
    }


@lru_cache(CACHE_SIZE)
def _say_time(value: tuple[int, int], language: str) -> str:
    return format_time(time(*value), "short", locale=_locale(language))


@lru_cache(CACHE_SIZE)
def _say_number(whole: int, language: str) -> str:
    return format_decimal(whole, locale=_locale(language))


@lru_cache(None)
def _point(language: str) -> str:
    return get_decimal_symbol(_locale(language))


@lru_cache(CACHE_SIZE)
def _plural(language: str, number: int, places: int) -> str:
    value = Decimal(number).scaleb(-places)
    return _locale(language).plural_form(value if places else number)


def _say_unit(number: int, places: int, unit: str, language: str) -> str:
    text = _say_number(number // 10**places, language)
    if places:
        text += f"{_point(language)}{number % 10**places:0{places}}"
    return _measure(language, unit, _plural(language, number, places), number, places).format(text)


_measures: dict[tuple[str, str, str], str] = {}


def _measure(language: str, unit: str, plural: str, number: int, places: int) -> str:
    """The words around a number of this plural form, made from any number that has it."""
    if (language, unit, plural) not in _measures:
        locale, value = _locale(language), Decimal(number).scaleb(-places)
        said = format_unit(value, unit, "long", locale=locale)
        if unit in said:  # no long form in CLDR: Babel shows the unit's code
            said = format_unit(value, unit, "short", locale=locale)
        holed = said.replace(format_decimal(value, locale=locale), "{}")
        _measures[language, unit, plural] = holed
    return _measures[language, unit, plural]


_prices: dict[tuple[str, str, str, str], str] = {}


def _say_money(amount: int, currency: str, style: str, language: str) -> str:
    cents, whole = amount % 100, amount // 100
    plural = _plural(language, amount, 2) if cents else _plural(language, whole, 0)
    key = language, currency, style, plural
    if key not in _prices:
        _prices[key] = _price(Decimal(amount).scaleb(-2), currency, style, language)
    text = _say_number(whole, language)
    return _prices[key].format(text if currency == "JPY" else f"{text}{_point(language)}{cents:02}")


def _price(value: Decimal, currency: str, style: Any, language: str) -> str:
    locale, written = _locale(language), "#,##0" if currency == "JPY" else "#,##0.00"
    said = format_currency(value, currency, locale=locale, format_type=style)
    return said.replace(format_decimal(value, written, locale=locale), "{}")
