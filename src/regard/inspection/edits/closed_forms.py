"""Closed forms of what edits change in the output of one attention, without running the model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.edits.base import (
    Indices,
    as_indices,
    attend_without_keys,
    check_finite,
    with_scaled_scores,
)
from regard.inspection.sites.labels import check_site
from regard.inspection.sites.site import Site
from regard.ops.attend.reference import softmax_with_lse
from regard.ops.grid import slice_axis
from regard.ops.indices import as_int, resolve_index, resolve_slice
from regard.ops.influence.effect import DOMINANT_WEIGHT, log_weight_and_complement, weight_change
from regard.ops.intercept import AttentionCall
from regard.ops.maybe_none import MaybeNone
from regard.ops.terms import Terms, repeat_kv, upcast
from regard.ops.tiling import row_bands

QUADRATURE_NODES = 64  # Gauss-Hermite, over the noise of a score


@dataclass(frozen=True, kw_only=True, eq=False)
class OutputChange:
    """Change of the outputs of one attention: exact, and to first order."""

    change: Float[Tensor, "batch head query value"]
    first_order: Float[Tensor, "batch head query value"] | MaybeNone = None  # None: custom score


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseEffect:
    """Effect of noise on outputs: the mean change, and its root-mean-square norm.

    `mean` and `rms` are to leading order in sigma; `exact_mean` and `exact_rms` are None where
    there is no closed form.
    """

    mean: Float[Tensor, "batch head row value"]  # of order sigma², although the noise has mean 0
    rms: Float[Tensor, "batch head row"]  # of order sigma
    exact_mean: Float[Tensor, "batch head row value"] | MaybeNone = None
    exact_rms: Float[Tensor, "batch head row"] | MaybeNone = None


def drop_key_effect(site: Site, keys: Indices) -> OutputChange:
    """Change of every output if some keys are masked.

    Δh = W / (1 - W) · (h - v̄) = W · (h' - v̄), W the weight of the dropped keys, v̄ their mean value

    h' is the output without them. A query that sees no other key loses its output: Δh = -h. To
    first order in W, Δh ≈ Σ w (h - v).

    >>> values = torch.tensor([[0.0], [3.0], [6.0]])
    >>> site = rg.make_site(torch.zeros(1, 1), torch.zeros(3, 1), values)
    >>> drop_key_effect(site, 2).change.flatten()  # from the mean of three, 3, to that of two
    tensor([-1.5000])
    """
    _check_site(site)
    group = _group_keys(site, as_indices("keys", keys))
    w = -group.log_w.exp()[..., None]
    return OutputChange(change=w * group.from_rest, first_order=w * group.from_output)


def scale_key_effect(site: Site, key: int, alpha: float) -> OutputChange:
    """Change of every output if one key is multiplied by alpha.

    Δh = (w' - w) / (1 - w) · (v - h),   w' = w r / (1 - w + w r),   r = exp(s' - s)
    Δh ≈ (alpha - 1) · s · w · (v - h) to first order, s the score without softcap and bias

    >>> site = rg.make_site(torch.ones(1, 1), torch.tensor([[1.0], [2.0]]).log())  # weights ⅓ and ⅔
    >>> effect = scale_key_effect(site, 1, 0.0)
    >>> effect.change.flatten() + site.out.flatten()  # now ½ and ½
    tensor([0.3466])
    """
    _check_site(site)
    check_finite("alpha", alpha)
    group = _group_keys(site, [key])
    rows, column = range(site.queries), range(key, key + 1)
    new = site.terms.score_tile(upcast(site.q), alpha * upcast(site.k), rows, column)
    old = site.terms.score_tile(site.q, site.k, rows, column)
    shift = (new - old)[..., 0].nan_to_num(nan=0.0)
    first = None
    if site.terms.score is None:
        dot = _scaled_dot(site, key)
        slope = _softcap(site, dot)[1]
        first = ((alpha - 1) * dot * slope * group.log_w.exp())[..., None] * group.from_output
    change = weight_change(group.log_w, group.log_rest, shift)
    return OutputChange(change=change[..., None] * group.from_rest, first_order=first)


def scale_scores_effect(site: Site, factor: float, rows: slice | int = slice(None)) -> OutputChange:
    """Change of the outputs of some rows if every score is multiplied by a factor.

    w' ∝ exp(factor · s);   Δh ≈ (factor - 1) · (Σ w s v - h Σ w s) to first order

    >>> values = torch.tensor([[0.0], [15.0]])
    >>> site = rg.make_site(torch.ones(1, 1), torch.tensor([[0.0], [1.0]]).log1p(), values)
    >>> scale_scores_effect(site, 2.0).change.flatten()  # 1 : 2 becomes 1 : 4, and 10 becomes 12
    tensor([2.0000])
    """
    _check_site(site)
    check_finite("factor", factor, 0)
    old = AttentionCall(site.q, site.k, site.v, site.terms)
    new = with_scaled_scores(old, None, factor)
    row_range = resolve_slice(rows, site.queries, "rows")
    changes, firsts = [], []
    for band in row_bands(len(row_range), site.q.shape[:2].numel() * site.keys):
        change, slope = _change_and_slope(site, new, row_range[band.start : band.stop])
        changes.append(change)
        firsts.append((factor - 1) * slope)
    return OutputChange(change=torch.cat(changes, -2), first_order=torch.cat(firsts, -2))


def jitter_key_effect(site: Site, key: int, sigma: float) -> NoiseEffect:
    """Effect of Gaussian noise of standard deviation sigma on one key on every output.

    mean Δh ≈ ½ τ² w (1 - 2w) (v - h),   rms |Δh| ≈ τ w |v - h|,   τ = sigma · scale · |q|

    The exact pair integrates over the noise of the score by Gauss-Hermite quadrature (accurate to
    1e-5 for τ below about 3). Softcap is included.

    >>> site = rg.make_site(torch.ones(1, 1), torch.zeros(2, 1), torch.tensor([[0.0], [4.0]]))
    >>> jitter_key_effect(site, 1, sigma=0.1).rms.flatten()  # 0.1 · ½ · 2
    tensor([0.1000])
    """
    _check_site(site, dot_product=True)
    check_finite("sigma", sigma, 0)
    group = _group_keys(site, [key])
    dot = _scaled_dot(site, key)
    capped, slope, curvature = _softcap(site, dot)
    tau = sigma * abs(site.terms.scale) * upcast(site.q).norm(dim=-1)
    w = group.log_w.exp()
    mean = 0.5 * tau**2 * (slope**2 * w * (1 - 2 * w) + curvature * w)
    nodes, masses = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    nodes, masses = (torch.as_tensor(x).to(w) for x in (nodes, masses / masses.sum()))
    shift = _softcap(site, dot[..., None] + tau[..., None] * nodes)[0] - capped[..., None]
    change = weight_change(group.log_w[..., None], group.log_rest[..., None], shift)
    return NoiseEffect(
        mean=mean[..., None] * group.from_output,
        rms=tau * slope * w * group.from_output.norm(dim=-1),
        exact_mean=(change @ masses)[..., None] * group.from_rest,
        exact_rms=(change.square() @ masses).sqrt() * group.from_rest.norm(dim=-1),
    )


def jitter_query_effect(site: Site, query: int, sigma: float) -> NoiseEffect:
    """Effect of Gaussian noise of standard deviation sigma on one query on its output.

    mean Δh ≈ ½ sigma² scale² Σ_j w_j |k_j - k̄|² (v_j - h),   k̄ = Σ_j w_j k_j
    rms |Δh| ≈ sigma · scale · |Σ_j w_j (v_j - h) (k_j - k̄)ᵀ|

    >>> keys = torch.tensor([[1.0], [-1.0]])
    >>> site = rg.make_site(torch.zeros(1, 1), keys, torch.tensor([[0.0], [4.0]]))
    >>> jitter_query_effect(site, 0, sigma=0.1).rms.flatten()  # 0.1 · (½ · 2 · 1 + ½ · 2 · 1)
    tensor([0.2000])
    """
    _check_site(site, dot_product=True)
    check_finite("sigma", sigma, 0)
    query = resolve_index("query", query, site.queries)
    row = range(query, query + 1)
    _, w = _softmax_with_sink(site.terms.score_tile(site.q, site.k, row), site.terms)
    v, k = (_pad_sink(upcast(repeat_kv(x, site.q)), site.terms) for x in (site.v, site.k))
    k = site.terms.scale * k
    dot = (upcast(slice_axis(site.q, -2, row)) @ k.mT)[..., 0, :, None]
    _, slope, curvature = _softcap(site, dot)
    dk, dv = (_subtract_mean(x, w) for x in (slope * k, v))  # slope k: gradient of each score
    second = dk.square().sum(-1) + curvature[..., 0] * k.square().sum(-1)
    mean = (w[..., 0, :] * second)[..., None, :] @ dv
    jacobian = (w.mT * dv).mT @ dk
    return NoiseEffect(
        mean=0.5 * sigma**2 * mean, rms=sigma * jacobian.norm(dim=(-1, -2))[..., None]
    )


class _KeyGroup(NamedTuple):
    """Some keys treated as one key, with their total weight w and mean value v, for every query."""

    log_w: Tensor
    log_rest: Tensor  # log (1 - w)
    from_output: Tensor  # v - h, h the output
    from_rest: Tensor  # v - h', h' the output without these keys: (v - h) / (1 - w)


def _group_keys(site: Site, keys: Sequence[int]) -> _KeyGroup:
    """Weight and mean value of some keys, exact also where they have nearly all of the weight.

    Rows where they have more than half, or any with half-precision outputs, are recomputed without
    them: there 1 - w and v - h' would be lost in the rounding of lse and out.
    """
    for key in keys:
        if not 0 <= as_int("key", key) < site.keys:
            raise ShapeError(f"key: needs 0 to {site.keys - 1}, got {key}")
    rows = range(site.queries)
    columns = [range(key, key + 1) for key in dict.fromkeys(keys)]
    scores = torch.cat([site.terms.score_tile(site.q, site.k, rows, x) for x in columns], -1)
    v = torch.cat([upcast(repeat_kv(slice_axis(site.v, -2, x), site.q)) for x in columns], -2)
    score = scores[..., 0]
    if len(columns) > 1:
        score = scores.logsumexp(-1)
        v = torch.exp(scores - score.masked_fill(score == -torch.inf, 0)[..., None]) @ v
    log_w = score - site.lse.masked_fill(site.lse == -torch.inf, 0)
    half = site.attention_record.is_half_precision
    recompute = log_w > (-torch.inf if half else math.log(DOMINANT_WEIGHT))
    light = log_w.masked_fill(recompute, -torch.inf)
    log_rest = torch.log1p(-light.exp())
    from_output = v - upcast(site.out)
    group = _KeyGroup(light, log_rest, from_output, from_output / log_rest.exp()[..., None])
    heavy = recompute.flatten(0, -2).any(0).nonzero()[:, 0]
    if not len(heavy):
        return group
    part = range(int(heavy[0]), int(heavy[-1]) + 1)
    out, lse = attend_without_keys(AttentionCall(site.q, site.k, site.v, site.terms), part, keys)
    log_w, log_rest = log_weight_and_complement(slice_axis(score, -1, part), lse)
    from_rest = (v if v.shape[-2] == 1 else slice_axis(v, -2, part)) - out
    exact = _KeyGroup(log_w, log_rest, from_rest * log_rest.exp()[..., None], from_rest)
    use, merged = slice_axis(recompute, -1, part), []
    for old, new in zip(group, exact, strict=True):
        axis, where = (-1, use) if old.ndim == use.ndim else (-2, use[..., None])
        merged.append(old.clone())
        rows = slice_axis(merged[-1], axis, part)
        rows.copy_(torch.where(where, new, rows))
    return _KeyGroup(*merged)


def _check_site(site: Site, dot_product: bool = False) -> None:
    check_site(site)
    site.require_tensors()
    terms = site.terms
    has_other = terms.score is not None or (terms.bias is not None and terms.bias.depends_on_query)
    if dot_product and has_other:
        raise ShapeError(
            f"site: needs plain dot-product scores, got {site.name} with a score or bias that "
            "depends on the query; try what_if with jitter_key or jitter_query"
        )


def _change_and_slope(site: Site, new: AttentionCall, rows: range) -> tuple[Tensor, Tensor]:
    """The change of some rows, and dh / dfactor at 1: the covariance of score and value."""
    keys = site.terms.key_span(rows, site.keys)
    scores = site.terms.score_tile(site.q, site.k, rows, keys)
    scores, w = _softmax_with_sink(scores, site.terms)
    new_scores = new.terms.score_tile(new.q, new.k, rows, keys)
    new_w = _softmax_with_sink(new_scores, new.terms)[1]
    v = _pad_sink(upcast(repeat_kv(slice_axis(site.v, -2, keys), site.q)).to(w.dtype), site.terms)
    finite = scores.masked_fill(scores == -torch.inf, 0)
    mean = (w * finite).sum(-1, keepdim=True)
    return _weighted_sum(new_w - w, w, v), _weighted_sum(w * (finite - mean), w, v)


def _softmax_with_sink(scores: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """Scores and weights; a sink is one more key, whose key and value are 0."""
    if terms.sinks is not None:
        sink = terms.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], -1)
    return scores, softmax_with_lse(scores, terms.without("sinks"))[0]


def _pad_sink(x: Tensor, terms: Terms) -> Tensor:
    return x if terms.sinks is None else F.pad(x, (0, 0, 0, 1))


def _weighted_sum(change: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Σ_j change_j v_j, for changes of weights that sum to 0.

    Values are taken relative to that of the heaviest key: its change, a difference of two
    numbers near 1, then does not enter.
    """
    if not w.shape[-1]:
        return w @ v
    top = w.argmax(-1, keepdim=True)
    change = change.scatter(-1, top, 0)
    main = v.gather(-2, top.expand(*top.shape[:-1], v.shape[-1]))
    return change @ v - change.sum(-1)[..., None] * main


def _subtract_mean(x: Tensor, w: Tensor) -> Tensor:
    """x_j - Σ_j w_j x_j for one row, exact also if one weight is nearly 1."""
    top = w.argmax(-1, keepdim=True)
    x = x - x.gather(-2, top.expand(*top.shape[:-1], x.shape[-1]))
    return x - w @ x


def _scaled_dot(site: Site, key: int) -> Tensor:
    """scale · q · k of one key for every query."""
    k = upcast(repeat_kv(site.k[:, :, key : key + 1], site.q))
    return site.terms.scale * (upcast(site.q) * k).sum(-1)


def _softcap(site: Site, dot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The softcap with its first and second derivative."""
    cap = site.terms.softcap
    if cap is None:
        return dot, torch.ones_like(dot), torch.zeros_like(dot)
    t = torch.tanh(dot / cap)
    return cap * t, 1 - t**2, -2 * t * (1 - t**2) / cap
