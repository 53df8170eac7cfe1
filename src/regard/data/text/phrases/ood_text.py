"""Texts that are none of the facts, for a model to answer with nothing: prose, mash, halves.

Training and held-out texts are apart: prose comes from different files of Python's own library.
"""

import re
from calendar import monthrange
from functools import lru_cache

from regard.data.split import Split
from regard.data.text.documents import TextFiles
from regard.data.text.phrases.facts import (
    CURRENCIES,
    DURATION_UNITS,
    UNITS,
    HashRng,
    draw_fact,
)
from regard.data.text.phrases.paraphrases import (
    CURRENCY_NAMES,
    MONTH_NAMES,
    WEEKDAY_NAMES,
    format_ordinal,
    paraphrase,
    spell_number,
)
from regard.data.text.phrases.paraphrases import DURATION_NAMES as SPAN_NAMES
from regard.data.text.phrases.paraphrases import UNIT_NAMES as UNIT_NAMES

LETTERS = "abcdefghijklmnopqrstuvwxyz"
KEYBOARD_ROWS = ("qwertyuiop", "asdfghjkl;", "zxcvbnm,./", "1234567890", "!@#$%^&*()")
INCOMPLETE_FORMS = (
    *("half past", "quarter to", "quarter past", "the {o} of", "the {o}", "{o}", "{m}", "{w}"),
    *("{w} or", "{m} and", "{u}", "{s}", "{p}", "{c}", "{n}", "{n} and", "and {f}", "or {f}"),
    *("{f} and", "{f} or", "at", "{n} past", "{n} to", "{m} the", "{c} and {n}", "of {m}"),
    *("{n} and {n}", "{w} {w}", "{m} {m}", "{u} {n}", "{w} {n}", "{u} {u}", "{s} {c}"),
)
DIGIT_PATTERN, CODE_PATTERN = (
    re.compile(r"\d"),
    re.compile(r"[^\w ,.']|_|\.\w"),
)  # a sign is of code
MAX_PROSE_CHARS = 60  # characters of prose
PROSE_POOL_CHARS = {
    "train": 1 << 23,
    "valid": 1 << 19,
    "test": 1 << 19,
}  # characters of the library's files


def ood_text(key: str, split: Split) -> str:
    """A text of no fact; the key decides which one.

    >>> [ood_text(key, "train") for key in "dtm"]
    ['Tue Tue', 'elkv', 'November 72nd, 2035']
    """
    dice = HashRng(f"foreign/{key}")
    way = dice(20)
    if way < 9:
        return sample_prose(dice, split, 1 + dice(12))
    if way < 11:
        fact = paraphrase(draw_fact(key, split), key)
        said = sample_prose(dice, split, 2 + dice(4))
        return f"{said} {fact}" if dice(2) else f"{fact} {said}"
    if way < 14:
        return _mash(dice)
    return _half(key, split, dice) if way < 17 else _out_of_range(dice)


def sample_prose(rng: HashRng, split: Split, word_count: int) -> str:
    """Some words of a line of Python's own library, of a docstring or comment more often."""
    lines = _lines(split)[rng(3) > 0]
    while True:
        line = lines[rng(len(lines))].split()
        first = rng(max(1, len(line) - word_count + 1))
        text = " ".join(line[first : first + word_count])[:MAX_PROSE_CHARS].strip()
        if sum(sign.isalpha() for sign in text) > 4:
            return text
        rng = HashRng(f"{rng.state}/{text}")


@lru_cache(None)
def _lines(split: Split) -> tuple[list[str], list[str]]:
    """Lines of code and of prose."""
    code, text, size = [], [], 0
    for document in TextFiles().documents(split):
        for line in document.text.split("\n"):
            line = line.strip(" #")
            # a digit could make a fact of it
            if line.count(" ") > 1 and not DIGIT_PATTERN.search(line):
                (code if CODE_PATTERN.search(line) else text).append(line)
        size += len(document.text)
        if size > PROSE_POOL_CHARS[split]:
            break
    return code, text


def _mash(dice: HashRng) -> str:
    """Letters that are no words."""
    found = []
    for _ in range(1 + dice(4)):
        row = dice.choice(
            (LETTERS, LETTERS, *KEYBOARD_ROWS[:3], LETTERS + KEYBOARD_ROWS[3], KEYBOARD_ROWS[4])
        )
        long = 2 + dice(9)
        if dice(3) == 0:  # along a row of keys, or one key
            start, step = dice(len(row)), dice(2)
            found.append("".join(row[(start + step * i) % len(row)] for i in range(long)))
        else:
            found.append("".join(dice.choice(row) for _ in range(long)))
    text = " ".join(found)
    return f"{text}x" if text.replace(" ", "").isdigit() else text


def _half(key: str, split: Split, dice: HashRng) -> str:
    """Part of a fact, or parts that make none."""
    number = 1 + dice(99)
    form = dice.choice(INCOMPLETE_FORMS)
    return form.format(
        o=format_ordinal(1 + dice(31)), m=_one(MONTH_NAMES, dice), w=_one(WEEKDAY_NAMES, dice),
        u=dice.choice(UNIT_NAMES[dice.choice(UNITS)][1].split("|")),
        s=dice.choice(SPAN_NAMES[dice.choice(DURATION_UNITS)][1].split("|")),
        p=dice.choice(CURRENCY_NAMES[dice.choice(CURRENCIES)][0].split("|")),
        c=dice.choice(CURRENCY_NAMES[dice.choice(CURRENCIES)][2].split("|")),
        n=number if dice(2) else spell_number(number), f=paraphrase(draw_fact(key, split), key).rstrip(".,;!?"),
    )  # fmt: skip


def _one(table: str, dice: HashRng) -> str:
    return dice.choice(dice.choice(table.split("|")).split())


def _out_of_range(dice: HashRng) -> str:
    """A date, a time that no calendar or clock has; or one that can be read in two ways."""
    year, month = 1950 + dice(100), 1 + dice(12)
    day = monthrange(year, month)[1] + 1 + (dice(60) if dice(2) else 0)
    if month == 2 and day == 29:
        day = 30
    name = _one(MONTH_NAMES.split("|")[month - 1], dice)
    way = dice(10)
    if way < 4:
        forms = (
            "{o} of {m} {y}",
            "{m} {o}",
            "{d} {m}",
            "{d} {m} {y}",
            "{m} {d}, {y}",
            "{m} {o}, {y}",
        )
        return dice.choice(forms).format(o=format_ordinal(day), m=name, d=day, y=year)
    if way < 6:
        return f"{year}-{13 + dice(87) if dice(2) else month:02}-{day:02}"
    if way < 8:
        hour, minute = 25 + dice(75), 60 + dice(40)
        hour, minute = dice.choice(((hour, minute), (dice(24), minute), (hour, dice(60))))
        half = dice.choice(("", "", " pm", "am", " p.m.", "pm"))
        return f"{hour}{dice.choice((':', ':', '.') if half else (':',))}{minute:02}{half}"
    if way < 9:  # more, or less, than any fact has
        unit = dice.choice(UNIT_NAMES[dice.choice(UNITS)][1].split("|"))
        number = 10 ** (5 + dice(5)) + dice(10**6) if dice(2) else -1 - dice(99)
        return f"{number}{dice.choice(('', ' '))}{unit}"
    first, second = 1 + dice(12), 1 + dice(11)
    return f"{first}/{second + (second >= first)}/{year}"  # day or month first?
