"""Influence from the whole map: the reference for the streaming backends."""

from regard.ops.influence import tiled
from regard.ops.influence.effect import AttentionRecord, Effect, Influence


def influence(record: AttentionRecord, effect: Effect, alpha: float) -> Influence:
    """All pairs of queries and keys as one tile."""
    rows, keys = range(record.q.shape[-2]), range(record.k.shape[-2])
    return tiled.add_tiles(record, effect, alpha, [(rows, keys)] if rows and keys else [])
