"""The exact weights of a rectangle of the attention map, or pooled cells of it."""

from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.autocast import without_autocast
from regard.ops.indices import as_int_pair, resolve_slice
from regard.ops.terms import TermOptions, Terms, check_lse, make_terms, weights_from_scores
from regard.ops.tiling import row_bands

PoolReduce = Literal["sum", "mean", "max"]


def window(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    lse: Float[Tensor, "*batch query"],
    *,
    rows: slice | int = slice(None),
    keys: slice | int = slice(None),
    pool: tuple[int, int] = (1, 1),
    reduce: PoolReduce = "mean",
    **terms: Unpack[TermOptions],
) -> Float[Tensor, "*batch row column"]:
    """The exact attention weights of a range of rows and keys, optionally pooled.

    w_ij = exp(s_ij - lse_i);   pooled by sum, mean or max over each cell

    The cost grows with the window, not with the map.

    Args:
        q: queries of the attention.
        k: its keys.
        lse: its log-sum-exp, the second result of `attend`.
        rows: the queries of the window.
        keys: the keys of the window.
        pool: rows and keys per cell; the last cells may be smaller.
        reduce: how a cell is pooled.
        **terms: the terms of the attention: mask, bias, …; see `TermOptions`.

    >>> q, k, v = torch.zeros(6, 2), torch.zeros(4, 2), torch.zeros(4, 2)
    >>> _, lse = rg.attend(q, k, v)
    >>> rg.window(q, k, lse, rows=slice(0, 4), pool=(2, 4), reduce="sum")
    tensor([[2.],
            [2.]])
    """
    check_lse(q, lse)
    return compute_window(q, k, lse, make_terms(q, k, **terms), rows, keys, pool, reduce)


@without_autocast
def compute_window(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    terms: Terms,
    rows: slice | int,
    keys: slice | int,
    pool: tuple[int, int] = (1, 1),
    reduce: PoolReduce = "mean",
) -> Tensor:
    """`window` with checked terms."""
    high, wide = pool = as_int_pair("pool", pool)
    if min(pool) < 1:
        raise ShapeError(f"pool: needs 1 or more, got {pool}")
    if reduce not in ("sum", "mean", "max"):
        raise ShapeError(f"reduce: needs sum, mean or max, got {reduce!r}")
    row_range = resolve_slice(rows, q.shape[-2], "rows")
    key_range = resolve_slice(keys, k.shape[-2], "keys")
    bands = row_bands(-(-len(row_range) // high), q.shape[:-2].numel() * len(key_range) * high)
    parts = []
    for cells in bands:
        band = row_range[cells.start * high : cells.stop * high]
        scores = terms.score_tile(q, k, band, key_range)
        w = weights_from_scores(scores, lse[..., band.start : band.stop])
        parts.append(w if pool == (1, 1) else _pool(_pool(w, -1, wide, reduce), -2, high, reduce))
    return torch.cat(parts, -2)


def _pool(w: Tensor, axis: int, size: int, reduce: PoolReduce) -> Tensor:
    """Pool cells of `size` along one axis; the last may be smaller."""
    missing = -w.shape[axis] % size
    w = F.pad(w, (0, missing) if axis == -1 else (0, 0, 0, missing))  # weights are never negative
    cells = w.unflatten(axis, (-1, size))
    if reduce == "max":
        return cells.amax(axis)
    counts = torch.full((cells.shape[axis - 1],), float(size), dtype=w.dtype, device=w.device)
    counts[-1] -= missing
    total = cells.sum(axis)
    return total if reduce == "sum" else total / (counts if axis == -1 else counts[:, None])
