"""Saved tensors of a model and its AdamW optimizer: listed, copied and loaded, also as shards."""

import fnmatch
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, FileError
from regard.models.serialization import unique_tensors
from regard.train.config import TrainConfig


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's state dict, detached; a shared one once, under its first name."""
    return {name: x.detach() for name, x in unique_tensors(model).items()}


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
    target = state_tensors(model)
    if {n: x.shape for n, x in weights.items()} != {n: x.shape for n, x in target.items()}:
        raise FileError(f"{label}: needs the weights of this model, got those of another")
    for name, x in weights.items():
        target[name].copy_(shard_like(target[name], x))


@torch.no_grad()
def load_matching_weights(
    model: nn.Module, source: nn.Module, *, skip: tuple[str, ...] = ()
) -> int:
    """Copy the tensors whose name and shape agree, sharded or not; returns how many.

    Those whose name begins with one of `skip` stay as they are.

    >>> load_matching_weights(nn.Linear(2, 3), nn.Linear(2, 3))
    2
    """
    target, weights = state_tensors(model), state_tensors(source)
    shared = [
        name
        for name, x in target.items()
        if name in weights and weights[name].shape == x.shape and not name.startswith(skip)
    ]
    if not shared:
        raise ConfigError(
            f"init_from: needs a model with tensors of this one, got a {type(source).__name__} "
            f"for a {type(model).__name__}"
        )
    for name in shared:
        target[name].copy_(shard_like(target[name], weights[name]))
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


STATE_NAMES = ("step", "exp_avg", "exp_avg_sq")  # AdamW's state of one parameter


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; weight decay only for matrices, not for biases and the scales of norms.

    >>> optimizer = make_optimizer(nn.Linear(2, 2), TrainConfig(steps=1, weight_decay=0.1))
    >>> [group["weight_decay"] for group in optimizer.param_groups]
    [0.1, 0.0]
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def freeze_parameters(model: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude the parameters whose names match a pattern from training.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    >>> freeze_parameters(model, ["0.*"])
    >>> [name for name, p in model.named_parameters() if p.requires_grad]
    ['1.weight', '1.bias']
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            parts = ", ".join(dict.fromkeys(name.partition(".")[0] + ".*" for name in names))
            raise ConfigError(f"freeze: needs a pattern of {parts}, got {pattern!r}")
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"freeze: needs to leave parameters to train, got {' '.join(patterns)}")


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The tensors of the optimizer's state, named `parameter.state`."""
    return {
        f"{name}.{state}": x
        for name, p in model.named_parameters()
        if p in optimizer.state
        for state, x in optimizer.state[p].items()
    }


def empty_optimizer_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Zeros in the shape of AdamW's state, each sharded as its parameter."""
    return {
        f"{name}.{state}": torch.zeros((), device=p.device)
        if state == "step"
        else torch.zeros_like(p)
        for name, p in model.named_parameters()
        if p.requires_grad
        for state in STATE_NAMES
    }


@torch.no_grad()
def load_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Load the state that `optimizer_tensors` returned."""
    named = dict(model.named_parameters())
    unknown = {name.rpartition(".")[0] for name in tensors} - set(named)
    if unknown:
        raise FileError(f"optimizer: needs names of this model, got {sorted(unknown)[0]!r}")
    for key, x in tensors.items():
        name, _, state = key.rpartition(".")
        p = named[name]
        local = x if state == "step" else shard_like(p, x)
        optimizer.state[p][state] = local.to(p.device).clone()
