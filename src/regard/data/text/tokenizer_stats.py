"""How a tokenizer splits texts, in numbers."""

from collections.abc import Iterable
from typing import NamedTuple

from regard.data.text.tokenizers import Tokenizer


class TokenizerStats(NamedTuple):
    """Counts over texts.

    >>> stats = measure_tokenizer(Tokenizer.registry["ByteTokenizer"](), ["two days", "one"])
    >>> stats.tokens, stats.longest, round(stats.tokens_per_word, 2)
    (11, 8, 3.67)
    """

    texts: int = 0
    words: int = 0  # separated by spaces
    bytes: int = 0
    tokens: int = 0
    unknown: int = 0
    longest: int = 0  # tokens of the longest text

    @property
    def tokens_per_word(self) -> float:
        """Tokens per word (fertility)."""
        return self.tokens / max(1, self.words)

    @property
    def tokens_per_byte(self) -> float:
        """Tokens per byte of UTF-8."""
        return self.tokens / max(1, self.bytes)

    @property
    def unknown_share(self) -> float:
        """Share of tokens that are UNK."""
        return self.unknown / max(1, self.tokens)


def measure_tokenizer(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerStats:
    """Counts of tokens, words and bytes of texts.

    >>> tokenizer = Tokenizer.registry["CharTokenizer"].train(["day"])
    >>> measure_tokenizer(tokenizer, ["days"]).unknown_share
    0.25
    """
    stats = TokenizerStats()
    for text in texts:
        ids = tokenizer.encode_input(text)
        stats = TokenizerStats(
            stats.texts + 1,
            stats.words + len(text.split()),
            stats.bytes + len(text.encode(errors="replace")),
            stats.tokens + len(ids),
            stats.unknown + ids.count(tokenizer.unk_id),
            max(stats.longest, len(ids)),
        )
    return stats
