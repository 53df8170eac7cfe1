"""Hashed n-grams of words and characters: the features of linear text models."""

import re
from collections.abc import Iterator
from zlib import crc32

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
    found: tuple[dict[int, None], dict[int, None]] = {}, {}
    for is_characters, ngram in split_ngrams(text):
        found[is_characters][crc32(ngram.encode(errors="surrogatepass")) % buckets] = None
    return list(found[0]), list(found[1])
