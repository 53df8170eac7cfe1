"""The ranks of a distributed training, and their communication."""

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

TIMEOUT = timedelta(minutes=60)  # ranks wait while rank 0 evaluates and writes


@dataclass(frozen=True)
class Ranks:
    """Rank and world size of this process; with one process every collective is a no-op.

    Python values travel between CPUs, as JSON: no GPU waits for them.

    >>> Ranks().is_first, Ranks().sum_counts(3, 4), Ranks().all_gather("me")
    (True, [3, 4], ['me'])
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # on this machine: the index of its GPU

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes, prints and evaluates."""
        return self.rank == 0

    def sum_counts(self, *counts: int) -> list[int]:
        """Sums of integers over all ranks."""
        return self.all_reduce(torch.tensor(counts)).tolist()

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place, on its device."""
        if self.world_size > 1:
            with self.collective():
                dist.all_reduce(x)
        return x

    def all_gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        text = json.dumps(value).encode()
        sizes = torch.zeros(self.world_size, dtype=torch.long)
        sizes[self.rank] = len(text)
        with self.collective():
            dist.all_reduce(sizes)
            texts = torch.zeros(self.world_size, int(sizes.max()), dtype=torch.uint8)
            texts[self.rank, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            dist.all_reduce(texts)
        rows = zip(texts.numpy(), sizes.tolist(), strict=True)
        return [json.loads(row[:size].tobytes()) for row, size in rows]

    def run_on_first(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on rank 0; every rank returns its JSON result, or raises its error."""
        if self.world_size == 1:
            return function(*args)
        reply: dict[str, Any] = {}
        if self.is_first:
            try:
                reply = {"result": function(*args)}
            except RegardError as error:
                reply = {"error": type(error).__name__, "message": str(error)}
            except BaseException:
                message = "rank 0: stopped; see its message"
                self.all_gather({"error": "TrainError", "message": message})
                raise
        reply = self.all_gather(reply)[0]
        if "error" in reply:
            raise getattr(errors, reply["error"])(reply["message"])
        return reply["result"]

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Context of a collective call: the loss of another rank becomes a TrainError."""
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
    """Join the process group that torchrun set up; without torchrun, one rank of one.

    >>> init_distributed().world_size
    1
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return Ranks()
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        other = missing[0]
        raise ConfigError(f"WORLD_SIZE: needs {other} beside {world_size}, got none; try torchrun")
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        if local >= (gpus := torch.cuda.device_count()):
            raise ConfigError(
                f"LOCAL_RANK: needs a GPU of its own, got {local} of {gpus}; "
                "try fewer --nproc-per-node"
            )
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        # CPU tensors go by gloo: with NCCL every message would wait for a GPU
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
    return Ranks(rank, world_size, local)


def shutdown_distributed() -> None:
    """Leave the process group, if there is one.

    >>> shutdown_distributed()
    """
    if dist.is_initialized():
        dist.destroy_process_group()
