"""Softmax with a sharpness, its hard limit, and differentiable sampling."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError


def softargmax(x: Float[Tensor, "*batch key"], beta: float = 1.0) -> Float[Tensor, "*batch key"]:
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


def straight_through(
    x: Float[Tensor, "*batch key"], beta: float = 1.0
) -> Float[Tensor, "*batch key"]:
    """Straight-through estimator: hard weights forward, the gradient of softmax backward.

    >>> straight_through(torch.tensor([1.0, 3.0]))
    tensor([0., 1.])
    """
    soft = softargmax(x, beta)
    return softargmax(x, torch.inf).detach() + soft - soft.detach()


def gumbel_softmax(
    x: Float[Tensor, "*batch key"],
    beta: float = 1.0,
    *,
    hard: bool = False,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch key"]:
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
