"""Attention by its equation: the whole map, bands of rows, and exact windows of the weights."""

from functools import partial
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.errors import ShapeError
from regard.ops.autocast import without_autocast
from regard.ops.grid import slice_axis
from regard.ops.indices import as_int_pair, resolve_slice
from regard.ops.intercept import AttentionCall, AttentionResult
from regard.ops.terms import (
    LOG2E,
    TermOptions,
    Terms,
    check_lse,
    finite_lse,
    make_terms,
    repeat_kv,
    upcast,
    weights_from_scores,
)
from regard.ops.tiling import CACHE_TILE, GPU_TILE, row_bands


def attend(call: AttentionCall) -> AttentionResult:
    """out = softmax(scores) v and lse = log Σ exp(scores), all rows at once."""
    return attend_rows(call, range(call.q.shape[-2]), range(call.k.shape[-2]))


def attend_rows(call: AttentionCall, rows: range, keys: range) -> AttentionResult:
    """`attend` for a range of rows; `keys` must hold all keys visible to them."""
    w, lse = softmax_with_lse(call.terms.score_tile(call.q, call.k, rows, keys), call.terms)
    w = F.dropout(w, call.dropout)
    v = repeat_kv(slice_axis(call.v, -2, keys), call.q)
    return (w @ v.to(w.dtype)).to(call.v.dtype), lse


def attend_in_bands(call: AttentionCall) -> AttentionResult:
    """`attend` in memory linear in the sequence length; the backward pass recomputes each band."""
    keys, needs_grad = call.k.shape[-2], torch.is_grad_enabled()
    results = []
    for rows in row_bands(call.q.shape[-2], call.q.shape[:-2].numel() * keys):
        compute = partial(attend_rows, call, rows, call.terms.key_span(rows, keys))
        results.append(checkpoint(compute, use_reentrant=False) if needs_grad else compute())
    outs, lses = zip(*results, strict=True)
    return torch.cat(outs, -2), torch.cat(lses, -1)


def softmax_with_lse(scores: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """Weights w = exp(scores - lse), and lse; 0 and -inf in a row without visible keys."""
    if not scores.shape[-1]:
        lse = scores.new_full(scores.shape[:-1], -torch.inf)
        return scores, terms.with_sinks(lse)
    empty = (scores == -torch.inf).all(-1)
    # filled before and masked after, so that no 0 · inf reaches the gradient
    lse = scores.masked_fill(empty[..., None], 0).logsumexp(-1).masked_fill(empty, -torch.inf)
    lse = terms.with_sinks(lse)
    return weights_from_scores(scores, lse), lse


@without_autocast
def attention_weights(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    **terms: Unpack[TermOptions],
) -> Float[Tensor, "*batch query key"]:
    """The whole attention map, for short inputs; `TermOptions` lists the keyword arguments.

    w_ij = exp(s_ij - lse_i); each row sums to one, less the share of the sinks

    >>> attention_weights(torch.zeros(1, 2), torch.zeros(4, 2))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    checked = make_terms(q, k, **terms)
    return softmax_with_lse(checked.score_tile(q, k), checked)[0]


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
        q, k, lse: queries and keys of an attention, and the second result of `attend`.
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
    tensors = (q, k, lse, *terms.trainable_tensors)
    learns = terms.score is not None or any(x.requires_grad for x in tensors)
    if torch.is_grad_enabled() and learns and pool == (1, 1):  # slices of a result are slow there
        scores = terms.score_tile(q, k, row_range, key_range)
        return weights_from_scores(scores, lse[..., row_range.start : row_range.stop])
    # the cells, in tiles that fit the cache; those without visible keys stay 0
    batch, finite = q.shape[:-2], finite_lse(lse)[..., None]
    dtype = torch.promote_types(upcast(q).dtype, lse.dtype)
    shape = -(-len(row_range) // high), -(-len(key_range) // wide)
    cells = q.new_zeros((*batch, *shape), dtype=dtype)
    tile = GPU_TILE if q.is_cuda else CACHE_TILE
    across = max(1, tile.keys // wide) * wide
    down = tile.weights // max(1, batch.numel() * min(across, len(key_range)))
    down = max(1, down // high) * high
    in_place = not (torch.is_grad_enabled() and learns) and lse.dtype == dtype
    size = batch.numel() * min(down, len(row_range)) * min(across, len(key_range))
    buffer = q.new_empty(size, dtype=dtype) if in_place else None
    for top in range(0, len(row_range), down):
        band = row_range[top : top + down]
        span = terms.key_span(band, k.shape[-2])
        start = max(0, span.start - key_range.start) // wide * wide
        for left in range(start, min(len(key_range), span.stop - key_range.start), across):
            scores = terms.score_tile(q, k, band, key_range[left : left + across], buffer=buffer)
            lse_rows = finite[..., band.start : band.stop, :]
            x = scores.sub_(lse_rows) if in_place else scores - lse_rows
            # powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
            w = x.mul_(LOG2E).exp2_()
            # rows first: this reads memory in order and leaves little for the other sum
            w = w if pool == (1, 1) else _pool(_pool(w, -2, high, reduce), -1, wide, reduce)
            i, j = top // high, left // wide
            cells[..., i : i + w.shape[-2], j : j + w.shape[-1]] = w
    return cells


def _pool(w: Tensor, axis: int, size: int, reduce: PoolReduce) -> Tensor:
    """Pool cells of `size` along one axis; the last may be smaller."""
    missing = -w.shape[axis] % size
    if missing:  # weights are never negative
        w = F.pad(w, (0, missing) if axis == -1 else (0, 0, 0, missing))
    cells = w.unflatten(axis, (-1, size))
    if reduce == "max":
        return cells.amax(axis)
    counts = torch.full((cells.shape[axis - 1],), float(size), dtype=w.dtype, device=w.device)
    counts[-1] -= missing
    total = cells.sum(axis)
    return total if reduce == "sum" else total / (counts if axis == -1 else counts[:, None])
