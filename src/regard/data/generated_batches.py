"""Batches that a function makes from their number: quick to make, and simple to go on from."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError, FileError

Batch = dict[str, Tensor]


class GeneratedBatches:
    """Batches without end, each made from its number alone; ranks take turns.

    Step s of `world` ranks is batches s·world … s·world + world - 1, so that the global order is
    one, whatever the world. Where it stands is the number of the next one.

    >>> made = GeneratedBatches(lambda number: {"x": torch.tensor([number])}, rank=1, world_size=2)
    >>> stream = iter(made)
    >>> next(stream)["x"].item(), next(stream)["x"].item(), made.state()
    (1, 3, {'seed': 0, 'number': 4})
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
        """Where it stands, for all ranks together: any rank of any world can go on from here."""
        return {"seed": self.seed, "number": self._number}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next batch is the one that would have come."""
        if set(state) != {"seed", "number"}:
            raise FileError(f"{state}: needs seed and number of Made.state()")
        if state["seed"] != self.seed:
            raise ConfigError(f"seed: needs to be {state['seed']} as in the state, got {self.seed}")
        self._number = state["number"]

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self.make_batch(self._number + self.rank)
            self._number += self.world_size
            yield batch


def seeded_generator(*key: Any, device: torch.device | str = "cpu") -> torch.Generator:
    """Random numbers that depend on a key alone.

    >>> torch.equal(torch.rand(2, generator=seeded_generator(0, "a")), torch.rand(2, generator=seeded_generator(0, "a")))
    True
    """
    generator = torch.Generator(device)
    return generator.manual_seed(zlib.crc32("/".join(map(str, key)).encode()))
