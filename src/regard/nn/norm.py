"""Norm layers, and the residual connection around a sublayer."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.ops import layer_norm, rms_norm

NormKind = Literal["layer", "rms", "none"]


class Norm(nn.Module):
    """Layer norm or RMS norm with learned gain and bias; "none" is the identity.

    layer: y = gain ⊙ (x - mean) / √(var + eps) + bias,   rms: y = gain ⊙ x / √(mean(x²) + eps)

    >>> Norm(2, eps=0.0)(torch.tensor([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """

    def __init__(self, dim: int, kind: NormKind = "layer", *, eps: float = 1e-5, bias: bool = True):
        super().__init__()
        if kind not in ("layer", "rms", "none"):
            raise ConfigError(f"norm: needs layer, rms or none, got {kind!r}")
        self.kind, self.eps = kind, eps
        self.gain = nn.Parameter(torch.ones(dim)) if kind != "none" else None
        self.bias = nn.Parameter(torch.zeros(dim)) if kind == "layer" and bias else None

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        if self.kind == "none":
            return x
        if self.kind == "rms":
            return rms_norm(x, self.gain, self.eps)
        return layer_norm(x, self.gain, self.bias, self.eps)


class Residual(nn.Module):
    """Residual connection around a sublayer, with post-LN or pre-LN.

    post-LN: y = norm(x + dropout(f(x))),   pre-LN (`norm_first`): y = x + dropout(f(norm(x)))

    Args:
        dim: width of the model.
        norm: "layer", "rms" or "none".
        norm_first: pre-LN instead of post-LN.
        eps: of the norm.
        bias: whether a layer norm has a bias.
        dropout: of the sublayer's output.
        skip: False leaves out the sum, as an ablation.

    >>> residual, x = Residual(2, norm="none"), torch.tensor([1.0, 3.0])
    >>> residual(x, 10 * residual.prepare(x))
    tensor([11., 33.])
    """

    def __init__(
        self,
        dim: int,
        *,
        norm: NormKind = "layer",
        norm_first: bool = False,
        eps: float = 1e-5,
        bias: bool = True,
        dropout: float = 0.0,
        skip: bool = True,
    ):
        super().__init__()
        self.norm = Norm(dim, norm, eps=eps, bias=bias)
        self.norm_first, self.skip = norm_first, skip
        self.dropout = nn.Dropout(dropout)

    def prepare(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """The input of the sublayer: x, or norm(x) with `norm_first`."""
        return self.norm(x) if self.norm_first else x

    def forward(
        self, x: Float[Tensor, "*batch dim"], update: Float[Tensor, "*batch dim"]
    ) -> Float[Tensor, "*batch dim"]:
        """`update` is the output of the sublayer for `prepare(x)`."""
        update = self.dropout(update)
        y = x + update if self.skip else update
        return y if self.norm_first else self.norm(y)
