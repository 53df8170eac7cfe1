"""Features of words in their sentence: the inputs of linear taggers."""

import re
from collections.abc import Iterator, Sequence

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
