"""Influence in plain torch, tile by tile; with tiles as large as the map it is the reference."""

from itertools import groupby

import torch
from torch import Tensor

from regard.ops.influence.effect import Band, Deed, Seen
from regard.ops.influence.statistics import Influence
from regard.ops.survey.walk import walk
from regard.ops.terms import widen


def influence(seen: Seen, deed: Deed, alpha: float) -> Influence:
    """Walk over the tiles that can be seen; each adds to the totals, and so do dominant keys."""
    found = start(seen)
    for rows, tiles in groupby(walk(seen.q, seen.k, seen.terms), key=lambda tile: tile[0]):
        band = Band(seen, rows)
        for _, keys in tiles:
            add(found, band.effects(keys, deed, alpha), rows, keys)
        add_dominant(found, band, deed)
    return found


def start(seen: Seen) -> Influence:
    """Nothing found yet."""
    like = widen(seen.lse)
    rows = like.new_zeros(seen.q.shape[:-1])
    keys = like.new_zeros((*seen.q.shape[:-2], seen.k.shape[-2]))
    none = torch.full_like(rows, -1, dtype=torch.long)
    return Influence(strongest=rows, strongest_key=none, felt=rows.clone(), caused=keys)


def add(found: Influence, e: Tensor, rows: range, keys: range) -> None:
    """Count one tile."""
    at = slice(rows.start, rows.stop)
    found.felt[..., at] += e.sum(-1)
    found.caused[..., keys.start : keys.stop] += e.sum(-2)
    value, place = e.to(found.felt.dtype).max(-1)
    _keep_larger(found, value, place + keys.start, at)


def add_dominant(found: Influence, band: Band, deed: Deed) -> None:
    """Count the dominant keys of a band, one per row at most."""
    e = band.of_dominant(deed)
    if e is None:
        return
    e = e.to(found.felt.dtype)
    at = slice(band.rows.start, band.rows.stop)
    found.felt[..., at] += e
    found.caused.scatter_add_(-1, band.key.clamp(min=0), e)
    _keep_larger(found, e, band.key, at)


def _keep_larger(found: Influence, value: Tensor, key: Tensor, at: slice) -> None:
    strongest, strongest_key = found.strongest[..., at], found.strongest_key[..., at]
    # of equal effects the first key stays
    tied = (value == strongest) & (key < strongest_key)
    strongest_key.copy_(torch.where((value > strongest) | tied, key, strongest_key))
    torch.maximum(value, strongest, out=strongest)
