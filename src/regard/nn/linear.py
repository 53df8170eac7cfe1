"""Linear layers: with Xavier initialisation, and the output layer over a vocabulary."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ShapeError


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


class Readout(nn.Module):
    """Output projection to logits.

    logits = scale · x Wᵀ + b,   W a parameter or, if `tied`, the token embeddings given to forward

    >>> Readout(2, 3, tied=True)(torch.tensor([[1.0, 2.0]]), torch.eye(3)[:, :2])
    tensor([[1., 2., 0.]])
    """

    def __init__(
        self, dim: int, vocab: int, *, tied: bool = False, bias: bool = False, scale: float = 1.0
    ):
        super().__init__()
        self.scale = scale
        self.weight = None if tied else nn.Parameter(torch.randn(vocab, dim) * dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None

    def forward(
        self, x: Float[Tensor, "*batch dim"], tied_weight: Float[Tensor, "vocab dim"] | None = None
    ) -> Float[Tensor, "*batch vocab"]:
        weight = tied_weight if self.weight is None else self.weight
        if weight is None:
            raise ShapeError("tied_weight: needs the token embeddings for a tied readout, got None")
        logits = self.multiply(x, weight)
        if self.scale != 1.0:  # saves a pass over the largest tensor of a model
            logits = self.scale * logits
        return logits if self.bias is None else logits + self.bias

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """x Wᵀ; `Int8Readout` overrides it."""
        return x @ weight.mT
