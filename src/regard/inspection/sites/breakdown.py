"""The arithmetic of one attention weight, as data."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.influence.effect import AttentionRecord
from regard.ops.terms import repeat_kv


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightBreakdown:
    """Every term of one attention weight, in float64.

    dot = Σ products,   score = softcap · tanh(scale · dot / softcap) + bias,   -inf unless allowed
    weight = exp(score - lse),   contribution = weight · value

    With a custom score function there are no products; `scaled` is then that score.
    """

    products: Float[Tensor, " head_dim"] | None  # q_f · k_f
    dot: float | None  # sum of the products
    scale: float
    scaled: float  # scale · dot
    softcap: float | None
    capped: float  # softcap · tanh(scaled / softcap), or scaled without softcap
    bias: float
    allowed: bool
    score: float  # capped + bias, or -inf
    lse: float  # log Σ_j exp(score_j) of this query
    weight: float
    value: Float[Tensor, " value"]
    contribution: Float[Tensor, " value"]  # weight · value
    out: Float[Tensor, " value"]  # output of this query, all keys together


def compute_breakdown(
    record: AttentionRecord, batch: int, head: int, query: int, key: int
) -> WeightBreakdown:
    """Recompute every term of the weight of one query on one key."""
    q, k, v, terms = record.q, record.k, record.v, record.terms
    kv_head = head // (q.shape[1] // k.shape[1])
    row, column = slice(query, query + 1), slice(key, key + 1)
    grid = terms.grid(q, k, range(query, query + 1), range(key, key + 1))
    products = dot = None
    if terms.score is None:
        products = _to_float64(q[batch, head, query]) * _to_float64(k[batch, kv_head, key])
        dot = products.sum().item()
        scaled = terms.scale * dot
    else:
        scaled = _pick(terms.score(q[:, :, row], repeat_kv(k, q)[:, :, column]), batch, head)
    capped = scaled
    if terms.softcap is not None:
        capped = terms.softcap * math.tanh(scaled / terms.softcap)
    bias, allowed = 0.0, True
    if terms.bias is not None:
        bias = _pick(terms.bias.tile(grid, q[:, :, row].double(), terms.scale), batch, head)
    if terms.mask is not None:
        allowed = bool(_pick(terms.mask.tile(grid), batch, head))
    score = capped + bias if allowed else -torch.inf
    lse = record.lse[batch, head, query].item()
    weight = 0.0 if score == -torch.inf else math.exp(score - lse)
    value = _to_float64(v[batch, kv_head, key])
    return WeightBreakdown(
        products=products, dot=dot, scale=terms.scale, scaled=scaled, softcap=terms.softcap,
        capped=capped, bias=bias, allowed=allowed, score=score, lse=lse, weight=weight,
        value=value, contribution=weight * value, out=_to_float64(record.out[batch, head, query]),
    )  # fmt: skip


def _to_float64(x: Tensor) -> Tensor:
    return x.detach().double().cpu()


def _pick(tile: Tensor, batch: int, head: int) -> float:
    """The value of one sequence and head in a 1 × 1 tile that may broadcast."""
    tile = tile.reshape((1,) * (4 - tile.ndim) + tuple(tile.shape))
    return tile[batch if tile.shape[0] > 1 else 0, head if tile.shape[1] > 1 else 0].item()
