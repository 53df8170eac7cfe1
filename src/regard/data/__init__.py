"""Sources, tokenizers and batches: real data without downloads."""

from regard.data.facts import Fact, draw, split_of, variety
from regard.data.phrases import Pair, Phrases, say

__all__ = [
    "Fact",
    "Pair",
    "Phrases",
    "draw",
    "say",
    "split_of",
    "variety",
]
