"""The influence that callers see: one signature, several forms."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import BackendError, ShapeError
from regard.ops.autocast import without_autocast
from regard.ops.biases import Bias
from regard.ops.indices import resolve_slice
from regard.ops.influence import tiled
from regard.ops.influence.effect import AttentionRecord, Effect, RowBand
from regard.ops.influence.statistics import Influence
from regard.ops.masks import Mask
from regard.ops.survey.op import check_lse
from regard.ops.terms import ScoreFunction, make_terms

InfluenceBackend = Literal["auto", "reference", "tiled", "kernel"]


def influence(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    v: Float[Tensor, "*keys_batch key value"],
    out: Float[Tensor, "*batch query value"],
    lse: Float[Tensor, "*batch query"],
    *,
    effect: Effect = "remove",
    alpha: float = 2.0,
    mask: Mask | Bool[Tensor, "... _ _"] | None = None,
    bias: Bias | Float[Tensor, "... _ _"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    score: ScoreFunction | None = None,
    offset: int = 0,
    backend: InfluenceBackend = "auto",
) -> Influence:
    """What removing (or scaling) each key does to each output, in streaming passes over the map.

    remove:  e_ij = w / (1 - w) · |h_i - v_j|
    slope:   e_ij = w · |v_j - h_i|, the derivative with respect to the score
    scale:   e_ij = |w' - w| / (1 - w) · |v_j - h_i|, w' when key j is alpha times as long

    This replaces one forward pass per key by one pass for all. A key that is all a query may see
    leaves zeros when removed, so there the change is |h_i|.

    Where one key holds nearly all of the weight, as attention sinks do, 1 - w and h - v are lost in
    the rounding of `lse` and `out`. At most one key per row is above one half: its effect comes
    from the attention without it, e = w · |h' - v|, at the cost of about one more forward pass over
    the rows that have one. A half-precision `out` or `lse` is recomputed in float32 (another
    such pass). So e_ij is within 1e-3 of really removing the key in float64 however near w is to 1;
    where v_j nearly equals h_i, within 1e-6 · |h_i|. On CUDA the kernel makes the first pass for
    all rows at once, and of near values e_ij is within 1e-3 · w · |h_i|.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]])
    >>> out, lse = rg.attend(q, k, v)
    >>> rg.influence(q, k, v, out, lse).effect_of_key
    tensor([1., 1.])
    """
    terms = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap}
    terms |= {"sinks": sinks, "score": score, "offset": offset}
    seen = _seen(q, k, v, out, lse, effect, alpha, terms)
    return compute_influence(seen, effect, alpha, backend)


def influence_window(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    v: Float[Tensor, "*keys_batch key value"],
    out: Float[Tensor, "*batch query value"],
    lse: Float[Tensor, "*batch query"],
    *,
    rows: slice | int = slice(None),
    keys: slice | int = slice(None),
    effect: Effect = "remove",
    alpha: float = 2.0,
    **terms,
) -> Float[Tensor, "*batch row column"]:
    """The exact effects e_ij of some keys on some queries; takes mask, bias … as `influence`.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]])
    >>> out, lse = rg.attend(q, k, v)
    >>> rg.influence_window(q, k, v, out, lse, effect="slope")
    tensor([[0.5000, 0.5000]])
    """
    seen = _seen(q, k, v, out, lse, effect, alpha, terms)
    return compute_influence_window(seen, rows, keys, effect, alpha)


@without_autocast
def compute_influence(
    record: AttentionRecord, effect: Effect, alpha: float = 2.0, backend: InfluenceBackend = "auto"
) -> Influence:
    """The influence on terms already made."""
    with torch.no_grad():
        match backend:
            case "reference":
                return _by_map(record, effect, alpha)
            case "tiled":
                return tiled.influence(record, effect, alpha)
            case "auto" if not record.q.is_cuda:
                return tiled.influence(record, effect, alpha)
            case "auto" | "kernel":
                return _by_kernel(record, effect, alpha, named=backend == "kernel")
            case other:
                raise BackendError(f"backend: needs auto, reference, tiled or kernel, got {other!r}")


@without_autocast
def compute_influence_window(
    record: AttentionRecord,
    rows: slice | int,
    keys: slice | int,
    effect: Effect,
    alpha: float = 2.0,
) -> Tensor:
    """The window on terms already made."""
    down = resolve_slice(rows, record.q.shape[-2], "rows")
    across = resolve_slice(keys, record.k.shape[-2], "keys")
    with torch.no_grad():
        band = RowBand(record, down)
        e = band.effects(across, effect, alpha)
        dominant = band.dominant_effects(effect)
        if dominant is not None:  # those in this window: only its keys were searched
            here = band.dominant_key >= 0
            e[here, band.dominant_key[here] - across.start] = dominant[here].to(e.dtype)
        return e


def _by_map(seen: AttentionRecord, effect: Effect, alpha: float) -> Influence:
    rows, keys = range(seen.q.shape[-2]), range(seen.k.shape[-2])
    found = tiled.zero_influence(seen)
    if rows and keys:
        band = RowBand(seen, rows)
        tiled.add_tile(found, band.effects(keys, effect, alpha), rows, keys)
        tiled.add_dominant(found, band, effect)
    return found


def _by_kernel(seen: AttentionRecord, effect: Effect, alpha: float, named: bool) -> Influence:
    from regard.ops.influence import kernel  # imports Triton, so only when it will run

    reason = kernel.refusal(seen, effect)
    if reason and named:
        raise BackendError(f"backend: kernel cannot run here, {reason}; try backend='auto'")
    return tiled.influence(seen, effect, alpha) if reason else kernel.influence(seen, effect)


def _seen(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, effect: str, alpha: float, terms: dict
) -> AttentionRecord:
    check_lse(q, lse)
    if effect not in ("remove", "slope", "scale"):
        raise ShapeError(f"effect: needs remove, slope or scale, got {effect!r}")
    if effect == "scale" and terms.get("score") is not None:
        raise ShapeError("effect: needs a dot product to scale a key, got a score of its own")
    if not (isinstance(alpha, int | float) and abs(alpha) < torch.inf):
        raise ShapeError(f"alpha: needs a finite number, got {alpha!r}")
    if out.shape != (*q.shape[:-1], v.shape[-1]):
        raise ShapeError(
            f"out: needs one output for each query, {(*q.shape[:-1], v.shape[-1])}, "
            f"got {tuple(out.shape)}; try the first result of attend"
        )
    return AttentionRecord(q, k, v, out, lse, make_terms(q, k, **terms))
