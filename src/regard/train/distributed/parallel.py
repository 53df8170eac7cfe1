"""How several ranks share one model: each has all of it, or each has a part of every block."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.errors import ConfigError
from regard.train.checkpoint.store import load_weights, state_tensors
from regard.train.config import TrainConfig
from regard.train.distributed.ranks import Ranks

Strategy = Literal["none", "ddp", "fsdp"]


class ParallelModel:
    """A model as its ranks hold it: `model` has the parameters, `called` is what the loss calls.

    none: this process alone.  ddp: every rank has all; gradients are averaged.
    fsdp: every rank has 1/world of each block, and gathers a block only while it computes with it.

    >>> shared = ParallelModel(nn.PackedLinear(1, 1), "none", Ranks(), torch.device("cpu"))
    >>> shared.forward_module is shared.model
    True
    """

    def __init__(self, model: nn.Module, strategy: Strategy, ranks: Ranks, device: torch.device):
        self.strategy: Strategy = strategy
        self.ranks, self.device = ranks, device
        # a sharded model cannot be asked as a whole: a copy waits on the host to be filled
        self._copy = deepcopy(model).cpu() if strategy == "fsdp" else None
        self.model = self.forward_module = model.to(device)
        if strategy == "ddp":
            ids = [device.index] if device.type == "cuda" else None
            self.forward_module = DistributedDataParallel(
                model, device_ids=ids, gradient_as_bucket_view=True
            )
        elif strategy == "fsdp":
            _shard(model, ranks, device)
        # told once: to walk over all modules takes a millisecond of every update
        self.parameters, self.buffers = tuple(model.parameters()), tuple(model.buffers())

    def no_sync(self, last: bool) -> AbstractContextManager[Any]:
        """Around all batches of an update but the last: gradients add up here, unsent."""
        if self.strategy == "ddp" and not last:
            return cast(DistributedDataParallel, self.forward_module).no_sync()
        return nullcontext()

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip the gradient of the whole model; its norm over all ranks comes back."""
        norm = nn.utils.clip_grad_norm_(self.parameters, max_norm)
        return gather_tensor(norm)

    def full_model(self) -> nn.Module:
        """The model with all its weights in one place; every rank must ask."""
        if self._copy is None:
            return self.model
        load_weights(
            self._copy,
            {name: gather_tensor(x) for name, x in state_tensors(self.model).items()},
            "weights",
        )
        return self._copy.to(self.device).train(self.model.training)


def choose_strategy(config: TrainConfig, ranks: Ranks) -> Strategy:
    """The way as asked, or ddp where there are several ranks.

    >>> choose_strategy(TrainConfig(steps=1), Ranks()), choose_strategy(TrainConfig(steps=1), Ranks(0, 2))
    ('none', 'ddp')
    """
    if config.parallel == "auto":
        return "ddp" if ranks.world_size > 1 else "none"
    if config.parallel == "none" and ranks.world_size > 1:
        raise ConfigError(
            f"parallel: needs ddp or fsdp for {ranks.world_size} ranks, got none; try auto"
        )
    if ranks.world_size == 1 and not dist.is_initialized():
        return "none"  # a run of many ranks goes on alone: there is nobody to share with
    return config.parallel


def gather_tensor(x: Tensor) -> Tensor:
    """A tensor that ranks hold in parts, whole on each of them; any other as it is.

    >>> gather_tensor(torch.single_row_kernels(1))
    tensor([1.])
    """
    gather = getattr(x, "full_tensor", None)
    return x if gather is None else gather()


def _shard(model: nn.Module, ranks: Ranks, device: torch.device) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for x in (*model.parameters(), *model.buffers()):
        dist.broadcast(x.data, 0)  # all start as the first one
    mesh = init_device_mesh(device.type, (ranks.world_size,))
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # the rest: embeddings, which may be shared, and the readout


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """What stands in a list of layers: gathered and let go one after the other."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            yield from (layer for layer in module if next(layer.parameters(), None) is not None)
