"""Linear layers with Xavier initialisation."""

from torch import nn


def xavier_linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with Xavier (Glorot) uniform weights and zero bias.

    y = x Wᵀ + b,   Var W = 2 / (in_features + out_features), b = 0 (Glorot & Bengio 2010)

    >>> xavier_linear(2, 3).bias
    Parameter containing:
    tensor([0., 0., 0.], requires_grad=True)
    """
    layer = nn.Linear(in_features, out_features, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
