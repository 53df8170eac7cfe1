"""Sources, tokenizers and batches: real data without downloads."""

from regard.data.facts import Fact, draw, split_of, variety
from regard.data.phrases import Pair, Phrases, say
from regard.data.tokenizers import BPE, Bytes, Characters, Tokenizer, Words, texts_of

__all__ = [
    "BPE",
    "Bytes",
    "Characters",
    "Fact",
    "Pair",
    "Phrases",
    "Tokenizer",
    "Words",
    "draw",
    "say",
    "split_of",
    "texts_of",
    "variety",
]
