"""What a source of examples is, and the simplest one: examples held in memory."""

import zlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Protocol, runtime_checkable

from regard.data.split import Split
from regard.errors import ConfigError


@runtime_checkable
class Source(Protocol):
    """Anything with examples: endless for train, finite and fixed for valid and test.

    >>> source: Source = InMemorySource(test=["a", "b"])
    >>> list(source.examples("test", seed=0, start=1))
    ['b']
    """

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Any]:
        """Examples from the one numbered `start`: as if those before it had been skipped."""
        ...


class InMemorySource:
    """Own examples, held in memory; training goes over them for ever, in a new order each time.

    >>> from itertools import islice
    >>> sorted(islice(InMemorySource(train=[1, 2, 3]).examples("train", seed=0), 6))
    [1, 1, 2, 2, 3, 3]
    """

    def __init__(
        self,
        train: Sequence[Any] = (),
        valid: Sequence[Any] = (),
        test: Sequence[Any] = (),
    ):
        self.splits = {"train": train, "valid": valid, "test": test}

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Any]:
        """Examples from the one numbered `start`."""
        held = self.splits[split]
        if not len(held):
            raise ConfigError(f"split: needs one that has examples, got {split}")
        if split != "train":
            yield from (held[i] for i in range(start, len(held)))
            return
        turn, first = divmod(start, len(held))
        while True:
            order = list(range(len(held)))
            Random(f"{seed}/{turn}").shuffle(order)
            yield from (held[i] for i in order[first:])
            turn, first = turn + 1, 0


def permute_index(index: int, size: int, key: str) -> int:
    """Where an index goes in an order fixed by a key, without a list of the order.

    >>> [permute_index(i, 6, "a key") for i in range(6)]
    [1, 0, 3, 2, 4, 5]
    """
    # a Feistel network permutes 0 … 4^half - 1; walking on until inside permutes 0 … size - 1
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask, salt = (1 << half) - 1, zlib.crc32(key.encode())
    while True:
        left, right = index >> half, index & mask
        for turn in range(4):
            mixed = (right * 0x9E3779B1 + salt + turn * 0x85EBCA6B) & 0xFFFFFFFF
            mixed = ((mixed ^ mixed >> 15) * 0xC2B2AE35) & 0xFFFFFFFF
            left, right = right, left ^ ((mixed ^ mixed >> 13) & mask)
        index = left << half | right
        if index < size:
            return index
