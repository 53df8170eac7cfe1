"""The public influence functions: one signature, several backends."""

from functools import partial
from typing import Literal, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.autocast import without_autocast
from regard.ops.indices import resolve_slice
from regard.ops.influence.effect import (
    AttentionRecord,
    Effect,
    FastPath,
    Influence,
    RowBand,
    add_tiles,
)
from regard.ops.kernels import load_kernel, prepare_kernel
from regard.ops.terms import TermOptions, check_lse, make_terms
from regard.ops.tiling import iter_tiles

InfluenceBackend = Literal["auto", "reference", "tiled", "kernel"]


@without_autocast
def influence(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    v: Float[Tensor, "*keys_batch key value"],
    out: Float[Tensor, "*batch query value"],
    lse: Float[Tensor, "*batch query"],
    *,
    effect: Effect = "remove",
    alpha: float = 2.0,
    backend: InfluenceBackend = "auto",
    **terms: Unpack[TermOptions],
) -> Influence:
    """The effect of removing or scaling each key on each output, in streaming passes over the map.

    remove:  e_ij = w / (1 - w) · |h_i - v_j|
    slope:   e_ij = w · |v_j - h_i|, the derivative with respect to the score
    scale:   e_ij = |w' - w| / (1 - w) · |v_j - h_i|, w' with key j multiplied by alpha

    This replaces one forward pass per key by one pass for all. If a query sees one key only,
    removing it leaves zeros, so the effect is |h_i|.

    Where one key holds nearly all of the weight, as attention sinks do, 1 - w and h - v are lost in
    the rounding of `lse` and `out`; the effect of a key with more than half of the weight comes
    from the attention without it, at the cost of about one more forward pass over such rows. A
    half-precision `out` or `lse` is recomputed in float32. So e_ij is within 1e-3 of removing the
    key in float64; where v_j nearly equals h_i, what it may be off by beyond that is in `rounding`:
    4e-6 · |h_i| (1e-3 · |h_i| on CUDA).

    Args:
        q, k, v: queries, keys and values of an attention.
        out, lse: the results of `attend`.
        effect: what is done to a key.
        alpha: factor of the key for effect="scale".
        backend: a backend requested by name runs or raises; there is no silent fallback.
        **terms: the terms of the attention: mask, bias, …; see `TermOptions`.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]])
    >>> out, lse = rg.attend(q, k, v)
    >>> rg.influence(q, k, v, out, lse).effect_of_key
    tensor([1., 1.])
    """
    record = AttentionRecord(q, k, v, out, lse, make_terms(q, k, **terms))
    _check(record, effect, alpha)
    with torch.no_grad():
        kernel = partial(load_kernel, "influence.kernel")
        prepared = prepare_kernel(backend, q.is_cuda, lambda: kernel().prepare(record, effect))
        if prepared is not None:
            return kernel().influence(record, effect, prepared)
        if backend == "reference":  # all pairs of queries and keys as one tile
            pairs = range(q.shape[-2]), range(k.shape[-2])
            return add_tiles(record, effect, alpha, [pairs] if all(pairs) else [])
        fast = FastPath(record) if effect == "remove" else None
        return add_tiles(record, effect, alpha, iter_tiles(q, k, record.terms), fast)


@without_autocast
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
    **terms: Unpack[TermOptions],
) -> Float[Tensor, "*batch row column"]:
    """The exact effects e_ij of a range of keys on a range of queries.

    Args:
        q, k, v, out, lse: the attention, as for `influence`.
        rows: the queries of the window.
        keys: the keys of the window.
        effect: what is done to a key.
        alpha: factor of the key for effect="scale".
        **terms: the terms of the attention: mask, bias, …; see `TermOptions`.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]])
    >>> out, lse = rg.attend(q, k, v)
    >>> rg.ops.influence_window(q, k, v, out, lse, effect="slope")
    tensor([[0.5000, 0.5000]])
    """
    record = AttentionRecord(q, k, v, out, lse, make_terms(q, k, **terms))
    _check(record, effect, alpha)
    key_range = resolve_slice(keys, k.shape[-2], "keys")
    with torch.no_grad():
        band = RowBand(record, resolve_slice(rows, q.shape[-2], "rows"))
        e = band.effects(key_range, effect, alpha)
        dominant = band.dominant_effects(effect)
        if dominant is not None:  # only keys of this window were searched
            here = band.dominant_key >= 0
            e[here, band.dominant_key[here] - key_range.start] = dominant[here].to(e.dtype)
        return e


def _check(record: AttentionRecord, effect: str, alpha: float) -> None:
    check_lse(record.q, record.lse)
    if effect not in get_args(Effect):
        raise ShapeError(f"effect: needs remove, slope or scale, got {effect!r}")
    if effect == "scale" and record.terms.score is not None:
        raise ShapeError("effect: needs a dot product to scale a key, got a score function")
    if not (isinstance(alpha, int | float) and abs(alpha) < torch.inf):
        raise ShapeError(f"alpha: needs a finite number, got {alpha!r}")
    shape = (*record.q.shape[:-1], record.v.shape[-1])
    if record.out.shape != shape:
        raise ShapeError(
            f"out: needs one output for each query, {shape}, got {tuple(record.out.shape)}; "
            "try the first result of attend"
        )
