"""The arithmetic of one weight, as data."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.influence.effect import AttentionRecord
from regard.ops.terms import repeat_kv


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightBreakdown:
    """Every term of one weight: what was multiplied, added, forbidden and divided by.

    dot = Σ products,   score = softcap · tanh(scale · dot / softcap) + bias,   -inf unless allowed
    weight = exp(score - lse),   share = weight · value

    All in float64, from the numbers that the attention had. With a score of the caller's own there
    are no products; `scaled` is then that score.

    >>> layer = rg.nn.MultiHeadAttention(2, 1)
    >>> with rg.look(layer) as sight:
    ...     _ = layer(torch.ones(1, 4, 2))
    >>> round(sight.sites[0].breakdown(head=0, query=0, key=3).weight, 4)  # four keys alike
    0.25
    """

    products: Float[Tensor, " head_dim"] | None  # q_f · k_f
    dot: float | None  # their sum
    scale: float
    scaled: float  # scale · dot
    softcap: float | None
    capped: float  # softcap · tanh(scaled / softcap), or scaled as it is
    bias: float
    allowed: bool
    score: float  # capped + bias, or -inf
    lse: float  # log Σ_j exp(score_j) of this query
    weight: float
    value: Float[Tensor, " value"]
    contribution: Float[Tensor, " value"]  # what of the output comes from this key
    out: Float[Tensor, " value"]  # the whole output of this query


def compute_breakdown(
    record: AttentionRecord, batch: int, head: int, query: int, key: int
) -> WeightBreakdown:
    """The cell of one query and one key, all of its terms recomputed."""
    q, k, v, terms = record.q, record.k, record.v, record.terms
    own = head // (q.shape[1] // k.shape[1])  # a group of heads shares a key head
    at, there = slice(query, query + 1), slice(key, key + 1)
    grid = terms.grid(q, k, range(query, query + 1), range(key, key + 1))
    products = dot = None
    if terms.score is None:
        products = _exact(q[batch, head, query]) * _exact(k[batch, own, key])
        dot = products.sum().item()
        scaled = terms.scale * dot
    else:
        scaled = _pick(terms.score(q[:, :, at], repeat_kv(k, q)[:, :, there]), batch, head)
    capped = scaled
    if terms.softcap is not None:
        capped = terms.softcap * torch.tanh(_number(scaled / terms.softcap)).item()
    bias, allowed = 0.0, True
    if terms.bias is not None:
        bias = _pick(terms.bias.tile(grid, q[:, :, at].double(), terms.scale), batch, head)
    if terms.mask is not None:
        allowed = bool(_pick(terms.mask.tile(grid), batch, head))
    score = capped + bias if allowed else -torch.inf
    lse = record.lse[batch, head, query].item()
    weight = 0.0 if score == -torch.inf else torch.exp(_number(score - lse)).item()
    value = _exact(v[batch, own, key])
    return WeightBreakdown(
        products=products,
        dot=dot,
        scale=terms.scale,
        scaled=scaled,
        softcap=terms.softcap,
        capped=capped,
        bias=bias,
        allowed=allowed,
        score=score,
        lse=lse,
        weight=weight,
        value=value,
        contribution=weight * value,
        out=_exact(record.out[batch, head, query]),
    )


def _exact(x: Tensor) -> Tensor:
    return x.detach().double().cpu()


def _number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def _pick(tile: Tensor, batch: int, head: int) -> float:
    """The number of this sequence and head in a tile of one cell, which may be broadcast."""
    tile = tile.reshape((1,) * (4 - tile.ndim) + tuple(tile.shape))
    return tile[batch if tile.shape[0] > 1 else 0, head if tile.shape[1] > 1 else 0].item()
