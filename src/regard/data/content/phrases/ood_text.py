"""Out-of-distribution texts for the phrases task, whose target is empty.

Prose, random letters, incomplete and impossible facts. The prose of each split comes from
different files.
"""

import re
from calendar import monthrange
from functools import lru_cache

from regard.data.content.phrases.facts import CURRENCIES, DURATION_UNITS, UNITS, HashRng, draw_fact
from regard.data.content.phrases.paraphrases import (
    CURRENCY_NAMES,
    DURATION_NAMES,
    MONTH_NAMES,
    UNIT_NAMES,
    WEEKDAY_NAMES,
    format_ordinal,
    paraphrase,
    spell_number,
)
from regard.data.split import Split
from regard.data.text.documents import TextFiles

LETTERS = "abcdefghijklmnopqrstuvwxyz"
KEYBOARD_ROWS = ("qwertyuiop", "asdfghjkl;", "zxcvbnm,./", "1234567890", "!@#$%^&*()")
INCOMPLETE_FORMS = (
    *("half past", "quarter to", "quarter past", "the {o} of", "the {o}", "{o}", "{m}", "{w}"),
    *("{w} or", "{m} and", "{u}", "{s}", "{p}", "{c}", "{n}", "{n} and", "and {f}", "or {f}"),
    *("{f} and", "{f} or", "at", "{n} past", "{n} to", "{m} the", "{c} and {n}", "of {m}"),
    *("{n} and {n}", "{w} {w}", "{m} {m}", "{u} {n}", "{w} {n}", "{u} {u}", "{s} {c}"),
)
IMPOSSIBLE_DATE_FORMS = (
    *("{o} of {m} {y}", "{m} {o}", "{d} {m}", "{d} {m} {y}", "{m} {d}, {y}", "{m} {o}, {y}"),
)
DIGIT_PATTERN, CODE_PATTERN = re.compile(r"\d"), re.compile(r"[^\w ,.']|_|\.\w")
MAX_PROSE_CHARS = 60
PROSE_POOL_CHARS = {"train": 1 << 23, "valid": 1 << 19, "test": 1 << 19}  # of the standard library


def ood_text(key: str, split: Split) -> str:
    """An out-of-distribution text, determined by the key.

    >>> [ood_text(key, "train") for key in "dtm"]
    ['Tue Tue', 'elkv', 'November 72nd, 2035']
    """
    rng = HashRng(f"foreign/{key}")
    kind = rng(20)
    if kind < 9:
        return sample_prose(rng, split, 1 + rng(12))
    if kind < 11:
        fact = paraphrase(draw_fact(key, split), key)
        prose = sample_prose(rng, split, 2 + rng(4))
        return f"{prose} {fact}" if rng(2) else f"{fact} {prose}"
    if kind < 14:
        return _random_letters(rng)
    return _incomplete(key, split, rng) if kind < 17 else _out_of_range(rng)


def sample_prose(rng: HashRng, split: Split, word_count: int) -> str:
    """Words of a line of the standard library, more often of prose than of code."""
    lines = _lines(split)[rng(3) > 0]
    while True:
        line = lines[rng(len(lines))].split()
        first = rng(max(1, len(line) - word_count + 1))
        text = " ".join(line[first : first + word_count])[:MAX_PROSE_CHARS].strip()
        if sum(letter.isalpha() for letter in text) > 4:
            return text
        rng = HashRng(f"{rng.state}/{text}")


@lru_cache(None)
def _lines(split: Split) -> tuple[list[str], list[str]]:
    """Lines of code and of prose."""
    code, text, size = [], [], 0
    for document in TextFiles().documents(split):
        for line in document.text.split("\n"):
            line = line.strip(" #")
            # a line with digits could contain a fact
            if line.count(" ") > 1 and not DIGIT_PATTERN.search(line):
                (code if CODE_PATTERN.search(line) else text).append(line)
        size += len(document.text)
        if size > PROSE_POOL_CHARS[split]:
            break
    return code, text


def _random_letters(rng: HashRng) -> str:
    words = []
    for _ in range(1 + rng(4)):
        rows = LETTERS, LETTERS, *KEYBOARD_ROWS[:3], LETTERS + KEYBOARD_ROWS[3], KEYBOARD_ROWS[4]
        row, length = rng.choice(rows), 2 + rng(9)
        if rng(3) == 0:  # neighbouring keys, or one repeated key
            start, step = rng(len(row)), rng(2)
            words.append("".join(row[(start + step * i) % len(row)] for i in range(length)))
        else:
            words.append("".join(rng.choice(row) for _ in range(length)))
    text = " ".join(words)
    return f"{text}x" if text.replace(" ", "").isdigit() else text


def _incomplete(key: str, split: Split, rng: HashRng) -> str:
    """Part of a fact, or parts that do not combine to one."""
    number = 1 + rng(99)
    return rng.choice(INCOMPLETE_FORMS).format(
        o=format_ordinal(1 + rng(31)), m=_name(MONTH_NAMES, rng), w=_name(WEEKDAY_NAMES, rng),
        u=rng.choice(UNIT_NAMES[rng.choice(UNITS)][1].split("|")),
        s=rng.choice(DURATION_NAMES[rng.choice(DURATION_UNITS)][1].split("|")),
        p=rng.choice(CURRENCY_NAMES[rng.choice(CURRENCIES)][0].split("|")),
        c=rng.choice(CURRENCY_NAMES[rng.choice(CURRENCIES)][2].split("|")),
        n=number if rng(2) else spell_number(number),
        f=paraphrase(draw_fact(key, split), key).rstrip(".,;!?"),
    )  # fmt: skip


def _name(table: str, rng: HashRng) -> str:
    return rng.choice(rng.choice(table.split("|")).split())


def _out_of_range(rng: HashRng) -> str:
    """An impossible date, time or amount, or an ambiguous date."""
    year, month = 1950 + rng(100), 1 + rng(12)
    day = monthrange(year, month)[1] + 1 + (rng(60) if rng(2) else 0)
    if month == 2 and day == 29:
        day = 30
    name = _name(MONTH_NAMES.split("|")[month - 1], rng)
    kind = rng(10)
    if kind < 4:
        form = rng.choice(IMPOSSIBLE_DATE_FORMS)
        return form.format(o=format_ordinal(day), m=name, d=day, y=year)
    if kind < 6:
        return f"{year}-{13 + rng(87) if rng(2) else month:02}-{day:02}"
    if kind < 8:
        hour, minute = 25 + rng(75), 60 + rng(40)
        hour, minute = rng.choice(((hour, minute), (rng(24), minute), (hour, rng(60))))
        half = rng.choice(("", "", " pm", "am", " p.m.", "pm"))
        return f"{hour}{rng.choice((':', ':', '.') if half else (':',))}{minute:02}{half}"
    if kind < 9:  # beyond the range of facts
        unit = rng.choice(UNIT_NAMES[rng.choice(UNITS)][1].split("|"))
        number = 10 ** (5 + rng(5)) + rng(10**6) if rng(2) else -1 - rng(99)
        return f"{number}{rng.choice(('', ' '))}{unit}"
    first, second = 1 + rng(12), 1 + rng(11)
    return f"{first}/{second + (second >= first)}/{year}"  # ambiguous: day or month first
