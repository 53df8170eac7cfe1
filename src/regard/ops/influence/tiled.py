"""Influence in plain torch, tile by tile, with a fast path where nothing cancels."""

import math
from collections.abc import Iterable
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.grid import slice_axis
from regard.ops.influence.effect import (
    CANCELLATION_RATIO,
    DOMINANT_WEIGHT,
    AttentionRecord,
    Effect,
    Influence,
    RowBand,
)
from regard.ops.survey.fast_path import group_size
from regard.ops.terms import LOG2E, finite_lse, grouped_dot, upcast
from regard.ops.tiling import iter_tiles


class FastPath:
    """Effects of removing each key, e = |h - v| / (1 / w - 1), for tiles that allow it.

    Two products give log₂ (1 / w) and |h - v|² themselves: lse, |h|² and |v|² are further features.
    A tile with a dominant key or a value close to an output is left to `RowBand`, as are the other
    terms of a score than a mask.
    """

    def __init__(self, record: AttentionRecord):
        self.record, self.terms = record, record.terms
        k, v = upcast(record.k), upcast(record.v)
        dtypes = {x.dtype for x in (upcast(record.q), k, v, upcast(record.out), upcast(record.lse))}
        terms = (self.terms.score, self.terms.softcap, self.terms.bias)
        self.can_run = len(dtypes) == 1 and all(x is None for x in terms)
        if self.can_run:
            self.k = F.pad(k, (0, 1), value=1.0)
            square = v.square().sum(-1, keepdim=True)
            self.v = torch.cat([v, torch.ones_like(square), square], -1)
            self.memory = k.new_empty(2, 0)

    def begin(self, band: RowBand) -> None:
        """Prepare the queries and outputs of a band."""
        self.band = band
        if not self.can_run:
            return
        q, h = upcast(slice_axis(self.record.q, -2, band.rows)), upcast(band.out)
        # powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
        q, lse = -self.terms.scale * LOG2E * q, LOG2E * finite_lse(upcast(band.lse))
        self.q = torch.cat([q, lse[..., None]], -1)
        square = h.square().sum(-1, keepdim=True)
        self.h = torch.cat([-2 * h, square, torch.ones_like(square)], -1)
        self.near = 2 * CANCELLATION_RATIO * square[..., 0]

    def effects(self, keys: range) -> Tensor | None:
        """The effects of a tile, valid until the next; None if `RowBand` has to compute it."""
        if not self.can_run:
            return None
        size = self.q.shape[:-1].numel() * len(keys)
        if self.memory.shape[1] < size:
            self.memory = self.memory.new_empty(2, size)
        x = grouped_dot(self.q, slice_axis(self.k, -2, keys), self.memory[0])  # log₂ (1 / w)
        grid, mask = self.terms.grid(self.q, self.record.k, self.band.rows, keys), self.terms.mask
        if not (mask is None or mask.is_full(grid.query_positions, keys)):
            x.masked_fill_(~mask.tile(grid), torch.inf)
        # False for NaN, which then reaches the result
        if (x.amin(-1) < -math.log2(DOMINANT_WEIGHT)).any():
            return None
        square = grouped_dot(self.h, slice_axis(self.v, -2, keys), self.memory[1])
        if (square.amin(-1) < self.near).any():
            return None
        return square.sqrt_().div_(x.exp2_().sub_(1))


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
