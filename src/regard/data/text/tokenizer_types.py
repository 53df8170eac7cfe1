"""The tokenizers that can be trained, by name."""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from regard.data.text.engine_tokenizers import BPETokenizer, UnigramTokenizer
from regard.data.text.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer, WordTokenizer
from regard.errors import ConfigError, suggestion

TokenizerType = Literal["bpe", "unigram", "words", "characters", "bytes"]


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    vocab_size: int,
    *,
    languages: Sequence[str] = (),
) -> Tokenizer:
    """A tokenizer of texts.

    Args:
        kind: a `TokenizerType`; "bytes" reads no texts.
        texts: to learn the vocabulary from.
        vocab_size: the most ids, of byte pairs, unigram and words.
        languages: names of languages, each with a token.

    >>> train_tokenizer("words", ["two days"], 99).encode("two")
    [13]
    """
    if kind not in (known := get_args(TokenizerType)):
        hint = suggestion(kind, known)
        raise ConfigError(f"type: needs one of {', '.join(known)}, got {kind!r}{hint}")
    if kind == "bytes":
        return ByteTokenizer(languages)
    if kind == "characters":
        return CharTokenizer.train(texts, languages=languages)
    classes = {"bpe": BPETokenizer, "unigram": UnigramTokenizer, "words": WordTokenizer}
    return classes[kind].train(texts, vocab_size=vocab_size, languages=languages)
