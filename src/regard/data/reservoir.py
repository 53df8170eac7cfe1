"""A uniform sample of a stream of unknown length, in bounded memory."""

from collections.abc import Iterable
from random import Random
from typing import Generic, TypeVar

T = TypeVar("T")


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
