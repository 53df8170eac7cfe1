"""The interface of a data source, and a source over in-memory examples."""

import zlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import Any, Protocol, runtime_checkable

from regard.data.split import Split
from regard.errors import ConfigError


@runtime_checkable
class Source(Protocol):
    """A data source: an endless train split, finite and fixed valid and test splits.

    >>> source: Source = InMemorySource(test=["a", "b"])
    >>> list(source.examples("test", seed=0, start=1))
    ['b']
    """

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Any]:
        """Iterate over a split from example number `start`."""
        ...


class InMemorySource:
    """Examples of sequences, such as lists; train repeats forever, reshuffled every epoch.

    A `TokenCache` is a sequence too: then only the order is in memory, four bytes per example.

    >>> from itertools import islice
    >>> sorted(islice(InMemorySource(train=[1, 2, 3]).examples("train", seed=0), 6))
    [1, 1, 2, 2, 3, 3]
    """

    def __init__(
        self, train: Sequence[Any] = (), valid: Sequence[Any] = (), test: Sequence[Any] = ()
    ):
        self.splits = {"train": train, "valid": valid, "test": test}

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Any]:
        """Iterate over a split from example number `start`."""
        examples = self.splits[split]
        if not len(examples):
            raise ConfigError(f"split: needs one that has examples, got {split}")
        if split != "train":
            yield from (examples[i] for i in range(start, len(examples)))
            return
        epoch, first = divmod(start, len(examples))
        while True:
            order = array("I", range(len(examples)))
            Random(f"{seed}/{epoch}").shuffle(order)
            yield from (examples[order[i]] for i in range(first, len(order)))
            epoch, first = epoch + 1, 0


class NumberedSource:
    """The examples of a source, each with its number: `(number, example)`.

    >>> list(NumberedSource(InMemorySource(test=["a", "b"])).examples("test", seed=0, start=1))
    [(1, 'b')]
    """

    def __init__(self, source: Source):
        self.source = source

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Iterate over a split from example number `start`."""
        return enumerate(self.source.examples(split, seed, start), start)


def example_keys(split: Split, seed: int, start: int, eval_size: int) -> Iterator[str]:
    """Keys of generated examples from number `start`: endless for train, else `eval_size`.

    >>> list(example_keys("test", seed=0, start=1, eval_size=3))
    ['test/1', 'test/2']
    """
    numbers = count(start) if split == "train" else range(start, eval_size)
    group = f"train/{seed}" if split == "train" else split
    return (f"{group}/{number}" for number in numbers)


def permute_index(index: int, size: int, key: str) -> int:
    """Pseudo-random permutation of 0 … size - 1, one index at a time in constant memory.

    >>> [permute_index(i, 6, "a key") for i in range(6)]
    [1, 0, 3, 2, 4, 5]
    """
    # a Feistel network permutes 0 … 4^half - 1; cycle walking restricts that to 0 … size - 1
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask, salt = (1 << half) - 1, zlib.crc32(key.encode())
    while True:
        left, right = index >> half, index & mask
        for round_ in range(4):
            mixed = (right * 0x9E3779B1 + salt + round_ * 0x85EBCA6B) & 0xFFFFFFFF
            mixed = ((mixed ^ mixed >> 15) * 0xC2B2AE35) & 0xFFFFFFFF
            left, right = right, left ^ ((mixed ^ mixed >> 13) & mask)
        index = left << half | right
        if index < size:
            return index
