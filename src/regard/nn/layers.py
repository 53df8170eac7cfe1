"""Linear layers, norms, the feed-forward layer, the residual connection and the readout."""

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.ops import layer_norm, rms_norm

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


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
    with a softcap c: c · tanh(logits / c)

    >>> Readout(2, 3, tied=True)(torch.tensor([[1.0, 2.0]]), torch.eye(3)[:, :2])
    tensor([[1., 2., 0.]])
    """

    def __init__(
        self,
        dim: int,
        vocab: int,
        *,
        tied: bool = False,
        bias: bool = False,
        scale: float = 1.0,
        softcap: float | None = None,
    ):
        super().__init__()
        self.scale, self.softcap = scale, softcap
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
        logits = logits if self.bias is None else logits + self.bias
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """x Wᵀ; `Int8Readout` overrides it."""
        return x @ weight.mT


Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


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
    with `output_norm`: y = x + dropout(norm'(f(norm(x)))), without the first norm in post-LN

    Args:
        dim: width of the model.
        norm: "layer", "rms" or "none".
        norm_first: pre-LN instead of post-LN.
        eps: of the norm.
        bias: whether a layer norm has a bias.
        dropout: of the sublayer's output.
        skip: False leaves out the sum, as an ablation.
        output_norm: norm of the sublayer's output before it is added: a second one in pre-LN
            (Gemma 2), the only one in post-LN (OLMo 2).

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
        output_norm: bool = False,
    ):
        super().__init__()
        first = "none" if output_norm and not norm_first else norm
        self.norm = Norm(dim, first, eps=eps, bias=bias)
        self.output_norm = Norm(dim, norm, eps=eps, bias=bias) if output_norm else None
        self.norm_first, self.skip = norm_first, skip
        self.dropout = nn.Dropout(dropout)

    def prepare(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """The input of the sublayer: x, or norm(x) with `norm_first`."""
        return self.norm(x) if self.norm_first else x

    def forward(
        self, x: Float[Tensor, "*batch dim"], update: Float[Tensor, "*batch dim"]
    ) -> Float[Tensor, "*batch dim"]:
        """`update` is the output of the sublayer for `prepare(x)`."""
        update = self.dropout(update if self.output_norm is None else self.output_norm(update))
        y = x + update if self.skip else update
        return y if self.norm_first else self.norm(y)
