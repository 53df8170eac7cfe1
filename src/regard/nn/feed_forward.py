"""The position-wise feed-forward layer."""

from functools import partial
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.linear import xavier_linear

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """Position-wise feed-forward layer, optionally gated (GLU).

    y = f(x W₁ + b₁) W₂ + b₂,   gated: y = (f(x W_g + b_g) ⊙ (x W₁ + b₁)) W₂ + b₂

    Args:
        dim: width of the input and output.
        ffn_dim: width of the hidden layer, 4 · dim by default.
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        gated: multiply the hidden layer by an activated gate.
        bias: whether the linear layers have a bias.
        dropout: of the hidden layer.

    >>> sum(p.numel() for p in FeedForward(512, 2048).parameters())
    2099712
    """

    def __init__(
        self,
        dim: int,
        ffn_dim: int | None = None,
        *,
        activation: Activation = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ConfigError(
                f"activation: needs one of {', '.join(ACTIVATIONS)}, got {activation!r}"
            )
        ffn_dim = 4 * dim if ffn_dim is None else ffn_dim
        self.activation = activation
        self.to_hidden = xavier_linear(dim, ffn_dim, bias=bias)
        self.to_gate = xavier_linear(dim, ffn_dim, bias=bias) if gated else None
        self.to_out = xavier_linear(ffn_dim, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        f = ACTIVATIONS[self.activation]
        h = self.to_hidden(x)
        h = f(h) if self.to_gate is None else f(self.to_gate(x)) * h
        return self.to_out(self.dropout(h))
