"""Attention scores before softmax: dot, scaled dot, bilinear and additive."""

import torch
from jaxtyping import Float
from torch import Tensor


def dot(
    q: Float[Tensor, "*batch query head_dim"], k: Float[Tensor, "*batch key head_dim"]
) -> Float[Tensor, "*batch query key"]:
    """Dot product: s_ij = q_i · k_j.

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.5]]))
    tensor([[4.]])
    """
    return q @ k.mT


def scaled_dot(
    q: Float[Tensor, "*batch query head_dim"], k: Float[Tensor, "*batch key head_dim"]
) -> Float[Tensor, "*batch query key"]:
    """Scaled dot product: s_ij = q_i · k_j / √head_dim, variance 1 for features of variance 1.

    >>> scaled_dot(torch.ones(1, 4), torch.ones(1, 4))
    tensor([[2.]])
    """
    return q @ k.mT / q.shape[-1] ** 0.5


def bilinear(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*batch key other"],
    w: Float[Tensor, "head_dim other"],
) -> Float[Tensor, "*batch query key"]:
    """Bilinear score, "general" in Luong et al. 2015: s_ij = q_i W k_jᵀ; widths may differ.

    >>> bilinear(torch.ones(1, 2), torch.ones(1, 1), torch.tensor([[3.0], [4.0]]))
    tensor([[7.]])
    """
    return q @ w @ k.mT


def additive(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*batch key other"],
    w_q: Float[Tensor, "head_dim hidden"],
    w_k: Float[Tensor, "other hidden"],
    v: Float[Tensor, " hidden"],
) -> Float[Tensor, "*batch query key"]:
    """Additive score of Bahdanau et al. 2015: s_ij = v · tanh(q_i W_q + k_j W_k).

    >>> one = torch.ones(1, 1)
    >>> additive(one, one, one, -one, torch.ones(1))
    tensor([[0.]])
    """
    return torch.tanh((q @ w_q).unsqueeze(-2) + (k @ w_k).unsqueeze(-3)) @ v


def score_moments(
    mean: Float[Tensor, "*batch head_dim"], sigma: float
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Mean and variance of q · k for features drawn independently around `mean`.

    E[q · k] = μᵀμ,   Var[q · k] = 2σ² μᵀμ + head_dim σ⁴

    So 1 / √head_dim gives variance 1 only for μ = 0 and σ = 1.

    >>> score_moments(torch.tensor([1.0, 2.0]), 1.0)
    (tensor(5.), tensor(12.))
    """
    square = mean.square().sum(-1)
    return square, 2 * sigma**2 * square + mean.shape[-1] * sigma**4
