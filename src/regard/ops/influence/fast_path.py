"""Effects of removing keys where nothing cancels, in half the passes over a tile."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.grid import slice_axis
from regard.ops.influence.effect import (
    CANCELLATION_RATIO,
    DOMINANT_WEIGHT,
    AttentionRecord,
    RowBand,
)
from regard.ops.terms import LOG2E, finite_lse, grouped_dot, upcast


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
