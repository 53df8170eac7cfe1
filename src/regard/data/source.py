"""What a source of examples is, and the simplest one: examples held in memory."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Protocol, runtime_checkable

from regard.data.facts import Split
from regard.errors import ConfigError


@runtime_checkable
class Source(Protocol):
    """Anything with examples: endless for train, finite and fixed for valid and test.

    >>> source: Source = Listed(test=["a", "b"])
    >>> list(source.examples("test", seed=0, start=1))
    ['b']
    """

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Any]:
        """Examples from the one numbered `start`: as if those before it had been skipped."""
        ...


class Listed:
    """Own examples, held in memory; training goes over them for ever, in a new order each time.

    >>> from itertools import islice
    >>> sorted(islice(Listed(train=[1, 2, 3]).examples("train", seed=0), 6))
    [1, 1, 2, 2, 3, 3]
    """

    def __init__(
        self,
        train: Sequence[Any] = (),
        valid: Sequence[Any] = (),
        test: Sequence[Any] = (),
    ):
        self.held = {"train": train, "valid": valid, "test": test}

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Any]:
        """Examples from the one numbered `start`."""
        held = self.held[split]
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
