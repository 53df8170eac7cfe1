"""Influence in plain torch, tile by tile."""

from collections.abc import Iterable
from itertools import groupby

import torch
from torch import Tensor

from regard.ops.influence.effect import AttentionRecord, Effect, Influence, RowBand
from regard.ops.terms import upcast
from regard.ops.tiling import iter_tiles


def influence(record: AttentionRecord, effect: Effect, alpha: float) -> Influence:
    """Stream over the visible tiles."""
    return add_tiles(record, effect, alpha, iter_tiles(record.q, record.k, record.terms))


def add_tiles(
    record: AttentionRecord, effect: Effect, alpha: float, tiles: Iterable[tuple[range, range]]
) -> Influence:
    """The totals of these tiles, ordered by rows, and of the dominant keys in them."""
    like = upcast(record.lse)
    on_query = like.new_zeros(record.q.shape[:-1])
    of_key = like.new_zeros((*record.q.shape[:-2], record.k.shape[-2]))
    strongest, strongest_key = on_query.clone(), torch.full_like(on_query, -1, dtype=torch.long)
    for rows, row_tiles in groupby(tiles, key=lambda tile: tile[0]):
        band, at = RowBand(record, rows), slice(rows.start, rows.stop)
        best = strongest[..., at], strongest_key[..., at]
        for _, keys in row_tiles:
            e = band.effects(keys, effect, alpha)
            on_query[..., at] += e.sum(-1)
            of_key[..., keys.start : keys.stop] += e.sum(-2)
            value, index = e.to(like.dtype).max(-1)
            _update_strongest(*best, value, index + keys.start)
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
