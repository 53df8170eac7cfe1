"""Influence in plain torch, tile by tile."""

from itertools import groupby

import torch
from torch import Tensor

from regard.ops.influence.effect import AttentionRecord, Effect, RowBand
from regard.ops.influence.statistics import Influence
from regard.ops.terms import upcast
from regard.ops.tiling import iter_tiles


def influence(record: AttentionRecord, effect: Effect, alpha: float) -> Influence:
    """Stream over the visible tiles; each adds to the totals, and so do dominant keys."""
    totals = zero_influence(record)
    for rows, tiles in groupby(
        iter_tiles(record.q, record.k, record.terms), key=lambda tile: tile[0]
    ):
        band = RowBand(record, rows)
        for _, keys in tiles:
            add_tile(totals, band.effects(keys, effect, alpha), rows, keys)
        add_dominant(totals, band, effect)
    return totals


def zero_influence(record: AttentionRecord) -> Influence:
    """Totals before any tile is added."""
    like = upcast(record.lse)
    rows = like.new_zeros(record.q.shape[:-1])
    keys = like.new_zeros((*record.q.shape[:-2], record.k.shape[-2]))
    none = torch.full_like(rows, -1, dtype=torch.long)
    return Influence(
        strongest=rows, strongest_key=none, effect_on_query=rows.clone(), effect_of_key=keys
    )


def add_tile(totals: Influence, e: Tensor, rows: range, keys: range) -> None:
    """Add one tile to the totals."""
    at = slice(rows.start, rows.stop)
    totals.effect_on_query[..., at] += e.sum(-1)
    totals.effect_of_key[..., keys.start : keys.stop] += e.sum(-2)
    value, index = e.to(totals.effect_on_query.dtype).max(-1)
    _update_strongest(totals, value, index + keys.start, at)


def add_dominant(totals: Influence, band: RowBand, effect: Effect) -> None:
    """Add the dominant keys of a band to the totals."""
    e = band.dominant_effects(effect)
    if e is None:
        return
    e = e.to(totals.effect_on_query.dtype)
    at = slice(band.rows.start, band.rows.stop)
    totals.effect_on_query[..., at] += e
    totals.effect_of_key.scatter_add_(-1, band.dominant_key.clamp(min=0), e)
    _update_strongest(totals, e, band.dominant_key, at)


def _update_strongest(totals: Influence, value: Tensor, key: Tensor, at: slice) -> None:
    strongest, strongest_key = totals.strongest[..., at], totals.strongest_key[..., at]
    # of equal effects the first key stays
    tied = (value == strongest) & (key < strongest_key)
    strongest_key.copy_(torch.where((value > strongest) | tied, key, strongest_key))
    torch.maximum(value, strongest, out=strongest)
