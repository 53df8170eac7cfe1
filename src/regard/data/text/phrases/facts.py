"""Meanings without words: a date, a time, a duration, an amount, or a list of them, from a seed."""

from datetime import date
from hashlib import blake2b
from typing import Any, NamedTuple

from regard.data.split import Split, hash_split
from regard.errors import ConfigError

FACT_KINDS = ("date", "time", "moment", "duration", "unit", "money", "list")
COMPOSITE_KINDS = ("list", "moment")  # made of other facts
LIST_ITEM_KINDS = (
    "date",
    "time",
    "unit",
    "money",
)  # "3 hours and 5 minutes" would be two facts in one text
UNITS = (
    *("length-kilometer", "length-meter", "length-centimeter", "length-mile"),
    *("mass-kilogram", "mass-gram", "mass-tonne", "volume-liter", "volume-milliliter"),
    *("area-square-meter", "area-square-kilometer", "area-hectare", "temperature-celsius"),
    *("speed-kilometer-per-hour", "power-watt", "power-kilowatt", "energy-kilowatt-hour"),
    *("digital-gigabyte", "frequency-megahertz", "electric-volt"),
)
DURATION_UNITS = tuple(
    f"duration-{span}" for span in ("second", "minute", "hour", "day", "week", "month", "year")
)
SMALLER_UNIT = {"minute": "second", "hour": "minute", "day": "hour", "week": "day", "year": "month"}
MAX_COUNT = {"second": 59, "minute": 59, "hour": 23, "day": 6, "month": 11}  # in a larger span
CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY", "CNY", "INR", "BRL", "PLN", "CZK", "TRY", "CAD")
FIRST_DAY, LAST_DAY = date(1950, 1, 1).toordinal(), date(2049, 12, 31).toordinal()
DATE_STYLES = ("full", "long")  # medium is long in some languages, so it could not be told
SMALL_COUNTS = (1, 2, 3, 4)  # so many of a unit have word forms of their own: 1 mile, 3 megahertzy
# noon, midnight and half an hour are words that no other meaning has
TRAIN_ONLY = {"time(12, 0)", "time(0, 0)", "duration((30, 'duration-minute'),)"}


class Fact(NamedTuple):
    """What a phrase says, in no language; the style is how it is said and no part of the meaning.

    >>> Fact("time", (15, 5)).meaning
    'time(15, 5)'
    >>> Fact("date", (2026, 11, 5), "full").meaning == Fact("date", (2026, 11, 5), "long").meaning
    True
    """

    kind: str
    value: tuple[Any, ...]
    style: str = ""

    @property
    def meaning(self) -> str:
        """One text for one meaning, the same in every process: what the split goes by."""
        if self.kind in COMPOSITE_KINDS:
            return f"{self.kind}{self.style}({', '.join(part.meaning for part in self.value)})"
        return f"{self.kind}{self.value}"


def fact_split(fact: Fact) -> Split | None:
    """Where a meaning belongs, for ever; None for a list of meanings from several splits.

    One to four of a unit are for training, and so is noon: a word that is said of nothing else has
    to be learnt.

    >>> fact_split(Fact("time", (15, 5))), fact_split(Fact("time", (15, 8)))
    ('train', 'train')
    """
    if fact.kind in COMPOSITE_KINDS:  # unseen only if everything in it is
        places: set[Split | None] = {fact_split(part) for part in fact.value}
        return places.pop() if len(places) == 1 else None
    if fact.kind == "unit" and fact.value[1] == 0 and fact.value[0] in SMALL_COUNTS:
        return "train"
    return "train" if fact.meaning in TRAIN_ONLY else hash_split(fact.meaning.encode())


class HashRng:
    """Throws that depend on the key alone: not on the process, the machine or Python's version.

    >>> dice = HashRng("a key")
    >>> [dice(6) for _ in range(5)]
    [5, 0, 3, 0, 2]
    """

    __slots__ = ("state",)

    def __init__(self, key: str):
        self.state = int.from_bytes(blake2b(key.encode()).digest())  # 512 bits: 190 throws of a die

    def __call__(self, n: int) -> int:
        """A number from 0 to sides - 1."""
        self.state, rest = divmod(self.state, n)
        return rest

    def choice(self, options):
        """One of a sequence."""
        return options[self(len(options))]


def check_kinds(kinds: tuple[str, ...]) -> None:
    """Stop at a kind that does not exist, and at lists of nothing."""
    unknown = [kind for kind in kinds if kind not in FACT_KINDS]
    if unknown or not kinds:
        raise ConfigError(
            f"kinds: need some of {', '.join(FACT_KINDS)}, got {', '.join(unknown) or 'none'}"
        )
    if "list" in kinds and not set(kinds) & set(LIST_ITEM_KINDS):
        raise ConfigError(
            f"kinds: need one of {', '.join(LIST_ITEM_KINDS)} beside list, got {', '.join(kinds)}"
        )


def draw_fact(key: str, split: Split, kinds: tuple[str, ...] = FACT_KINDS) -> Fact:
    """The fact of a key: of one split, of the kinds asked for.

    >>> draw_fact("0/0", "train", kinds=("time",))
    Fact(kind='time', value=(13, 37), style='')
    """
    dice = HashRng(key)
    kind = dice.choice(kinds)
    if kind == "moment":
        return Fact(
            "moment", (_one(f"{key}/day", "day", split), _one(f"{key}/time", "time", split))
        )
    if kind != "list":
        return _one(f"{key}/{kind}", kind, split)
    inside = tuple(k for k in kinds if k in LIST_ITEM_KINDS)
    style, many = dice.choice(("standard", "or")), 2 + dice(2)
    of = dice.choice(inside)  # a list is of one kind, as in life: three dates, two prices
    return Fact("list", tuple(_one(f"{key}/{i}", of, split) for i in range(many)), style)


def _one(key: str, kind: str, split: Split) -> Fact:
    for attempt in range(10_000):
        fact = _DRAWS[kind](HashRng(f"{key}/{attempt}"))
        if fact_split(fact) == split:
            return fact
    raise AssertionError(f"no {kind} in {split}")


def _date(dice: HashRng) -> Fact:
    day, shown = _day(dice), dice(8)
    year, month, number = day.value
    if shown == 0:
        return Fact("date", (year, month))
    return Fact("date", (0, month, number)) if shown == 1 else day


def _day(dice: HashRng) -> Fact:
    day = date.fromordinal(FIRST_DAY + dice(LAST_DAY - FIRST_DAY + 1))
    return Fact("date", (day.year, day.month, day.day), dice.choice(DATE_STYLES))


def _time(dice: HashRng) -> Fact:
    return Fact("time", (dice(24), dice(60)))


def _duration(dice: HashRng) -> Fact:
    if dice(3) == 0:
        return Fact("duration", ((_number(dice), dice.choice(DURATION_UNITS)),))
    large = dice.choice(tuple(SMALLER_UNIT))
    small = SMALLER_UNIT[large]
    parts = (
        (_number(dice, 2), f"duration-{large}"),
        (1 + dice(MAX_COUNT[small]), f"duration-{small}"),
    )
    return Fact("duration", parts)


def _unit(dice: HashRng) -> Fact:
    unit, tenths = dice.choice(UNITS), dice(4) == 0
    number = _number(dice)
    return Fact("unit", (10 * number + 1 + dice(9), 1, unit) if tenths else (number, 0, unit))


def _money(dice: HashRng) -> Fact:
    currency, style = dice.choice(CURRENCIES), dice.choice(("name", "standard"))
    cents = 0 if currency == "JPY" else dice.choice((0, 50, dice(100)))  # a yen has none
    return Fact("money", (100 * _number(dice, 4) + cents, currency), style)


def _number(dice: HashRng, digits: int = 3) -> int:
    """1 to 9, 10 to 99, …, equally often: small numbers have the most grammar."""
    low = 10 ** dice(digits)
    return low + dice(9 * low)


_DRAWS = {
    "date": _date,
    "time": _time,
    "day": _day,
    "duration": _duration,
    "unit": _unit,
    "money": _money,
}


def count_facts() -> dict[str, int]:
    """How many different meanings there are of each kind.

    >>> count_facts()["time"]
    1440
    """
    days, numbers = LAST_DAY - FIRST_DAY + 1, {n: 10**n - 1 for n in (2, 3, 4)}
    pairs = sum(numbers[2] * MAX_COUNT[small] for small in SMALLER_UNIT.values())
    counts = {
        "date": days + 100 * 12 + 366,
        "time": 24 * 60,
        "moment": days * 24 * 60,
        "duration": numbers[3] * len(DURATION_UNITS) + pairs,
        "unit": numbers[3] * 10 * len(UNITS),
        "money": numbers[4] * (100 * len(CURRENCIES) - 99),
    }
    lists = sum(2 * (n**2 + n**3) for kind, n in counts.items() if kind in LIST_ITEM_KINDS)
    return {**counts, "list": lists}
