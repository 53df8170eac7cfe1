"""Attention scores (dot, bilinear, additive), and softmax with a sharpness or sampling."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError

Queries = Float[Tensor, "*batch query head_dim"]
Keys = Float[Tensor, "*batch key head_dim"]
OtherKeys = Float[Tensor, "*batch key other"]  # whose width differs from that of the queries
Scores = Float[Tensor, "*batch query key"]
Row = Float[Tensor, "*batch key"]


def dot(q: Queries, k: Keys) -> Scores:
    """Dot product: s_ij = q_i · k_j.

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.5]]))
    tensor([[4.]])
    """
    return q @ k.mT


def scaled_dot(q: Queries, k: Keys) -> Scores:
    """Scaled dot product: s_ij = q_i · k_j / √head_dim, variance 1 for features of variance 1.

    >>> scaled_dot(torch.ones(1, 4), torch.ones(1, 4))
    tensor([[2.]])
    """
    return q @ k.mT / q.shape[-1] ** 0.5


def bilinear(q: Queries, k: OtherKeys, w: Float[Tensor, "head_dim other"]) -> Scores:
    """Bilinear score, "general" in Luong et al. 2015: s_ij = q_i W k_jᵀ; widths may differ.

    >>> bilinear(torch.ones(1, 2), torch.ones(1, 1), torch.tensor([[3.0], [4.0]]))
    tensor([[7.]])
    """
    return q @ w @ k.mT


def additive(
    q: Queries,
    k: OtherKeys,
    w_q: Float[Tensor, "head_dim hidden"],
    w_k: Float[Tensor, "other hidden"],
    v: Float[Tensor, " hidden"],
) -> Scores:
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


def softargmax(x: Row, beta: float = 1.0) -> Row:
    """Softmax with inverse temperature `beta`.

    w_j = exp(beta x_j) / Σ exp(beta x_j)

    Both limits are exact: 0 is uniform, infinity is uniform over the largest scores. A score of
    -inf has weight 0; a row of -inf gives zeros.

    >>> softargmax(torch.tensor([1.0, 2.0, 2.0, 0.0]), beta=torch.inf)
    tensor([0.0000, 0.5000, 0.5000, 0.0000])
    >>> softargmax(torch.tensor([1.0, 2.0, -torch.inf]), beta=0.0)
    tensor([0.5000, 0.5000, 0.0000])
    """
    if not beta >= 0:
        raise ShapeError(f"beta: needs 0 or more, got {beta}; try negating the scores")
    if not x.shape[-1]:
        return x  # a maximum over no keys would raise
    open_ = x != -torch.inf
    if beta == torch.inf:
        return _share(x == x.amax(-1, keepdim=True), open_, x)
    if beta == 0:
        return _share(torch.ones_like(open_), open_, x)
    nonempty = open_.any(-1, keepdim=True)  # a row of -inf would give 0 / 0
    return torch.where(nonempty, x, 0).mul(beta).softmax(-1) * nonempty


def straight_through(x: Row, beta: float = 1.0) -> Row:
    """Straight-through estimator: hard weights forward, the gradient of softmax backward.

    >>> straight_through(torch.tensor([1.0, 3.0]))
    tensor([0., 1.])
    """
    soft = softargmax(x, beta)
    return softargmax(x, torch.inf).detach() + soft - soft.detach()


def gumbel_softmax(
    x: Row, beta: float = 1.0, *, hard: bool = False, generator: torch.Generator | None = None
) -> Row:
    """Gumbel-softmax sample: key j is largest with probability softargmax(x)_j.

    w = softargmax(x - log(-log u), beta), u uniform in (0, 1)

    >>> gumbel_softmax(torch.tensor([0.0, 99.0]), hard=True)
    tensor([0., 1.])
    """
    u = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    tiny = torch.finfo(x.dtype).tiny
    noisy = x - (-u.clamp(min=tiny).log()).clamp(min=tiny).log()
    return straight_through(noisy, beta) if hard else softargmax(noisy, beta)


def _share(chosen: Tensor, open_: Tensor, x: Tensor) -> Tensor:
    share = (chosen & open_).to(x.dtype)
    share = share / share.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(x.isnan().any(-1, keepdim=True), torch.nan, share)  # a NaN must stay visible
