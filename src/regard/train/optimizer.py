"""AdamW, and its state as named tensors."""

import fnmatch
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, FileError
from regard.train.config import TrainConfig
from regard.train.weights import shard_like

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
            known = ", ".join(dict.fromkeys(name.partition(".")[0] + ".*" for name in names))
            raise ConfigError(f"freeze: needs a pattern of {known}, got {pattern!r}")
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
