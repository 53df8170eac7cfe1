"""Batches of examples, bucketed by length in a seeded order, or computed from their number."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from regard.data.source import Source
from regard.data.split import Split
from regard.errors import ConfigError, FileError, ShapeError

Batch = dict[str, Tensor]
# name -> list or array of ids, number, or tensor whose first axis is time
Encoded = Mapping[str, Any]


class Shard(TypedDict, total=False):
    """The rank of a process and the number of processes, whose batches differ."""

    rank: int
    world_size: int


class Batches:
    """Length-bucketed batches of at most `batch_tokens` tokens, padding included, for one rank.

    Examples are encoded `sort_window` at a time, sorted by length, cut into batches, and the
    batches are shuffled. Step s of n ranks takes batches s·n … s·n + n - 1 of that list, so the
    global order does not depend on the number of ranks. Each sequence is padded and comes with
    `<name>_lengths`.

    Args:
        source: where examples come from.
        encode: maps an example to named sequences and numbers; None if they are encoded.
        split: train repeats forever, valid and test end.
        batch_tokens: longest sequence × examples of a batch, at most.
        seed: order of the examples and of the batches.
        rank: which of the `world_size` processes this is.
        world_size: number of processes.
        sort_window: number of examples that are sorted by length together.
        pad_id: padding of integer sequences; float sequences are padded with 0.

    >>> numbers = rg.data.InMemorySource(test=range(1, 6))
    >>> batches = Batches(numbers, lambda n: {"x": [n] * n}, split="test", batch_tokens=6)
    >>> [batch["x"].tolist() for batch in batches]
    [[[1, 0], [2, 2]], [[5, 5, 5, 5, 5]], [[3, 3, 3]], [[4, 4, 4, 4]]]
    """

    def __init__(
        self,
        source: Source,
        encode: Callable[[Any], Encoded] | None,
        *,
        split: Split,
        batch_tokens: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        sort_window: int = 2048,
        pad_id: int = 0,
    ):
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank: needs to be from 0 to {world_size - 1}, got {rank}")
        for name, value in (("batch_tokens", batch_tokens), ("sort_window", sort_window)):
            if value < 1:
                raise ConfigError(f"{name}: needs 1 or more, got {value}")
        self.source, self.encode, self.pad_id = source, encode or (lambda example: example), pad_id
        self.split: Split = split
        self.batch_tokens, self.sort_window, self.seed = batch_tokens, sort_window, seed
        self.rank, self.world_size = rank, world_size
        self._position, self._taken = 0, 0  # examples before this window; batches taken from it

    def state(self) -> dict[str, int]:
        """The position in the data, valid for any rank of any number of ranks."""
        settings = {name: getattr(self, name) for name in ("seed", "batch_tokens", "sort_window")}
        return {**settings, "position": self._position, "taken": self._taken}

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from a state."""
        if set(state) != set(self.state()):
            names = ", ".join(sorted(self.state()))
            raise FileError(f"{state}: needs {names} of Batches.state()")
        for name in ("batch_tokens", "sort_window"):
            if state[name] != getattr(self, name):
                raise ConfigError(
                    f"{name}: needs to be {state[name]} as in the state, got {getattr(self, name)}"
                )
        self.seed, self._position, self._taken = state["seed"], state["position"], state["taken"]

    def __iter__(self) -> Iterator[Batch]:
        plan = self._plan(self._position, self._taken)
        while step := list(islice(plan, self.world_size)):
            if self.rank < len(step):  # the last step of a finite split may be too short
                batch = collate(step[self.rank][0], self.pad_id)
                _, self._position, self._taken = step[-1]  # the state after the whole step
                yield batch
        self._position, self._taken = 0, 0  # a finite split starts again

    def _plan(self, position: int, taken: int) -> Iterator[tuple[list[Encoded], int, int]]:
        """Batches of all ranks, each with the state after it."""
        examples = self.source.examples(self.split, self.seed, position)
        while window := [self.encode(example) for example in islice(examples, self.sort_window)]:
            sequences = ([x for x in row.values() if _is_sequence(x)] for row in window)
            lengths = [max(map(len, row), default=1) for row in sequences]
            batches = bucket_by_length(lengths, self.batch_tokens, position)
            Random(f"{self.seed}/{position}").shuffle(batches)
            for number in range(taken, len(batches)):
                last = number + 1 == len(batches)
                after = (position + len(window), 0) if last else (position, number + 1)
                yield [window[i] for i in batches[number]], after[0], after[1]
            position, taken = position + len(window), 0


def bucket_by_length(
    lengths: Sequence[int], batch_tokens: int, first_index: int = 0
) -> list[list[int]]:
    """Indices in batches of similar length, each of at most `batch_tokens` with its padding.

    >>> bucket_by_length([3, 1, 2, 4], batch_tokens=6)
    [[1, 2], [0], [3]]
    """
    if lengths and (longest := max(lengths)) > batch_tokens:
        raise ShapeError(
            f"batch_tokens: needs {longest} for example {first_index + lengths.index(longest)}, "
            f"got {batch_tokens}; try a larger batch, or leaving out long examples"
        )
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        # ascending order: the batch is padded to the length of this example
        if batches and (len(batches[-1]) + 1) * lengths[index] <= batch_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def batch_by_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Indices in batches of `batch_size`, sorted by length to reduce padding.

    >>> list(batch_by_length([3, 1, 2], batch_size=2))
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for at in range(0, len(order), batch_size):
        yield order[at : at + batch_size]


def collate(examples: Sequence[Encoded], pad_id: int = 0) -> Batch:
    """Stack examples: sequences are padded at the end and come with their lengths.

    >>> collate([{"x": [5], "y": 1}, {"x": [6, 7], "y": 2}])
    {'x': tensor([[5, 0],
            [6, 7]]), 'x_lengths': tensor([1, 2]), 'y': tensor([1, 2])}
    """
    batch: Batch = {}
    for name, first in examples[0].items():
        values = [example[name] for example in examples]
        if not _is_sequence(first):
            is_tensor = all(isinstance(value, Tensor) for value in values)
            batch[name] = torch.stack(values) if is_tensor else torch.tensor(values)
            continue
        lengths = [len(value) for value in values]
        if isinstance(first, np.ndarray):
            padded = np.full((len(values), max(lengths)), pad_id, dtype=np.int64)
            for row, value, length in zip(padded, values, lengths, strict=True):
                row[:length] = value
            batch[name] = torch.from_numpy(padded)
        else:
            rows = [torch.as_tensor(value) for value in values]
            fill = 0.0 if rows[0].is_floating_point() else pad_id
            batch[name] = torch.nn.utils.rnn.pad_sequence(rows, True, fill)
        batch[f"{name}_lengths"] = torch.tensor(lengths)
    return batch


def _is_sequence(value: object) -> bool:
    """Lists and arrays of ids and (time, feature) tensors are; an image, of three axes, is not."""
    return isinstance(value, list | np.ndarray) or (
        isinstance(value, Tensor) and 0 < value.ndim < 3
    )


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

    def state(self) -> dict[str, int]:
        """The position in the data, valid for any rank of any number of ranks."""
        return {"seed": self.seed, "number": self._number}

    def restore(self, state: Mapping[str, int]) -> None:
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


def seeded_generator(*key: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A random generator whose seed is a hash of the key.

    >>> first, second = (torch.rand(2, generator=seeded_generator(0, "a")) for _ in range(2))
    >>> torch.equal(first, second)
    True
    """
    generator = torch.Generator(device)
    return generator.manual_seed(zlib.crc32("/".join(map(str, key)).encode()))
