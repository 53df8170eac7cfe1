"""Falls back on a phrase table, where a translator saw few pairs: by limits fitted to valid."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from regard.data import Pair, Tokenizer, normalize_text
from regard.models.phrase_table import NEVER, PhraseTable
from regard.tasks.translation.baseline import translate_words, word_dictionary
from regard.train.evaluation import text_tally

SIMILARITIES = 0.5, 0.6, 0.7, 0.8, 0.9  # tried as limits
SCORES = 20  # of the network, tried as limits

Tokens = list[int]


def list_phrases(
    pairs: Sequence[Pair], tokenizer: Tokenizer
) -> tuple[tuple[int, int, int], list[tuple[Tokens, Tokens]]]:
    """The sizes of a phrase table, and its rows: the dictionary of IBM Model 1, and all texts."""
    words = [Pair(a, b, None) for a, b in word_dictionary(pairs).items()]
    both = [*words, *pairs]
    sources = tokenizer.encode_batch([x.source for x in both])
    rows = list(zip(sources, tokenizer.encode_batch([x.target for x in both]), strict=True))
    size = sum(len(side) for row in rows for side in row)
    return (len(words), len(pairs), size), rows


class Phrases:
    """A phrase table as texts.

    An answer is the translation of the most similar text, if the similarity is at least a limit;
    else that of the network, if its score is at least a limit; else one word by word.

    >>> tokenizer, texts = rg.data.ByteTokenizer(), [("ein Haus", "a house"), ("ein Buch", "a book")]
    >>> sizes, rows = list_phrases([Pair(*x, None) for x in texts], tokenizer)
    >>> table = PhraseTable(*sizes)
    >>> table.fill(rows)
    >>> phrases = Phrases(table, tokenizer)
    >>> phrases.nearest("EIN Haus"), phrases.by_word("Haus Buch")
    (('a house', 1.0), 'house book')
    """  # noqa: E501

    def __init__(self, table: PhraseTable, tokenizer: Tokenizer):
        rows = [(tokenizer.decode(a), tokenizer.decode(b)) for a, b in table.pairs()]
        self.limits, self.normalizers = table.limits, tokenizer.normalizers
        self.words, self.texts = dict(rows[: table.words]), rows[table.words :]
        grams = [_trigrams(source) for source, _ in self.texts]
        self.sizes, self.index = [len(x) for x in grams], defaultdict[str, Tokens](list)
        for number, row in enumerate(grams):
            for gram in row:
                self.index[gram].append(number)

    def by_word(self, text: str) -> str:
        """A text translated word by word."""
        return translate_words(normalize_text(text, self.normalizers), self.words)

    def nearest(self, text: str) -> tuple[str, float]:
        """The translation of the most similar text, and the similarity.

        Dice coefficient of two sets of letter trigrams: 2 |A ∩ B| / (|A| + |B|)
        """
        grams, common = _trigrams(normalize_text(text, self.normalizers)), Counter[int]()
        for gram in grams:
            common.update(self.index.get(gram, ()))
        shares = [(2 * n / (len(grams) + self.sizes[k]), -k) for k, n in common.items()]
        share, number = max(shares, default=(0.0, 0))
        return self.texts[-number][1], share

    def answer(self, text: str, network: Any) -> Any:
        """A `Translation` of the network, or with the text that replaces it."""
        least, score = self.limits.tolist()
        near, similarity = self.nearest(text) if least <= 1 else ("", 0.0)
        if similarity >= least:
            return network._replace(text=near, ended=True)
        if network.raw_score >= score:
            return network
        return network._replace(text=self.by_word(text), ended=True)


@lru_cache(4)
def open_phrases(table: PhraseTable, tokenizer: Tokenizer) -> Phrases:
    """The texts of a table, decoded once."""
    return Phrases(table, tokenizer)


def fit_limits(
    table: PhraseTable, tokenizer: Tokenizer, pairs: Sequence[Pair], answers: Any
) -> Phrases:
    """Set the limits by which BLEU of pairs of the valid split is highest.

    Among them are those of the network alone, of the table alone, and of words alone: none of these
    is better there.

    Args:
        table: whose limits are set.
        tokenizer: of the model.
        pairs: of the valid split.
        answers: `Translation`s of their sources by the network.
    """
    phrases, sources = open_phrases(table, tokenizer), [pair.source for pair in pairs]
    near = [phrases.nearest(source) for source in sources]
    texts = [[x.text for x in answers], [phrases.by_word(x) for x in sources], [x for x, _ in near]]
    tallies = [text_tally(x, [pair.target for pair in pairs]) for x in texts]
    rows = torch.stack([x.rows for x in tallies])
    similarity = torch.tensor([x for _, x in near])
    raw = torch.tensor([x.raw_score for x in answers])
    scores = raw.quantile(torch.linspace(0, 1, SCORES)).tolist()
    best, highest = NEVER, -1.0
    for least in (NEVER[0], *SIMILARITIES):
        for score in (NEVER[1], *scores, -NEVER[1]):
            chosen = torch.where(similarity >= least, 2, torch.where(raw >= score, 0, 1))
            sums = rows[chosen, torch.arange(len(chosen))].sum(0).tolist()
            if (bleu := tallies[0].score(sums)["bleu"]) > highest:
                best, highest = (least, score), bleu
    table.limits.copy_(torch.tensor(best))
    return phrases


def _trigrams(text: str) -> set[str]:
    text = f"  {text.lower()} "
    return {text[n : n + 3] for n in range(len(text) - 2)}
