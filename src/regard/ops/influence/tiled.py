"""Influence in plain torch, tile by tile; with tiles as large as the map it is the reference."""

from itertools import groupby

import torch
from torch import Tensor

from regard.ops.influence.effect import AttentionRecord, Effect, RowBand
from regard.ops.influence.statistics import Influence
from regard.ops.terms import upcast
from regard.ops.tiling import iter_tiles


def influence(record: AttentionRecord, effect: Effect, alpha: float) -> Influence:
    """Walk over the tiles that can be seen; each adds to the totals, and so do dominant keys."""
    found = zero_influence(record)
    for rows, tiles in groupby(
        iter_tiles(record.q, record.k, record.terms), key=lambda tile: tile[0]
    ):
        band = RowBand(record, rows)
        for _, keys in tiles:
            add_tile(found, band.effects(keys, effect, alpha), rows, keys)
        add_dominant(found, band, effect)
    return found


def zero_influence(record: AttentionRecord) -> Influence:
    """Nothing found yet."""
    like = upcast(record.lse)
    rows = like.new_zeros(record.q.shape[:-1])
    keys = like.new_zeros((*record.q.shape[:-2], record.k.shape[-2]))
    none = torch.full_like(rows, -1, dtype=torch.long)
    return Influence(
        strongest=rows, strongest_key=none, effect_on_query=rows.clone(), effect_of_key=keys
    )


def add_tile(totals: Influence, e: Tensor, rows: range, keys: range) -> None:
    """Count one tile."""
    at = slice(rows.start, rows.stop)
    totals.effect_on_query[..., at] += e.sum(-1)
    totals.effect_of_key[..., keys.start : keys.stop] += e.sum(-2)
    value, place = e.to(totals.effect_on_query.dtype).max(-1)
    _keep_larger(totals, value, place + keys.start, at)


def add_dominant(totals: Influence, band: RowBand, effect: Effect) -> None:
    """Count the dominant keys of a band, one per row at most."""
    e = band.dominant_effects(effect)
    if e is None:
        return
    e = e.to(totals.effect_on_query.dtype)
    at = slice(band.rows.start, band.rows.stop)
    totals.effect_on_query[..., at] += e
    totals.effect_of_key.scatter_add_(-1, band.dominant_key.clamp(min=0), e)
    _keep_larger(totals, e, band.dominant_key, at)


def _keep_larger(found: Influence, value: Tensor, key: Tensor, at: slice) -> None:
    strongest, strongest_key = found.strongest[..., at], found.strongest_key[..., at]
    # of equal effects the first key stays
    tied = (value == strongest) & (key < strongest_key)
    strongest_key.copy_(torch.where((value > strongest) | tied, key, strongest_key))
    torch.maximum(value, strongest, out=strongest)
