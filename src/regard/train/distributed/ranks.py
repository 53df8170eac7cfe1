"""Many processes that train one model together: who this one is, and what they tell each other."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regard import errors
from regard.errors import ConfigError, RankLostError, RegardError

TIMEOUT = timedelta(minutes=60)  # the others wait while the first one evaluates and writes


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is; alone, everything it says is said to itself.

    What they tell each other goes through the hosts, as JSON, so that no GPU waits for it.

    >>> Ranks().is_first, Ranks().sum_counts(3, 4), Ranks().all_gather("me")
    (True, [3, 4], ['me'])
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # among those on this machine: the number of its GPU

    @property
    def is_first(self) -> bool:
        """Whether this one writes, shows and evaluates."""
        return self.rank == 0

    def sum_counts(self, *counts: int) -> list[int]:
        """The sums of some numbers over all ranks."""
        if self.world_size == 1:
            return list(counts)
        told = torch.tensor(counts)
        with self.collective():
            dist.all_reduce(told)
        return told.tolist()

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, on its own device, in place."""
        if self.world_size > 1:
            with self.collective():
                dist.all_reduce(x)
        return x

    def all_gather(self, value: Any) -> list[Any]:
        """What each rank has, plain data, on every rank and in their order."""
        if self.world_size == 1:
            return [value]
        text = json.dumps(value).encode()
        sizes = torch.zeros(self.world_size, dtype=torch.long)
        sizes[self.rank] = len(text)
        with self.collective():
            dist.all_reduce(sizes)
            room = torch.zeros(self.world_size, int(sizes.max()), dtype=torch.uint8)
            room[self.rank, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            dist.all_reduce(room)
        rows = zip(room.numpy(), sizes.tolist(), strict=True)
        return [json.loads(row[:size].tobytes()) for row, size in rows]

    def run_on_first(self, function: Callable[[], Any]) -> Any:
        """What the first rank's work gives, plain data, on every rank; its error is everyone's."""
        if self.world_size == 1:
            return function()
        told: dict[str, Any] = {}
        if self.is_first:
            try:
                told = {"given": function()}
            except RegardError as error:
                told = {"kind": type(error).__name__, "text": str(error)}
            except BaseException:
                self.all_gather(
                    {"kind": "TrainError", "text": "rank 0: stopped, its message says why"}
                )
                raise
        told = self.all_gather(told)[0]
        if "kind" in told:
            raise getattr(errors, told["kind"])(told["text"])
        return told["given"]

    @contextmanager
    def collective(self) -> Iterator[None]:
        """While it lasts, a rank that is gone is said so."""
        try:
            yield
        except RuntimeError as error:
            words = ("gloo", "nccl", "connection", "peer", "process group")
            if self.world_size == 1 or not any(word in str(error).lower() for word in words):
                raise
            raise RankLostError(
                f"ranks: need all {self.world_size} to go on, got one that is gone "
                f"({str(error).splitlines()[0][:100]}); the last checkpoint is whole; try resume"
            ) from error


def init_distributed(device: str = "auto") -> Ranks:
    """Meet the other processes that torchrun started; without torchrun, be alone.

    >>> init_distributed().world_size
    1
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Ranks()
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(f"WORLD_SIZE: needs {missing[0]} beside {world}, got none; try torchrun")
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        if local >= torch.cuda.device_count():
            raise ConfigError(
                f"LOCAL_RANK: needs a GPU of its own, got {local} of {torch.cuda.device_count()}; "
                "try fewer --nproc-per-node"
            )
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        # what hosts tell each other goes by gloo, or every word would wait for a GPU
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
    return Ranks(rank, world, local)


def shutdown_distributed() -> None:
    """Part from the other processes.

    >>> shutdown_distributed()
    """
    if dist.is_initialized():
        dist.destroy_process_group()
