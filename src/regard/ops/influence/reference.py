"""Influence from the whole map: the reference for the streaming backends."""

from regard.ops.influence import tiled
from regard.ops.influence.effect import AttentionRecord, Effect, RowBand
from regard.ops.influence.statistics import Influence


def influence(record: AttentionRecord, effect: Effect, alpha: float) -> Influence:
    """All pairs of queries and keys as one tile."""
    rows, keys = range(record.q.shape[-2]), range(record.k.shape[-2])
    totals = tiled.zero_influence(record)
    if rows and keys:
        band = RowBand(record, rows)
        tiled.add_tile(totals, band.effects(keys, effect, alpha), rows, keys)
        tiled.add_dominant(totals, band, effect)
    return totals
