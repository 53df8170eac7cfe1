"""Normalisation over the features of each token."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def layer_norm(
    x: Float[Tensor, "*batch dim"],
    gain: Float[Tensor, " dim"] | None = None,
    bias: Float[Tensor, " dim"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch dim"]:
    """Layer normalisation: zero mean and unit variance over the features, then gain and bias.

    y = gain ⊙ (x - mean) / √(var + eps) + bias, var without Bessel's correction

    eps makes a constant token give the bias, not NaN.

    >>> layer_norm(torch.tensor([1.0, 3.0]), eps=0.0)
    tensor([-1.,  1.])
    """
    return F.layer_norm(x, x.shape[-1:], gain, bias, eps)


def rms_norm(
    x: Float[Tensor, "*batch dim"], gain: Float[Tensor, " dim"] | None = None, eps: float = 1e-6
) -> Float[Tensor, "*batch dim"]:
    """RMS normalisation: unit mean square over the features, then gain.

    y = gain ⊙ x / √(mean(x²) + eps)

    >>> rms_norm(torch.tensor([3.0, 3.0]), eps=0.0)
    tensor([1., 1.])
    """
    return F.rms_norm(x, x.shape[-1:], gain, eps)
