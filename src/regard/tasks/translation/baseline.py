"""The baselines of pairs: word by word by IBM Model 1, or a copy of the source."""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from regard.data import Pair
from regard.data.text.words import CLOSING, OPENING, split_words
from regard.train.evaluation import text_tally

MAX_PAIRS, MAX_WORDS = 50_000, 60  # read from the train split; of longer texts the first words
ITERATIONS = 6
NULL = ""  # the word of the source that explains words which no other does


def word_dictionary(pairs: Iterable[Pair]) -> dict[str, str]:
    """The most probable translation of each source word, by IBM Model 1 (Brown et al. 1993).

    t(target | source) ∝ Σ over pairs of words in pairs of texts, t(target | source) / Σ_s t(target | s)

    >>> texts = ("das Haus", "the house"), ("das Buch", "the book"), ("ein Buch", "a book")
    >>> word_dictionary(Pair(*x, "en") for x in texts)
    {'das': 'the', 'Haus': 'house', 'Buch': 'book', 'ein': 'a'}
    """  # noqa: E501
    sources, targets = dict[str, int](), dict[str, int]()
    rows, groups = list[np.ndarray](), 0
    for pair in islice(pairs, MAX_PAIRS):
        before = [NULL, *_words(pair.source)]
        source = np.array([sources.setdefault(word, len(sources)) for word in before])
        after = [targets.setdefault(word, len(targets)) for word in _words(pair.target)]
        size, count = len(source), len(after)
        occurrence = np.repeat(np.arange(groups, groups + count), size)
        rows.append(np.stack([np.tile(source, count), np.repeat(after, size), occurrence]))
        groups += count
    if not groups:
        return {}
    source, target, occurrence = np.concatenate(rows, 1).astype(np.int64)
    known, entry = np.unique(source * len(targets) + target, return_inverse=True)
    words = known // len(targets)
    table = np.ones(len(known))
    for _ in range(ITERATIONS):
        p = table[entry]
        p /= np.bincount(occurrence, p)[occurrence]
        table = np.bincount(entry, p)
        table /= np.bincount(words, table)[words]
    order = np.lexsort((table, words))  # the most probable target of each source word is the last
    last = order[np.flatnonzero(np.append(np.diff(words[order]), 1))]
    names, to = list(sources), list(targets)
    return {names[words[n]]: to[known[n] % len(targets)] for n in last if names[words[n]]}


def translate_words(text: str, dictionary: dict[str, str]) -> str:
    """A text with each word translated; others stay.

    >>> translate_words("das Haus, heute.", {"das": "the", "Haus": "house"})
    'the house, heute.'
    """
    line = ""
    for word in split_words(text, "edges"):
        is_attached = not line or word in f"{CLOSING}." or line[-1] in OPENING
        line += ("" if is_attached else " ") + dictionary.get(word, word)
    return line


def pairs_baseline(
    train: Iterable[Pair], valid: Sequence[Pair], sources: Sequence[str]
) -> tuple[str, list[str]]:
    """The simple translation that has the higher BLEU on the valid split: its name, and its texts.

    >>> train = [Pair("das Haus", "the house", "en"), Pair("das Buch", "the book", "en")]
    >>> pairs_baseline(train, train, ["das Haus."])
    ('dictionary of IBM Model 1', ['the house.'])
    """
    dictionary = word_dictionary(train)
    references = [pair.target for pair in valid]
    translated = [translate_words(pair.source, dictionary) for pair in valid]
    copied = [pair.source for pair in valid]
    scores = [text_tally(x, references).scores() for x in (translated, copied)]
    if max((0, 1), key=lambda n: (scores[n]["bleu"], scores[n]["exact"])) == 1:
        return "copy of the source", list(sources)
    answers = [translate_words(source, dictionary) for source in sources]
    return "dictionary of IBM Model 1", answers


def _words(text: str) -> list[str]:
    return split_words(text, "edges")[:MAX_WORDS]
