"""A translation pair, and its encoding for a sequence-to-sequence model."""

from collections.abc import Callable
from typing import NamedTuple

from regard.data.batches import Encoded
from regard.data.text.normalizers import normalize_text
from regard.data.text.tokenizers import Tokenizer


class Pair(NamedTuple):
    """A source text and its translation; `language` is that of the target, None for a single one.

    >>> Pair("two days", "zwei Tage", "de").language
    'de'
    """

    source: str
    target: str
    language: str | None


def pair_preprocessor(tokenizer: Tokenizer) -> Callable[[Pair], Encoded]:
    """Encoder of pairs: source + EOS, and language token (or BOS) + target + EOS.

    The language is the first decoder token, so one source encoding serves every target language.
    The tokenizer's normalizers apply to the source only.

    >>> encode = pair_preprocessor(rg.data.ByteTokenizer(("de",)))
    >>> {name: len(ids) for name, ids in encode(Pair("a", "bc", "de")).items()}
    {'source': 2, 'target': 4}
    """

    def encode(pair: Pair) -> Encoded:
        first = tokenizer.bos_id if pair.language is None else tokenizer.language_id(pair.language)
        texts = normalize_text(pair.source, tokenizer.normalizers), pair.target
        source, target = tokenizer.encode_batch(texts)
        return {"source": [*source, tokenizer.eos_id], "target": [first, *target, tokenizer.eos_id]}

    return encode
