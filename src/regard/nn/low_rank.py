"""Low-rank adaptation (LoRA): a frozen linear layer with a trained update of low rank."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

DOWN, UP = "low_rank_down", "low_rank_up"


class LowRankLinear(nn.Linear):
    """A linear layer whose weight is kept, with a trained update of low rank (Hu et al. 2022).

    y = x Wᵀ + b + (x Dᵀ) Uᵀ,   U = 0 at first

    >>> layer = LowRankLinear(nn.Linear(4, 3), rank=2)
    >>> [name for name, p in layer.named_parameters() if p.requires_grad]
    ['low_rank_down', 'low_rank_up']
    """

    def __init__(self, linear: nn.Linear, rank: int):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        for parameter in linear.parameters():
            parameter.requires_grad_(False)
        down = torch.randn(rank, self.in_features) * self.in_features**-0.5
        self.low_rank_down = nn.Parameter(down.to(self.weight))
        self.low_rank_up = nn.Parameter(self.weight.new_zeros(self.out_features, rank))

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Float[Tensor, "*batch feature"]
    ) -> Float[Tensor, "*batch out"]:
        return super().forward(x) + F.linear(F.linear(x, self.low_rank_down), self.low_rank_up)


def add_low_rank(model: nn.Module, rank: int) -> int:
    """Adapt every linear layer within the blocks of a model, in place; returns how many.

    What lies outside of them, except the output layer, is not trained.

    >>> from regard.models import Classifier, classifier_tiny
    >>> model = Classifier(classifier_tiny(vocab=9, classes=2))
    >>> add_low_rank(model, 4), sum(p.numel() for p in model.parameters() if p.requires_grad)
    (12, 9346)
    """
    layers = [
        (name, layer)
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and ".blocks." in f".{name}."
    ]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("head.", "readout.")) and parameter.requires_grad)
    for name, layer in layers:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, LowRankLinear(layer, rank))
    return len(layers)


def merge_low_rank(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model with each low-rank update added to its weight: W + U D.

    >>> one = torch.ones(1, 1)
    >>> merge_low_rank({"a.weight": one, "a.low_rank_down": 2 * one, "a.low_rank_up": 3 * one})
    {'a.weight': tensor([[7.]])}
    """
    merged = {name: x for name, x in tensors.items() if not name.endswith((DOWN, UP))}
    for name in tensors:
        if name.endswith(DOWN):
            layer = name.removesuffix(DOWN)
            update = tensors[layer + UP].double() @ tensors[name].double()
            merged[f"{layer}weight"] = (merged[f"{layer}weight"].double() + update).to(
                tensors[name]
            )
    return merged


def without_low_rank(model: nn.Module) -> nn.Module:
    """The model with its updates merged into plain linear layers, in place."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, LowRankLinear):
            plain = nn.Linear(1, 1, bias=False)  # replaced below
            plain.in_features, plain.out_features = layer.in_features, layer.out_features
            merged = merge_low_rank(dict(layer.state_dict()))
            plain.weight, plain.bias = nn.Parameter(merged["weight"]), layer.bias
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, plain)
    return model
