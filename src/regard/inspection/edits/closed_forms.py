"""What if, at one attention alone: closed forms from q, k, v, out and lse, with no model run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.edits.base import Indices, as_indices, check_finite
from regard.inspection.edits.call_terms import attend_without_keys, with_scaled_scores
from regard.inspection.sites.labels import check_site
from regard.inspection.sites.site import Site
from regard.ops.attend.reference import softmax_with_lse
from regard.ops.attend.tiled import row_bands
from regard.ops.grid import slice_axis
from regard.ops.indices import as_int, resolve_index, resolve_slice
from regard.ops.influence.effect import DOMINANT_WEIGHT
from regard.ops.influence.leave_one_out import log_weight_and_complement, weight_change
from regard.ops.intercept import AttentionCall
from regard.ops.terms import repeat_kv, upcast

QUADRATURE_NODES = 64  # of the quadrature over a key's noise


@dataclass(frozen=True, kw_only=True, eq=False)
class OutputChange:
    """How far the outputs of one attention move: exactly, and to first order of the change.

    >>> site = rg.make_site(torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))
    >>> rg.drop_key_effect(site, 0).change.flatten()
    tensor([1.])
    """

    change: Float[Tensor, "batch head query value"]
    first_order: Float[Tensor, "batch head query value"] | None = (
        None  # None where there is no such order
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseEffect:
    """What noise does to outputs: the mean change, and its root mean square length.

    The first pair is the leading order in sigma, the second exact (None where no closed form is).

    >>> site = rg.make_site(torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))
    >>> rg.jitter_key_effect(site, 0, sigma=1.0).rms.flatten()  # a query of 0 feels nothing
    tensor([0.])
    """

    mean: Float[Tensor, "batch head row value"]  # of order sigma², although the noise has mean 0
    rms: Float[Tensor, "batch head row"]  # of order sigma
    exact_mean: Float[Tensor, "batch head row value"] | None = None
    exact_rms: Float[Tensor, "batch head row"] | None = None


def drop_key_effect(site: Site, keys: Indices) -> OutputChange:
    """What every output would be without some keys.

    Δh = W / (1 - W) · (h - v̄) = W · (h' - v̄), W the weight of the dropped keys, v̄ their mean value

    h' is the output without them. Rows that lose more than half of their weight are recomputed
    without these keys, since 1 - W and h - v̄ are lost in the rounding of h and lse; if `out` is in
    half precision, all rows that see them are. A query that may see nothing else loses all it has:
    Δh = -h. To first order in W the others do not move: Δh ≈ Σ w (h - v).

    >>> site = rg.make_site(torch.zeros(1, 1), torch.zeros(3, 1), torch.tensor([[0.0], [3.0], [6.0]]))
    >>> rg.drop_key_effect(site, 2).change.flatten()  # from the mean of three, 3, to that of two
    tensor([-1.5000])
    """
    _need(site)
    held = _held(site, as_indices("keys", keys))
    w = -held.log_w.exp()[..., None]
    return OutputChange(change=w * held.apart, first_order=w * held.towards)


def scale_key_effect(site: Site, key: int, alpha: float) -> OutputChange:
    """What every output would be with one key alpha times as long.

    Δh = (w' - w) / (1 - w) · (v - h),   w' = w r / (1 - w + w r),   r = exp(s' - s)
    Δh ≈ (alpha - 1) · s · w · (v - h) to first order, s its score without softcap and bias

    >>> site = rg.make_site(torch.ones(1, 1), torch.tensor([[1.0], [2.0]]).log())  # weights ⅓ and ⅔
    >>> move = rg.scale_key_effect(site, 1, 0.0)
    >>> move.change.flatten() + site.out.flatten()  # now ½ and ½
    tensor([0.3466])
    """
    _need(site)
    check_finite("alpha", alpha)
    held = _held(site, [key])
    one = range(key, key + 1)
    rows = range(site.queries)
    longer = replace(site, k=alpha * upcast(site.k), q=upcast(site.q))
    shift = longer.terms.score_tile(longer.q, longer.k, rows, one)
    shift = (shift - site.terms.score_tile(site.q, site.k, rows, one))[..., 0].nan_to_num(nan=0.0)
    first = None
    if site.terms.score is None:
        dot, bend, _ = _dot_and_bends(site, key)
        first = ((alpha - 1) * dot * bend * held.log_w.exp())[..., None] * held.towards
    moved = weight_change(held.log_w, held.log_rest, shift)
    return OutputChange(change=moved[..., None] * held.apart, first_order=first)


def scale_scores_effect(site: Site, factor: float, rows: slice | int = slice(None)) -> OutputChange:
    """What the outputs of some rows would be with every score times beta.

    w' ∝ exp(beta · s);   Δh ≈ (beta - 1) · (Σ w s v - h Σ w s) to first order

    Exact by computing these rows anew: the cost grows with the rows asked for.

    >>> values = torch.tensor([[0.0], [15.0]])
    >>> site = rg.make_site(torch.ones(1, 1), torch.tensor([[0.0], [1.0]]).log1p(), values)
    >>> rg.scale_scores_effect(site, 2.0).change.flatten()  # 1 : 2 becomes 1 : 4, and 10 becomes 12
    tensor([2.0000])
    """
    _need(site)
    check_finite("factor", factor, 0)
    old = AttentionCall(site.q, site.k, site.v, site.terms)
    new, down = with_scaled_scores(old, None, factor), resolve_slice(rows, site.queries, "rows")
    changes, firsts = [], []
    for band in row_bands(len(down), site.q.shape[:2].numel() * site.keys):
        change, slope = _sharper(site, new, down[band.start : band.stop])
        changes.append(change)
        firsts.append((factor - 1) * slope)
    return OutputChange(change=torch.cat(changes, -2), first_order=torch.cat(firsts, -2))


def jitter_key_effect(site: Site, key: int, sigma: float) -> NoiseEffect:
    """What noise of size sigma on one key does to every output.

    mean Δh ≈ ½ τ² w (1 - 2w) (v - h),   rms |Δh| ≈ τ w |v - h|,   τ = sigma · scale · |q|

    The exact pair is an integral over one number, the noise of the score, done by quadrature (good
    to 1e-5 while τ is below about 3). With a softcap both follow its bend.

    >>> site = rg.make_site(torch.ones(1, 1), torch.zeros(2, 1), torch.tensor([[0.0], [4.0]]))
    >>> rg.jitter_key_effect(site, 1, sigma=0.1).rms.flatten()  # 0.1 · ½ · 2
    tensor([0.1000])
    """
    _need(site)
    check_finite("sigma", sigma, 0)
    _need_dot(site)
    held = _held(site, [key])
    dot, bend, turn = _dot_and_bends(site, key)
    tau = sigma * abs(site.terms.scale) * upcast(site.q).norm(dim=-1)
    w = held.log_w.exp()
    mean = 0.5 * tau**2 * (bend**2 * w * (1 - 2 * w) + turn * w)
    nodes, mass = (torch.as_tensor(a, dtype=w.dtype, device=w.device) for a in _hermite())
    noisy = _capped(site, dot[..., None] + tau[..., None] * nodes)
    shift = noisy - _capped(site, dot)[..., None]
    moved = weight_change(held.log_w[..., None], held.log_rest[..., None], shift)
    return NoiseEffect(
        mean=mean[..., None] * held.towards,
        rms=tau * bend * w * held.towards.norm(dim=-1),
        exact_mean=(moved @ mass)[..., None] * held.apart,
        exact_rms=(moved.square() @ mass).sqrt() * held.apart.norm(dim=-1),
    )


def jitter_query_effect(site: Site, query: int, sigma: float) -> NoiseEffect:
    """What noise of size sigma on one query does to its own output; no other output moves.

    mean Δh ≈ ½ sigma² scale² Σ_j w_j |k_j - k̄|² (v_j - h),   k̄ = Σ_j w_j k_j
    rms |Δh| ≈ sigma · scale · |Σ_j w_j (v_j - h) (k_j - k̄)ᵀ|

    >>> keys = torch.tensor([[1.0], [-1.0]])
    >>> site = rg.make_site(torch.zeros(1, 1), keys, torch.tensor([[0.0], [4.0]]))
    >>> rg.jitter_query_effect(site, 0, sigma=0.1).rms.flatten()  # 0.1 · (½ · 2 · 1 + ½ · 2 · 1)
    tensor([0.2000])
    """
    _need(site)
    check_finite("sigma", sigma, 0)
    _need_dot(site)
    query = resolve_index("query", query, site.queries)
    row = range(query, query + 1)
    w, lse = softmax_with_lse(
        site.terms.score_tile(site.q, site.k, row), site.terms
    )  # (batch, head, 1, key)
    v, k = upcast(repeat_kv(site.v, site.q)), site.terms.scale * upcast(repeat_kv(site.k, site.q))
    bend, turn = _bends(site, (upcast(slice_axis(site.q, -2, row)) @ k.mT)[..., 0, :, None])
    slopes, lost = bend * k, torch.zeros_like(lse)  # of every score, to the query
    if site.terms.sinks is not None:  # one more key, of slope 0 and value 0
        lost = torch.exp(site.terms.sinks.to(lse.dtype)[:, None] - lse)
    away, towards = (_around_mean(x, w, lost) for x in (slopes, v))
    swung = away.square().sum(-1) + turn[..., 0] * k.square().sum(-1)
    mean = (w[..., 0, :] * swung)[..., None, :] @ towards
    cross = (w.mT * towards).mT @ away
    if site.terms.sinks is not None:
        middle, h = w @ slopes, w @ v
        mean = mean - lost[..., None] * middle.square().sum(-1, keepdim=True) * h
        cross = cross + lost[..., None] * h.mT @ middle
    return NoiseEffect(mean=0.5 * sigma**2 * mean, rms=sigma * cross.norm(dim=(-1, -2))[..., None])


def _need(site: Site) -> None:
    check_site(site)
    site.require_tensors()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Held:
    """What some keys hold of every query, taken as one key of their joint weight and mean value."""

    log_w: Tensor
    log_rest: Tensor  # log (1 - w)
    towards: Tensor  # v - h
    apart: Tensor  # v - h', h' the output without them: towards / (1 - w)


def _held(site: Site, keys: Sequence[int]) -> _Held:
    for key in keys:
        if not 0 <= as_int("key", key) < site.keys:
            raise ShapeError(f"key: needs 0 to {site.keys - 1}, got {key}")
    rows, ones = range(site.queries), [range(key, key + 1) for key in dict.fromkeys(keys)]
    scores = torch.cat([site.terms.score_tile(site.q, site.k, rows, one) for one in ones], -1)
    v = torch.cat([upcast(repeat_kv(slice_axis(site.v, -2, one), site.q)) for one in ones], -2)
    score = scores[..., 0]
    if len(ones) > 1:
        score = scores.logsumexp(-1)
        v = torch.exp(scores - score.masked_fill(score == -torch.inf, 0)[..., None]) @ v
    log_w = score - site.lse.masked_fill(site.lse == -torch.inf, 0)
    anew = log_w > math.log(DOMINANT_WEIGHT)
    if site.attention_record.is_half_precision:
        anew = log_w > -torch.inf
    light = log_w.masked_fill(anew, -torch.inf)
    log_rest = torch.log1p(-light.exp())
    towards = v - upcast(site.out)
    apart = towards / log_rest.exp()[..., None]
    held = _Held(log_w=light, log_rest=log_rest, towards=towards, apart=apart)
    some = anew.flatten(0, -2).any(0).nonzero()[:, 0]
    if not len(some):
        return held
    # from the first such row to the last
    part = range(int(some[0]), int(some[-1]) + 1)
    out, lse = attend_without_keys(AttentionCall(site.q, site.k, site.v, site.terms), part, keys)
    log_w, log_rest = log_weight_and_complement(slice_axis(score, -1, part), lse)
    apart = (v if v.shape[-2] == 1 else slice_axis(v, -2, part)) - out
    new = _Held(
        log_w=log_w, log_rest=log_rest, towards=apart * log_rest.exp()[..., None], apart=apart
    )
    at, end = part.start, part.stop
    anew = anew[..., at:end]

    def joined(name: str, axis: int) -> Tensor:
        old, better = getattr(held, name), getattr(new, name)
        here = anew if axis == -1 else anew[..., None]
        middle = torch.where(here, better, slice_axis(old, axis, part))
        before, after = (
            slice_axis(old, axis, range(at)),
            slice_axis(old, axis, range(end, site.queries)),
        )
        return torch.cat([before, middle, after], axis)

    return _Held(
        log_w=joined("log_w", -1),
        log_rest=joined("log_rest", -1),
        towards=joined("towards", -2),
        apart=joined("apart", -2),
    )


def _sharper(site: Site, new: AttentionCall, rows: range) -> tuple[Tensor, Tensor]:
    """The change of some rows, and dh / dbeta at 1: the covariance of score and value."""
    keys = site.terms.key_span(rows, site.keys)
    scores = site.terms.score_tile(site.q, site.k, rows, keys)
    w, lse = softmax_with_lse(scores, site.terms)
    other, other_lse = softmax_with_lse(new.terms.score_tile(new.q, new.k, rows, keys), new.terms)
    v = upcast(repeat_kv(slice_axis(site.v, -2, keys), site.q)).to(w.dtype)
    finite = scores.masked_fill(scores == -torch.inf, 0)
    mean, sinks, lost, grown = (w * finite).sum(-1, keepdim=True), site.terms.sinks, None, None
    if sinks is not None and new.terms.sinks is not None:
        sinks, others = (x.to(lse.dtype)[:, None] for x in (sinks, new.terms.sinks))
        share = torch.exp(sinks - lse)
        mean = mean + (share * sinks)[..., None]
        grown = share * (sinks - mean[..., 0])
        lost = torch.exp(others - other_lse) - share
    return (
        _mixed_change(other - w, w, v, lost),
        _mixed_change(w * (finite - mean), w, v, grown),
    )


def _mixed_change(change: Tensor, w: Tensor, v: Tensor, lost: Tensor | None) -> Tensor:
    """Σ_j change_j v_j for changes of weights, which sum to minus `lost`, what sinks gained.

    Counted from the value of the heaviest key: its own change, a difference of two numbers near
    one, then does not enter.
    """
    if not w.shape[-1]:
        return w @ v
    top = w.argmax(-1, keepdim=True)
    change = change.scatter(-1, top, 0)
    main = v.gather(-2, top.expand(*top.shape[:-1], v.shape[-1]))
    total = change.sum(-1) if lost is None else change.sum(-1) + lost
    return change @ v - total[..., None] * main


def _around_mean(x: Tensor, w: Tensor, lost: Tensor) -> Tensor:
    """x_j - Σ_j w_j x_j for one row, exact also where one weight is nearly 1; sinks have x = 0."""
    top = w.argmax(-1, keepdim=True)
    main = x.gather(-2, top.expand(*top.shape[:-1], x.shape[-1]))
    x = x - main
    return x - (w @ x - lost[..., None] * main)


def _dot_and_bends(site: Site, key: int) -> tuple[Tensor, Tensor, Tensor]:
    """scale · q · k of one key for every query, and the softcap's first and second derivative."""
    k = upcast(repeat_kv(site.k[:, :, key : key + 1], site.q))
    dot = site.terms.scale * (upcast(site.q) * k).sum(-1)
    return dot, *_bends(site, dot)


def _bends(site: Site, dot: Tensor) -> tuple[Tensor, Tensor]:
    cap = site.terms.softcap
    if cap is None:
        return torch.ones_like(dot), torch.zeros_like(dot)
    t = torch.tanh(dot / cap)
    return 1 - t**2, -2 * t * (1 - t**2) / cap


def _capped(site: Site, dot: Tensor) -> Tensor:
    cap = site.terms.softcap
    return dot if cap is None else cap * torch.tanh(dot / cap)


def _hermite() -> tuple[np.ndarray, np.ndarray]:
    nodes, mass = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    return nodes, mass / mass.sum()


def _need_dot(site: Site) -> None:
    terms = site.terms
    if terms.score is not None or (terms.bias is not None and terms.bias.depends_on_query):
        raise ShapeError(
            f"site: needs scores that are dot products alone, got {site.name} with a score or bias "
            "that asks the query; try what_if with jitter_key or jitter_query"
        )
