"""Words of a text: how it is split into them, and their features and n-grams for linear models."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple
from zlib import crc32

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


WORDS = re.compile(r"\w+|[^\w\s]")
WORD_NGRAMS, CHARACTER_NGRAMS = (1, 2), (2, 3, 4, 5)  # their sizes


def split_ngrams(text: str) -> Iterator[tuple[bool, str]]:
    """The n-grams of a text in lower case, those of words before those of characters.

    Each with whether it is of characters; those begin and end at the borders of a word.

    >>> [ngram for _, ngram in split_ngrams("I see")][:6]
    ['i', 'see', 'i see', ' i', 'i ', ' i ']
    """
    words = WORDS.findall(text.lower())
    for size in WORD_NGRAMS:
        for n in range(len(words) - size + 1):
            yield False, " ".join(words[n : n + size])
    for word in words:
        padded = f" {word} "
        for size in CHARACTER_NGRAMS:
            for n in range(len(padded) - size + 1):
                yield True, padded[n : n + size]


def hash_ngrams(text: str, buckets: int) -> tuple[list[int], list[int]]:
    """The buckets of the distinct n-grams of words and of characters, in their order.

    Different n-grams may share a bucket. The hash is the same on every machine.

    >>> [len(x) for x in hash_ngrams("I see, I see", 1 << 18)]
    [6, 16]
    """
    hashes: tuple[dict[int, None], dict[int, None]] = {}, {}
    for is_characters, ngram in split_ngrams(text):
        hashes[is_characters][crc32(ngram.encode(errors="surrogatepass")) % buckets] = None
    return list(hashes[0]), list(hashes[1])


AFFIXES = (1, 2, 3, 4)  # lengths of the prefixes and suffixes that are features
TRIGRAM = 3


def word_shape(word: str) -> str:
    """A word with X for capitals, x for small letters and 0 for digits, runs shortened to one.

    >>> word_shape("McDonald's"), word_shape("B-52"), word_shape("iPhone")
    ("XxXx'x", 'X-0', 'xXx')
    """
    classes = (
        "X" if c.isupper() else "x" if c.islower() else "0" if c.isdigit() else c for c in word
    )
    return re.sub(r"(.)\1+", r"\1", "".join(classes))


def word_features(words: Sequence[str]) -> list[list[str]]:
    """The features of each word: itself, its shape, affixes and trigrams, and its neighbours.

    >>> features = word_features(["in", "York"])
    >>> "word york" in features[1], "shape Xx" in features[1], "-1 word in" in features[1]
    (True, True, True)
    """
    lower, shapes = [word.lower() for word in words], [word_shape(word) for word in words]
    return [
        ["always", f"as written {word}", *_alone(lower[n], shapes[n]), *_around(n, lower, shapes)]
        for n, word in enumerate(words)
    ]


def _alone(word: str, shape: str) -> Iterator[str]:
    yield f"word {word}"
    yield f"shape {shape}"
    for size in AFFIXES[: len(word)]:
        yield f"prefix {word[:size]}"
        yield f"suffix {word[-size:]}"
    padded = f"^{word}$"
    for n in range(len(padded) - TRIGRAM + 1):
        yield f"part {padded[n : n + TRIGRAM]}"


def _around(n: int, lower: Sequence[str], shapes: Sequence[str]) -> Iterator[str]:
    """What stands up to two words before and after the n-th, and at its sides together with it."""
    for distance in (-2, -1, 1, 2):
        if not 0 <= n + distance < len(lower):
            yield f"{distance} nothing"
            continue
        yield f"{distance} word {lower[n + distance]}"
        yield f"{distance} shape {shapes[n + distance]}"
        if abs(distance) == 1:
            yield f"{distance} words {lower[n]} {lower[n + distance]}"
            yield f"{distance} shapes {shapes[n]} {shapes[n + distance]}"
    yield f"shapes {' '.join(shapes[max(0, n - 1) : n + 2])}"
    yield f"place {min(n, 3)}"
    yield f"length {min(len(lower), 12)}"
