"""Influence in plain torch, tile by tile."""

from collections.abc import Iterable
from itertools import groupby

import torch
from torch import Tensor

from regard.ops.influence.effect import AttentionRecord, Effect, Influence, RowBand
from regard.ops.influence.fast_path import FastPath
from regard.ops.survey.peak_search import group_size
from regard.ops.terms import upcast
from regard.ops.tiling import iter_tiles


def influence(record: AttentionRecord, effect: Effect, alpha: float) -> Influence:
    """Stream over the visible tiles."""
    fast = FastPath(record) if effect == "remove" else None
    return add_tiles(record, effect, alpha, iter_tiles(record.q, record.k, record.terms), fast)


def add_tiles(
    record: AttentionRecord,
    effect: Effect,
    alpha: float,
    tiles: Iterable[tuple[range, range]],
    fast: FastPath | None = None,
) -> Influence:
    """The totals of these tiles, ordered by rows, and of the dominant keys in them."""
    like = upcast(record.lse)
    on_query = like.new_zeros(record.q.shape[:-1])
    of_key = like.new_zeros((*record.q.shape[:-2], record.k.shape[-2]))
    strongest, strongest_key = on_query.clone(), torch.full_like(on_query, -1, dtype=torch.long)
    for rows, row_tiles in groupby(tiles, key=lambda tile: tile[0]):
        band, at = RowBand(record, rows), slice(rows.start, rows.stop)
        best = strongest[..., at], strongest_key[..., at]
        if fast:
            fast.begin(band)
        for _, keys in row_tiles:
            e = fast.effects(keys) if fast else None
            e = band.effects(keys, effect, alpha) if e is None else e
            on_query[..., at] += e.sum(-1)
            of_key[..., keys.start : keys.stop] += e.sum(-2)
            # an index is slow: only in rows with a new maximum; of equal ones the first key stays
            groups = e.flatten(0, -2).unflatten(-1, (-1, group_size(len(keys))))
            tops = groups.amax(-1)
            value = tops.amax(-1).view(e.shape[:-1]).to(like.dtype)
            is_new = value > best[0]
            if is_new.any():
                new = is_new.flatten().nonzero()[:, 0]
                group = tops[new].max(-1).indices
                inside = groups[new, group].max(-1).indices
                best[1][is_new] = group * groups.shape[-1] + inside + keys.start
            torch.maximum(value, best[0], out=best[0])
        if (e := band.dominant_effects(effect)) is not None:
            e = e.to(like.dtype)
            on_query[..., at] += e
            of_key.scatter_add_(-1, band.dominant_key.clamp(min=0), e)
            _update_strongest(*best, e, band.dominant_key)
    return Influence(
        strongest=strongest,
        strongest_key=strongest_key,
        effect_on_query=on_query,
        effect_of_key=of_key,
        rounding=record.rounding(),
    )


def _update_strongest(strongest: Tensor, strongest_key: Tensor, value: Tensor, key: Tensor) -> None:
    # of equal effects the first key stays
    tied = (value == strongest) & (key < strongest_key)
    strongest_key.copy_(torch.where((value > strongest) | tied, key, strongest_key))
    torch.maximum(value, strongest, out=strongest)
