"""Influence in plain torch, tile by tile; with tiles as large as the map it is the reference."""

import torch
from torch import Tensor

from regard.ops.influence.effect import Deed, Seen, effect
from regard.ops.influence.statistics import Influence
from regard.ops.survey.walk import walk


def influence(seen: Seen, deed: Deed, alpha: float) -> Influence:
    """Walk over the tiles that can be seen; each adds to the totals."""
    found = start(seen)
    for rows, keys in walk(seen.q, seen.k, seen.terms):
        add(found, effect(seen, rows, keys, deed, alpha), rows, keys)
    return found


def start(seen: Seen) -> Influence:
    """Nothing found yet."""
    rows = seen.lse.new_zeros(seen.q.shape[:-1])
    keys = seen.lse.new_zeros((*seen.q.shape[:-2], seen.k.shape[-2]))
    none = torch.full_like(rows, -1, dtype=torch.long)
    return Influence(strongest=rows, strongest_key=none, felt=rows.clone(), caused=keys)


def add(found: Influence, e: Tensor, rows: range, keys: range) -> None:
    """Count one tile."""
    at = slice(rows.start, rows.stop)
    found.felt[..., at] += e.sum(-1)
    found.caused[..., keys.start : keys.stop] += e.sum(-2)
    value, place = e.max(-1)
    new = value > found.strongest[..., at]
    found.strongest_key[..., at] = torch.where(
        new, place + keys.start, found.strongest_key[..., at]
    )
    found.strongest[..., at] = torch.maximum(value, found.strongest[..., at])
