"""The linear map that every layer is made of, with its start."""

from torch import nn


def xavier_linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """A linear map whose start keeps the size of what passes, forwards and backwards.

    y = x Wᵀ + b,   W uniform with variance 2 / (inputs + outputs), b = 0 (Glorot & Bengio 2010)

    >>> xavier_linear(2, 3).bias
    Parameter containing:
    tensor([0., 0., 0.], requires_grad=True)
    """
    made = nn.Linear(in_features, out_features, bias=bias)
    nn.init.xavier_uniform_(made.weight)
    if bias:
        nn.init.zeros_(made.bias)
    return made
