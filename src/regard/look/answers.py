"""What if, at one attention alone: closed forms from q, k, v, out and lse, with no model run."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.look.edit_terms import sharpened
from regard.look.edits import Some, check_finite, places_of
from regard.look.labels import check_site
from regard.look.site import Site
from regard.ops.attend.reference import attend_rows, normalise
from regard.ops.attend.tiled import bands
from regard.ops.door import Call
from regard.ops.grid import cut
from regard.ops.indices import index_of, part_of, whole_number
from regard.ops.terms import spread, widen

NODES = 64  # of the quadrature over a key's noise


@dataclass(frozen=True, kw_only=True, eq=False)
class Move:
    """How far the outputs of one attention move: exactly, and to first order of the change.

    >>> site = rg.site_of(torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))
    >>> rg.if_key_dropped(site, 0).change.flatten()
    tensor([1.])
    """

    change: Float[Tensor, "batch head query value"]
    first: Float[Tensor, "batch head query value"] | None = (
        None  # None where there is no such order
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Shake:
    """What noise does to outputs: the mean change, and its root mean square length.

    The first pair is the leading order in sigma, the second exact (None where no closed form is).

    >>> site = rg.site_of(torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))
    >>> rg.if_key_jittered(site, 0, sigma=1.0).spread.flatten()  # a query of 0 feels nothing
    tensor([0.])
    """

    mean: Float[Tensor, "batch head row value"]  # of order sigma², although the noise has mean 0
    spread: Float[Tensor, "batch head row"]  # of order sigma
    exact_mean: Float[Tensor, "batch head row value"] | None = None
    exact_spread: Float[Tensor, "batch head row"] | None = None


def if_key_dropped(site: Site, keys: Some) -> Move:
    """What every output would be without some keys.

    Δh = W / (1 - W) · (h - v̄), W the weight of the dropped keys and v̄ their mean value

    A query that sees nothing else (to rounding) loses all it has: Δh = -h. To first order in W the
    others do not move: Δh ≈ Σ w (h - v).

    >>> site = rg.site_of(torch.zeros(1, 1), torch.zeros(3, 1), torch.tensor([[0.0], [3.0], [6.0]]))
    >>> rg.if_key_dropped(site, 2).change.flatten()  # from the mean of three, 3, to that of two
    tensor([-1.5000])
    """
    _need(site)
    h = widen(site.out)
    columns = [_column(site, key) for key in places_of("keys", keys)]
    share = sum((x.exp() for x, _ in columns), torch.zeros_like(site.lse))
    taken = sum((x.exp()[..., None] * v for x, v in columns), torch.zeros_like(h))
    rest = -torch.expm1(columns[0][0]) if len(columns) == 1 else 1 - share
    alone = _negligible(rest, site.lse)
    first = share[..., None] * h - taken
    change = first / rest.masked_fill(alone, 1)[..., None]
    return Move(change=torch.where(alone[..., None], -h, change), first=first)


def if_key_scaled(site: Site, key: int, alpha: float) -> Move:
    """What every output would be with one key alpha times as long.

    Δh = (w' - w) / (1 - w) · (v - h),   w' = w r / (1 - w + w r),   r = exp(s' - s)
    Δh ≈ (alpha - 1) · s · w · (v - h) to first order, s its score without softcap and bias

    >>> site = rg.site_of(torch.ones(1, 1), torch.tensor([[1.0], [2.0]]).log())  # weights ⅓ and ⅔
    >>> move = rg.if_key_scaled(site, 1, 0.0)
    >>> move.change.flatten() + site.out.flatten()  # now ½ and ½
    tensor([0.3466])
    """
    _need(site)
    check_finite("alpha", alpha)
    x, v = _column(site, key)
    one = range(key, key + 1)
    rows = range(site.queries)
    longer = replace(site, k=alpha * widen(site.k), q=widen(site.q))
    shift = longer.terms.tile(longer.q, longer.k, rows, one)
    shift = (shift - site.terms.tile(site.q, site.k, rows, one))[..., 0].nan_to_num(nan=0.0)
    towards = v - widen(site.out)
    first = None
    if site.terms.score is None:
        dot, bend, _ = _dot_and_bends(site, key)
        first = ((alpha - 1) * dot * bend * x.exp())[..., None] * towards
    return Move(change=_gain(x, shift, site.lse)[..., None] * towards, first=first)


def if_sharpened(site: Site, beta: float, rows: slice | int = slice(None)) -> Move:
    """What the outputs of some rows would be with every score times beta.

    w' ∝ exp(beta · s);   Δh ≈ (beta - 1) · (Σ w s v - h Σ w s) to first order

    Exact by computing these rows anew: the cost grows with the rows asked for.

    >>> values = torch.tensor([[0.0], [15.0]])
    >>> site = rg.site_of(torch.ones(1, 1), torch.tensor([[0.0], [1.0]]).log1p(), values)
    >>> rg.if_sharpened(site, 2.0).change.flatten()  # 1 : 2 becomes 1 : 4, and 10 becomes 12
    tensor([2.0000])
    """
    _need(site)
    check_finite("beta", beta, 0)
    old = Call(site.q, site.k, site.v, site.terms)
    new, down = sharpened(old, None, beta), part_of(rows, site.queries, "rows")
    changes, firsts = [], []
    for band in bands(len(down), site.q.shape[:2].numel() * site.keys):
        part = down[band.start : band.stop]
        seen = site.terms.span(part, site.keys)
        h = widen(cut(site.out, -2, part))
        changes.append(widen(attend_rows(new, part, seen)[0]) - h)
        firsts.append((beta - 1) * _slope(site, part, seen, h))
    return Move(change=torch.cat(changes, -2), first=torch.cat(firsts, -2))


def if_key_jittered(site: Site, key: int, sigma: float) -> Shake:
    """What noise of size sigma on one key does to every output.

    mean Δh ≈ ½ τ² w (1 - 2w) (v - h),   rms |Δh| ≈ τ w |v - h|,   τ = sigma · scale · |q|

    The exact pair is an integral over one number, the noise of the score, done by quadrature (good
    to 1e-5 while τ is below about 3). With a softcap both follow its bend.

    >>> site = rg.site_of(torch.ones(1, 1), torch.zeros(2, 1), torch.tensor([[0.0], [4.0]]))
    >>> rg.if_key_jittered(site, 1, sigma=0.1).spread.flatten()  # 0.1 · ½ · 2
    tensor([0.1000])
    """
    _need(site)
    check_finite("sigma", sigma, 0)
    _need_dot(site)
    x, v = _column(site, key)
    dot, bend, turn = _dot_and_bends(site, key)
    tau = sigma * abs(site.terms.scale) * widen(site.q).norm(dim=-1)
    towards, w = v - widen(site.out), x.exp()
    mean = 0.5 * tau**2 * (bend**2 * w * (1 - 2 * w) + turn * w)
    nodes, mass = (torch.as_tensor(a, dtype=x.dtype, device=x.device) for a in _hermite())
    noisy = _capped(site, dot[..., None] + tau[..., None] * nodes)
    shift = noisy - _capped(site, dot)[..., None]
    gain = _gain(x[..., None], shift, site.lse[..., None])
    far = towards.norm(dim=-1)
    return Shake(
        mean=mean[..., None] * towards,
        spread=tau * bend * w * far,
        exact_mean=(gain @ mass)[..., None] * towards,
        exact_spread=(gain.square() @ mass).sqrt() * far,
    )


def if_query_jittered(site: Site, query: int, sigma: float) -> Shake:
    """What noise of size sigma on one query does to its own output; no other output moves.

    mean Δh ≈ ½ sigma² scale² Σ_j w_j |k_j - k̄|² (v_j - h),   k̄ = Σ_j w_j k_j
    rms |Δh| ≈ sigma · scale · |Σ_j w_j (v_j - h) (k_j - k̄)ᵀ|

    >>> keys = torch.tensor([[1.0], [-1.0]])
    >>> site = rg.site_of(torch.zeros(1, 1), keys, torch.tensor([[0.0], [4.0]]))
    >>> rg.if_query_jittered(site, 0, sigma=0.1).spread.flatten()  # 0.1 · (½ · 2 · 1 + ½ · 2 · 1)
    tensor([0.2000])
    """
    _need(site)
    check_finite("sigma", sigma, 0)
    _need_dot(site)
    query = index_of("query", query, site.queries)
    row = range(query, query + 1)
    w, _ = normalise(site.terms.tile(site.q, site.k, row), site.terms)  # (batch, head, 1, key)
    h, v = widen(cut(site.out, -2, row)), widen(spread(site.v, site.q))
    k = site.terms.scale * widen(spread(site.k, site.q))
    bend, turn = _bends(site, (widen(cut(site.q, -2, row)) @ k.mT)[..., 0, :, None])
    slopes = bend * k  # of every score, to the query
    middle = w @ slopes
    away, towards = slopes - middle, v - h
    swing = away.square().sum(-1) + turn[..., 0] * k.square().sum(-1)
    mean = (w[..., 0, :] * swing)[..., None, :] @ towards
    cross = (w.mT * towards).mT @ away
    if site.terms.sinks is not None:  # one more key, of slope 0 and value 0
        lost = 1 - w.sum(-1, keepdim=True)
        mean = mean - lost * middle.square().sum(-1, keepdim=True) * h
        cross = cross + lost * h.mT @ middle
    return Shake(mean=0.5 * sigma**2 * mean, spread=sigma * cross.norm(dim=(-1, -2))[..., None])


def _need(site: Site) -> None:
    check_site(site)
    site.need()


def _column(site: Site, key: int) -> tuple[Tensor, Tensor]:
    """log w of one key for every query, and its value beside every output."""
    if not 0 <= whole_number("key", key) < site.keys:
        raise ShapeError(f"key: needs 0 to {site.keys - 1}, got {key}")
    one = range(key, key + 1)
    scores = site.terms.tile(site.q, site.k, range(site.queries), one)[..., 0]
    x = scores - site.lse.masked_fill(site.lse == -torch.inf, 0)
    return x.clamp(max=0), widen(spread(cut(site.v, -2, one), site.q))


def _gain(x: Tensor, shift: Tensor, lse: Tensor) -> Tensor:
    """(w' - w) / (1 - w) when the score of weight w = exp(x) moves by `shift`."""
    rest = -torch.expm1(x)
    alone = _negligible(rest, lse)
    log_new = x + shift  # in logs: exp(shift) may overflow where the weight simply becomes one
    new = torch.exp(log_new - torch.logaddexp(torch.log(rest.masked_fill(alone, 1)), log_new))
    gain = (new.nan_to_num(nan=0.0) - x.exp()) / rest.masked_fill(alone, 1)
    return gain.masked_fill(alone, 0)


def _negligible(rest: Tensor, lse: Tensor) -> Tensor:
    """Whether what the others hold cannot be told from nothing."""
    return rest <= 32 * torch.finfo(rest.dtype).eps * (1 + lse.nan_to_num(neginf=0.0).abs())


def _slope(site: Site, rows: range, keys: range, h: Tensor) -> Tensor:
    """dh / dbeta at 1: the covariance of score and value under the weights."""
    scores = site.terms.tile(site.q, site.k, rows, keys)
    w, lse = normalise(scores, site.terms)
    drawn = w * scores.masked_fill(scores == -torch.inf, 0)
    mean = drawn.sum(-1, keepdim=True)
    if site.terms.sinks is not None:
        sinks = site.terms.sinks.to(lse.dtype)[:, None]
        mean = mean + (torch.exp(sinks - lse) * sinks)[..., None]
    return drawn @ widen(spread(cut(site.v, -2, keys), site.q)).to(w.dtype) - h * mean


def _dot_and_bends(site: Site, key: int) -> tuple[Tensor, Tensor, Tensor]:
    """scale · q · k of one key for every query, and the softcap's first and second derivative."""
    k = widen(spread(site.k[:, :, key : key + 1], site.q))
    dot = site.terms.scale * (widen(site.q) * k).sum(-1)
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
    nodes, mass = np.polynomial.hermite_e.hermegauss(NODES)
    return nodes, mass / mass.sum()


def _need_dot(site: Site) -> None:
    terms = site.terms
    if terms.score is not None or (terms.bias is not None and terms.bias.asks_query):
        raise ShapeError(
            f"site: needs scores that are dot products alone, got {site.name} with a score or bias "
            "that asks the query; try what_if with jitter_key or jitter_query"
        )
