"""Distributed training: ranks and their communication, DDP and FSDP, and the device of a rank.

ranks = init_distributed()                                   # of torchrun; else one of one
scores = ranks.run_on_first(run_evaluation, model, evaluate)  # the others wait
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard import errors
from regard.errors import ConfigError, RankLostError, RegardError
from regard.train.config import TrainConfig
from regard.train.weights import gather_tensor, load_weights, state_tensors

P = ParamSpec("P")
T = TypeVar("T")
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

    def all_gather(self, value: T) -> list[T]:
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

    def run_on_first(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on rank 0; every rank returns its JSON result, or raises its error."""
        if self.world_size == 1:
            return function(*args, **kwargs)
        reply: dict[str, Any] = {}
        if self.is_first:
            try:
                reply = {"result": function(*args, **kwargs)}
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
                f"LOCAL_RANK: needs one GPU per rank, got {local} of {gpus}; "
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


def select_device(config: TrainConfig, ranks: Ranks | None = None) -> torch.device:
    """The device of a config; bf16 and fp16 raise on a CPU, where they are slow."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: needs a CUDA device for cuda, got none here; try cpu")
    if config.device != "cpu" and torch.cuda.is_available():
        # without ranks: the device that `init_distributed` has set
        return torch.device("cuda", ranks.local_rank if ranks else torch.cuda.current_device())
    if config.precision in ("bf16", "fp16"):
        raise ConfigError(
            f"precision: needs a CUDA device for {config.precision}, got cpu; try float32"
        )
    return torch.device("cpu")


Strategy = Literal["none", "ddp", "fsdp"]


class ParallelModel:
    """A model as its ranks hold it: `model` has the parameters, the loss calls `forward_module`.

    none: one process.  ddp: every rank has all parameters; gradients are averaged.
    fsdp: every rank has 1/world_size of each block, gathered only while that block computes.
    """

    def __init__(self, model: nn.Module, strategy: Strategy, ranks: Ranks, device: torch.device):
        self.strategy: Strategy = strategy
        self.ranks, self.device = ranks, device
        # a sharded model cannot be evaluated on one rank: a full copy waits on the CPU
        self._full_copy = deepcopy(model).cpu() if strategy == "fsdp" else None
        self.model = self.forward_module = model.to(device)
        if strategy == "ddp":
            ids = [device.index] if device.type == "cuda" else None
            self.forward_module = DistributedDataParallel(
                model, device_ids=ids, gradient_as_bucket_view=True
            )
        elif strategy == "fsdp":
            _shard(model, ranks, device)
        # cached: to walk over all modules takes a millisecond per update
        self.parameters, self.buffers = tuple(model.parameters()), tuple(model.buffers())

    def no_sync(self, last: bool) -> AbstractContextManager[Any]:
        """Context of one batch of an update: before the last, gradients accumulate locally."""
        if self.strategy == "ddp" and not last:
            return cast(DistributedDataParallel, self.forward_module).no_sync()
        return nullcontext()

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip the gradient of the full model; returns its norm before clipping."""
        return gather_tensor(nn.utils.clip_grad_norm_(self.parameters, max_norm))

    def full_model(self) -> nn.Module:
        """The model with all its weights on this rank; every rank must call it."""
        if self._full_copy is None:
            return self.model
        weights = {name: gather_tensor(x) for name, x in state_tensors(self.model).items()}
        load_weights(self._full_copy, weights)
        return self._full_copy.to(self.device).train(self.model.training)


def choose_strategy(config: TrainConfig, ranks: Ranks) -> Strategy:
    """The strategy that a config asks for; auto is ddp with several ranks, else none."""
    alone = ranks.world_size == 1
    if config.parallel == "auto":
        return "none" if alone else "ddp"
    if config.parallel == "none" and not alone:
        count = ranks.world_size
        raise ConfigError(f"parallel: needs ddp or fsdp for {count} ranks, got none; try auto")
    if config.parallel != "none" and alone and not dist.is_initialized():
        raise ConfigError(
            f"parallel: needs 2 or more ranks for {config.parallel}, got 1; "
            f"try parallel=none, or torchrun"
        )
    return config.parallel


def _shard(model: nn.Module, ranks: Ranks, device: torch.device) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for x in (*model.parameters(), *model.buffers()):
        dist.broadcast(x.data, 0)  # all start from rank 0's weights
    mesh = init_device_mesh(device.type, (ranks.world_size,))
    for module in model.modules():
        if isinstance(module, nn.ModuleList):  # its layers are gathered and freed one by one
            for layer in module:
                if next(layer.parameters(), None) is not None:
                    fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)  # the rest: embeddings, which may be tied, and the output layer
