"""Facts: language-independent dates, times, durations, amounts and lists, drawn from a key."""

from datetime import date
from hashlib import blake2b
from typing import Any, NamedTuple

from regard.data.split import Split, hash_split
from regard.errors import ConfigError

FACT_KINDS = ("date", "time", "moment", "duration", "unit", "money", "list")
COMPOSITE_KINDS = ("list", "moment")  # their value is a tuple of facts
# no durations: "3 hours and 5 minutes" could be one fact or two
LIST_ITEM_KINDS = ("date", "time", "unit", "money")
UNITS = (
    *("length-kilometer", "length-meter", "length-centimeter", "length-mile"),
    *("mass-kilogram", "mass-gram", "mass-tonne", "volume-liter", "volume-milliliter"),
    *("area-square-meter", "area-square-kilometer", "area-hectare", "temperature-celsius"),
    *("speed-kilometer-per-hour", "power-watt", "power-kilowatt", "energy-kilowatt-hour"),
    *("digital-gigabyte", "frequency-megahertz", "electric-volt"),
)
DURATION_UNITS = tuple(
    f"duration-{unit}" for unit in ("second", "minute", "hour", "day", "week", "month", "year")
)
SMALLER_UNIT = {"minute": "second", "hour": "minute", "day": "hour", "week": "day", "year": "month"}
# as part of a larger unit
MAX_COUNT = {"second": 59, "minute": 59, "hour": 23, "day": 6, "month": 11}
CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY", "CNY", "INR", "BRL", "PLN", "CZK", "TRY", "CAD")
FIRST_DAY, LAST_DAY = date(1950, 1, 1).toordinal(), date(2049, 12, 31).toordinal()
DATE_STYLES = ("full", "long")  # in some languages medium equals long
SMALL_COUNTS = (1, 2, 3, 4)  # counts with word forms of their own: 1 mile, 3 megahertzy
# noon, midnight and half an hour are words of these facts only
TRAIN_ONLY = {"time(12, 0)", "time(0, 0)", "duration((30, 'duration-minute'),)"}


class Fact(NamedTuple):
    """The meaning of a phrase; `style` is its form and not part of the meaning.

    >>> Fact("date", (2026, 11, 5), "full").meaning
    'date(2026, 11, 5)'
    """

    kind: str
    value: tuple[Any, ...]
    style: str = ""

    @property
    def meaning(self) -> str:
        """Canonical text of the meaning; its hash decides the split."""
        if self.kind in COMPOSITE_KINDS:
            return f"{self.kind}{self.style}({', '.join(part.meaning for part in self.value)})"
        return f"{self.kind}{self.value}"


def fact_split(fact: Fact) -> Split | None:
    """Split of a meaning; None for a composite of facts from several splits.

    One to four of a unit, and noon, are always in train: their words occur nowhere else.

    >>> fact_split(Fact("time", (15, 5))), fact_split(Fact("time", (15, 8)))
    ('train', 'train')
    """
    if fact.kind in COMPOSITE_KINDS:  # held out only if every part is
        splits: set[Split | None] = {fact_split(part) for part in fact.value}
        return splits.pop() if len(splits) == 1 else None
    if fact.kind == "unit" and fact.value[1] == 0 and fact.value[0] in SMALL_COUNTS:
        return "train"
    return "train" if fact.meaning in TRAIN_ONLY else hash_split(fact.meaning.encode())


class HashRng:
    """Random integers from a hash of the key: the same on every machine and Python version.

    >>> rng = HashRng("a key")
    >>> [rng(6) for _ in range(5)]
    [5, 0, 3, 0, 2]
    """

    __slots__ = ("state",)

    def __init__(self, key: str):
        self.state = int.from_bytes(blake2b(key.encode()).digest())  # about 190 draws from 6

    def __call__(self, n: int) -> int:
        """A random integer from 0 to n - 1."""
        self.state, number = divmod(self.state, n)
        return number

    def choice(self, options):
        """A random element of a sequence."""
        return options[self(len(options))]


def check_kinds(kinds: tuple[str, ...]) -> None:
    """Raise for an unknown kind, and for lists without a kind of items."""
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
    """The fact of a key, from one split and the given kinds.

    >>> draw_fact("0/0", "train", kinds=("time",))
    Fact(kind='time', value=(13, 37), style='')
    """
    rng = HashRng(key)
    kind = rng.choice(kinds)
    if kind == "moment":
        return Fact(kind, tuple(_draw(f"{key}/{part}", part, split) for part in ("day", "time")))
    if kind != "list":
        return _draw(f"{key}/{kind}", kind, split)
    item_kinds = tuple(k for k in kinds if k in LIST_ITEM_KINDS)
    style, count = rng.choice(("standard", "or")), 2 + rng(2)
    kind = rng.choice(item_kinds)  # all items of a list are of one kind
    return Fact("list", tuple(_draw(f"{key}/{i}", kind, split) for i in range(count)), style)


def _draw(key: str, kind: str, split: Split) -> Fact:
    for attempt in range(10_000):
        fact = _DRAWS[kind](HashRng(f"{key}/{attempt}"))
        if fact_split(fact) == split:
            return fact
    raise AssertionError(f"no {kind} in {split}")


def _date(rng: HashRng) -> Fact:
    day, shown = _day(rng), rng(8)
    year, month, number = day.value
    if shown == 0:
        return Fact("date", (year, month))
    return Fact("date", (0, month, number)) if shown == 1 else day


def _day(rng: HashRng) -> Fact:
    day = date.fromordinal(FIRST_DAY + rng(LAST_DAY - FIRST_DAY + 1))
    return Fact("date", (day.year, day.month, day.day), rng.choice(DATE_STYLES))


def _duration(rng: HashRng) -> Fact:
    if rng(3) == 0:
        return Fact("duration", ((_number(rng), rng.choice(DURATION_UNITS)),))
    large, small = rng.choice(tuple(SMALLER_UNIT.items()))
    number, rest = _number(rng, 2), 1 + rng(MAX_COUNT[small])
    return Fact("duration", ((number, f"duration-{large}"), (rest, f"duration-{small}")))


def _unit(rng: HashRng) -> Fact:
    unit, tenths = rng.choice(UNITS), rng(4) == 0
    number = _number(rng)
    return Fact("unit", (10 * number + 1 + rng(9), 1, unit) if tenths else (number, 0, unit))


def _money(rng: HashRng) -> Fact:
    currency, style = rng.choice(CURRENCIES), rng.choice(("name", "standard"))
    cents = 0 if currency == "JPY" else rng.choice((0, 50, rng(100)))  # the yen has no cents
    return Fact("money", (100 * _number(rng, 4) + cents, currency), style)


def _number(rng: HashRng, digits: int = 3) -> int:
    """Log-uniform over 1 to 9, 10 to 99, …: small numbers have the most irregular grammar."""
    low = 10 ** rng(digits)
    return low + rng(9 * low)


_DRAWS = {
    "date": _date, "time": lambda rng: Fact("time", (rng(24), rng(60))), "day": _day,
    "duration": _duration, "unit": _unit, "money": _money,
}  # fmt: skip


def count_facts() -> dict[str, int]:
    """Number of distinct meanings per kind.

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
