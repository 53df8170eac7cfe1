"""Splits of a text into words, and which of them reproduces the words of tagged data."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

WordSplit = Literal["punctuation", "edges", "sentence", "spaces"]
PUNCTUATION = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")  # a word, or one punctuation mark
OPENING, CLOSING = '([{"“„«‹¿¡', ')]}"”»›,;:!?…'  # an apostrophe belongs to its word
MIN_RATE = 0.99  # of the words that a split has to reproduce


class MeasuredSplit(NamedTuple):
    """A split and the fraction of the words of the data that it reproduces."""

    name: WordSplit
    rate: float


def split_words(text: str, split: WordSplit) -> list[str]:
    """The words of a text.

    "punctuation" makes a word of every punctuation mark; "edges" of those at the ends of a word, so
    that --force and a.txt stay whole; "sentence" is the same with a period only at the end of the
    text, as in the Penn Treebank; "spaces" splits at white space alone.

    >>> for split in WORD_SPLITS: print(split_words("St. Ives (--force), now.", split))
    ['St', '.', 'Ives', '(', '-', '-', 'force', ')', ',', 'now', '.']
    ['St', '.', 'Ives', '(', '--force', ')', ',', 'now', '.']
    ['St.', 'Ives', '(', '--force', ')', ',', 'now', '.']
    ['St.', 'Ives', '(--force),', 'now.']
    """
    words = text.split()
    last = len(words) - 1
    return [part for n, word in enumerate(words) for part in WORD_SPLITS[split](word, n == last)]


def measure_word_split(sentences: Iterable[tuple[Sequence[str], Sequence[str]]]) -> MeasuredSplit:
    """The split that best reproduces words with their tags; the first of equally good ones.

    It has to reproduce 99% of all words and of those with another tag than O, else it is "spaces".

    >>> measure_word_split([(("run", "--force", "now", "."), ("O", "FLAG", "O", "O"))])
    MeasuredSplit(name='edges', rate=1.0)
    """
    splits = list(WORD_SPLITS)
    same, total = {name: [0, 0] for name in splits}, [0, 0]
    for words, tags in sentences:
        for n, (word, tag) in enumerate(zip(words, tags, strict=True)):
            total = [total[0] + 1, total[1] + (tag != "O")]
            for name in splits:
                if WORD_SPLITS[name](word, n == len(words) - 1) == [word]:
                    same[name] = [same[name][0] + 1, same[name][1] + (tag != "O")]
    rates = {
        name: min(x / max(1, count) for x, count in zip(counts, total, strict=True) if count)
        for name, counts in same.items()
    }
    best = max(splits[:-1], key=lambda name: rates[name])
    name = best if rates[best] >= MIN_RATE else "spaces"
    return MeasuredSplit(name, rates[name])


def _split_edges(word: str, with_period: bool) -> list[str]:
    """The word without the marks at its ends, and these; an ellipsis is one mark."""
    if not any(map(str.isalnum, word)):
        return [word]
    core = word.lstrip(OPENING)
    before, core = word[: len(word) - len(core)], core.rstrip(CLOSING + ".")
    after = word[len(before) + len(core) :]
    if not with_period and re.match(r"\.(?!\.)", after):
        core, after = core + ".", after[1:]
    return [*before, core, *re.findall(r"\.\.+|.", after)]


WORD_SPLITS: dict[WordSplit, Callable[[str, bool], list[str]]] = {  # the finest first
    "punctuation": lambda word, is_last: PUNCTUATION.findall(word),
    "edges": lambda word, is_last: _split_edges(word, True),
    "sentence": _split_edges,
    "spaces": lambda word, is_last: word.split(),
}
