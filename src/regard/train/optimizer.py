"""The optimizer, and its tensors by name."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from regard.errors import FileError
from regard.train.checkpoint.store import shard_like
from regard.train.config import TrainConfig

KINDS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW remembers of a parameter


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; only matrices decay, as a norm's scale or a bias has no reason to be small.

    >>> made = make_optimizer(nn.PackedLinear(2, 2), TrainConfig(steps=1, decay=0.1))
    >>> [group["weight_decay"] for group in made.param_groups]
    [0.1, 0.0]
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All that the optimizer remembers itself, by its parameter's name and its kind.

    >>> layer = nn.PackedLinear(2, 2)
    >>> optimizer_tensors(layer, make_optimizer(layer, TrainConfig(steps=1)))
    {}
    """
    return {
        f"{name}.{kind}": x
        for name, p in model.named_parameters()
        if p in optimizer.state
        for kind, x in optimizer.state[p].items()
    }


def empty_optimizer_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Room for all that AdamW will remember of a model, each as its parameter is held.

    >>> list(empty_optimizer_tensors(nn.PackedLinear(2, 2, bias=False)))
    ['weight.step', 'weight.exp_avg', 'weight.exp_avg_sq']
    """
    return {
        f"{name}.{kind}": torch.zeros((), device=p.device)
        if kind == "step"
        else torch.zeros_like(p)
        for name, p in model.named_parameters()
        if p.requires_grad
        for kind in KINDS
    }


@torch.no_grad()
def load_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Give an optimizer back what it remembered.

    >>> layer = nn.PackedLinear(1, 1, bias=False)
    >>> optimizer = make_optimizer(layer, TrainConfig(steps=1))
    >>> load_optimizer_tensors(layer, optimizer, {"weight.step": torch.tensor(3.0)})
    >>> optimizer_tensors(layer, optimizer)
    {'weight.step': tensor(3.)}
    """
    named = dict(model.named_parameters())
    unknown = {name.rpartition(".")[0] for name in tensors} - set(named)
    if unknown:
        raise FileError(f"optimizer: needs names of this model, got {sorted(unknown)[0]!r}")
    for key, x in tensors.items():
        name, _, kind = key.rpartition(".")
        p = named[name]
        held = x if kind == "step" else shard_like(p, x)
        optimizer.state[p][kind] = held.to(p.device).clone()
