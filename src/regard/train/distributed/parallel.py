"""Data parallelism of one model over ranks: DDP (full copies) and FSDP (shards of every block)."""

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.errors import ConfigError
from regard.train.config import TrainConfig
from regard.train.distributed.ranks import Ranks
from regard.train.weights import gather_tensor, load_weights, state_tensors

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
