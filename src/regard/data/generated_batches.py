"""Batches computed from their number alone, and random generators seeded by a key."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from regard.data.batches import Batch
from regard.errors import ConfigError, FileError


class GeneratedBatches:
    """Endless batches, each computed from its number alone; ranks take turns.

    Step s of n ranks takes batches s·n … s·n + n - 1, so the global order does not depend on the
    number of ranks. The state is the number of the next batch.

    >>> stream = iter(GeneratedBatches(lambda n: {"x": torch.tensor([n])}, rank=1, world_size=2))
    >>> next(stream)["x"].item(), next(stream)["x"].item()
    (1, 3)
    """

    def __init__(
        self,
        make_batch: Callable[[int], Batch],
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ):
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank: needs to be from 0 to {world_size - 1}, got {rank}")
        self.make_batch, self.seed, self.rank, self.world_size = make_batch, seed, rank, world_size
        self._number = 0

    def state(self) -> dict[str, Any]:
        """The position in the data, valid for any rank of any number of ranks."""
        return {"seed": self.seed, "number": self._number}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        if set(state) != {"seed", "number"}:
            raise FileError(f"{state}: needs seed and number of GeneratedBatches.state()")
        if state["seed"] != self.seed:
            raise ConfigError(f"seed: needs to be {state['seed']} as in the state, got {self.seed}")
        self._number = state["number"]

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self.make_batch(self._number + self.rank)
            self._number += self.world_size
            yield batch


def seeded_generator(*key: Any, device: torch.device | str = "cpu") -> torch.Generator:
    """A random generator whose seed is a hash of the key.

    >>> first, second = (torch.rand(2, generator=seeded_generator(0, "a")) for _ in range(2))
    >>> torch.equal(first, second)
    True
    """
    generator = torch.Generator(device)
    return generator.manual_seed(zlib.crc32("/".join(map(str, key)).encode()))
