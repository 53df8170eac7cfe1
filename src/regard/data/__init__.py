"""Sources, tokenizers and batches: real data without downloads."""

from regard.data.batches import Batches, collate, pair_encoder
from regard.data.facts import Fact, draw, split_of, variety
from regard.data.phrases import Pair, Phrases, say
from regard.data.source import Listed, Source
from regard.data.tokenizers import BPE, Bytes, Characters, Tokenizer, Words, texts_of

__all__ = [
    "BPE",
    "Batches",
    "Bytes",
    "Characters",
    "Fact",
    "Listed",
    "Pair",
    "Phrases",
    "Source",
    "Tokenizer",
    "Words",
    "collate",
    "draw",
    "pair_encoder",
    "say",
    "split_of",
    "texts_of",
    "variety",
]
