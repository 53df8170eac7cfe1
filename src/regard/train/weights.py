"""The saved tensors of a model: listed, copied and loaded, also where ranks hold shards."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, FileError


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's state dict, detached; a shared one once, under its first name."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, x in model.state_dict(keep_vars=True).items():
        first.setdefault(id(x), (name, x))
    return {name: x.detach() for name, x in first.values()}


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """`state_tensors`, copied to the CPU.

    >>> list(copy_weights(nn.Linear(1, 1)))
    ['weight', 'bias']
    """
    return {name: x.cpu().clone().contiguous() for name, x in state_tensors(model).items()}


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor], label: str = "weights") -> None:
    """Copy full weights into a model of the same shapes, sharded or not.

    >>> layer = nn.Linear(1, 1)
    >>> load_weights(layer, {"weight": torch.ones(1, 1), "bias": torch.zeros(1)})
    >>> layer(torch.tensor([2.0])).item()
    2.0
    """
    own = state_tensors(model)
    if {n: x.shape for n, x in weights.items()} != {n: x.shape for n, x in own.items()}:
        raise FileError(f"{label}: needs the weights of this model, got those of another")
    for name, x in weights.items():
        own[name].copy_(shard_like(own[name], x))


@torch.no_grad()
def load_matching_weights(
    model: nn.Module, source: nn.Module, *, skip: tuple[str, ...] = ()
) -> int:
    """Copy the tensors whose name and shape agree, sharded or not; returns how many.

    Those whose name begins with one of `skip` stay as they are.

    >>> load_matching_weights(nn.Linear(2, 3), nn.Linear(2, 3))
    2
    """
    own, weights = state_tensors(model), state_tensors(source)
    shared = [
        name
        for name, x in own.items()
        if name in weights and weights[name].shape == x.shape and not name.startswith(skip)
    ]
    if not shared:
        raise ConfigError(
            f"init_from: needs a model with tensors of this one, got a {type(source).__name__} "
            f"for a {type(model).__name__}"
        )
    for name in shared:
        own[name].copy_(shard_like(own[name], weights[name]))
    return len(shared)


def shard_like(target: Tensor, x: Tensor) -> Tensor:
    """A full tensor as `target` is held: itself, or this rank's shard where that is a DTensor."""
    if not hasattr(target, "full_tensor"):  # importing DTensor takes a second
        return x
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(target, DTensor)
    # every rank has read the full tensor: each takes its shard, nothing is sent
    full = x.to(target.device)
    return distribute_tensor(full, target.device_mesh, target.placements, src_data_rank=None)


def gather_tensor(x: Tensor) -> Tensor:
    """The full tensor of a sharded one; any other tensor as it is."""
    return getattr(x, "full_tensor", lambda: x)()
