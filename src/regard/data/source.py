"""The interface of a data source, a source in memory, load reports, and samples of a stream."""

import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from regard.data.split import Split
from regard.errors import ConfigError, FileError, RegardError

T = TypeVar("T")


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


def repeat_epochs(
    one_pass: Callable[[int], Iterable[T]], split: Split, start: int, missing: RegardError
) -> Iterator[T]:
    """Examples from number `start` of a source that is read in passes: one, or for train endless.

    `one_pass` gets the number of the epoch. All have the same size, so once it is known whole ones
    are skipped unread. `missing` is raised where there is no example.

    >>> from itertools import islice
    >>> epochs = repeat_epochs(lambda epoch: [epoch, epoch], "train", 5, ConfigError("empty"))
    >>> list(islice(epochs, 3))
    [2, 3, 3]
    """
    epoch = 0
    while True:
        size = 0
        for size, example in enumerate(one_pass(epoch), 1):
            if size > start:
                yield example
        if not size:
            raise missing
        if split != "train":
            return
        epoch, start = (start // size, start % size) if start >= size else (epoch + 1, 0)


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


class Reservoir(Generic[T]):
    """Reservoir sampling (Vitter 1985): every item is kept with the same probability.

    Up to `size` items all are kept, in their order; `count` is the number that came by.

    >>> sample = Reservoir(3)
    >>> sample.extend(range(100))
    >>> len(sample.items), sample.count
    (3, 100)
    """

    def __init__(self, size: int, seed: int = 0):
        self.size, self.count, self.items = size, 0, list[T]()
        self._random = Random(seed).random

    def add(self, item: T) -> None:
        """Keep the item, in place of another if the sample is full, or drop it."""
        self.count += 1
        if len(self.items) < self.size:
            self.items.append(item)
        elif (index := int(self.count * self._random())) < self.size:
            self.items[index] = item

    def extend(self, items: Iterable[T]) -> None:
        """`add` each item."""
        for item in items:
            self.add(item)


OnError = Literal["skip", "raise"]
MAX_LOCATIONS = 5  # per reason


class LoadReport:
    """Number of loaded and skipped examples, with the first locations per reason.

    >>> report = LoadReport()
    >>> report.loaded += 2
    >>> report.skip("corpus.tsv", 3, "empty side")
    >>> print(report)
    loaded 2, skipped 1
      1 × empty side: corpus.tsv:3
    """

    def __init__(self, on_error: OnError = "skip"):
        self.on_error: OnError = on_error
        self.clear()

    def clear(self) -> None:
        """Reset all counts, before the same files are read again."""
        self.loaded = 0
        self.reasons: Counter[str] = Counter()
        self.locations: dict[str, list[str]] = {}

    @property
    def skipped(self) -> int:
        """Number of skipped examples."""
        return self.reasons.total()

    def skip(self, path: str | Path, line: int | None, reason: str) -> None:
        """Count a skipped example; raises with `on_error="raise"`."""
        location = f"{path}:{line}" if line else f"{path}"
        if self.on_error == "raise":
            raise FileError(f"{location}: {reason}; try on_error='skip' to count it and go on")
        self.reasons[reason] += 1
        locations = self.locations.setdefault(reason, [])
        if len(locations) < MAX_LOCATIONS:  # a corpus may be bad in a million places
            locations.append(location)

    @property
    def summary(self) -> str:
        """The reasons in one line, each with its first location, for an error message."""
        return ", ".join(
            f"{f'{n} × ' * (n > 1)}{reason} ({self.locations[reason][0]})"
            for reason, n in self.reasons.most_common()
        )

    def __str__(self) -> str:
        lines = [f"loaded {self.loaded}, skipped {self.skipped}"]
        for reason, n in self.reasons.most_common():
            rest = ", …" if n > len(self.locations[reason]) else ""
            lines.append(f"  {n} × {reason}: {', '.join(self.locations[reason])}{rest}")
        return "\n".join(lines)


def skip_reason(error: FileError, what: str) -> str:
    """Why a file that cannot be read is skipped.

    >>> skip_reason(FileError("a.png: needs to be an image, got no such file"), "an image")
    'no such file'
    """
    got = str(error).rpartition(", got ")[2].partition("; try ")[0]
    return f"not {what} ({got})" if error.__cause__ else got
