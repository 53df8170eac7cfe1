"""Tiles whose scores are scale · q · k alone: a few heads at a time, so that they stay in cache."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import tiling
from regard.ops.grid import slice_axis
from regard.ops.survey.peak_search import PeakSearch
from regard.ops.survey.statistics import SurveyOptions
from regard.ops.terms import Terms, upcast

FAST_STATISTICS = frozenset(
    {
        "entropy",
        "peak",
        "peak_key",
        "max_score",
        "mean_distance",
        "mean_offset",
        "received",
        "first_share",
    }
)
DIAGONAL_STATISTICS = frozenset(
    {"self_share", "previous_share", "local_share"}
)  # nothing to add to, away from the diagonal


def can_use_fast_path(q: Tensor, k: Tensor, terms: Terms, options: SurveyOptions) -> bool:
    """Whether the map has several tiles, and those that no edge of the mask crosses are plain."""
    product = terms.score is None and terms.bias is None and terms.softcap is None
    several = q.shape[-2] * k.shape[-2] > tiling.CACHE_TILE.rows * tiling.CACHE_TILE.keys
    # a mask that cannot tell where it hides nothing, like padding, leaves no plain tile
    plain = product and (terms.mask is None or terms.mask.is_full(range(1), range(1)))
    return (
        plain
        and several
        and not q.is_cuda
        and options.statistics <= FAST_STATISTICS | DIAGONAL_STATISTICS
    )


class FastPath:
    """Counts plain tiles into the totals of a survey.

    The product gives log w itself: its last feature is -lse_i · 1. What a row gathers is written
    down tile by tile and summed once a band; which key is its peak is looked for when all is
    walked, only in the tile that held it.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        lse: Tensor,
        terms: Terms,
        options: SurveyOptions,
        totals: dict[str, Tensor],
    ):
        self.q, self.terms, self.options = q, terms, options
        self.lse = lse.masked_fill(lse == -torch.inf, 0)
        self.tile = tiling.CACHE_TILE
        k = upcast(k).reshape(-1, *k.shape[-2:])
        self.k = F.pad(k, (0, 1), value=1.0).to(self._dtype)
        self.group = q.shape[:-2].numel() // len(k)
        known = totals.keys() & FAST_STATISTICS
        self.totals = {name: totals[name].view(self._heads, -1) for name in known}
        self.peaks, self.distances = (
            known & {"peak", "max_score"},
            known & {"mean_distance", "mean_offset"},
        )
        self.peak_search = PeakSearch(self._heads, q.shape[-2], self.tile.keys)
        self.step = torch.arange(self.tile.keys, dtype=self._dtype)
        self.longest = k.norm(dim=-1).amax()
        # below this exp underflows, which takes it forty times as long
        self.least, self.deep = math.log(torch.finfo(self._dtype).tiny) + 0.5, True
        self.memory = self.k.new_empty(2, 0)
        self.rooms = self.memory[0], self.memory[1]

    @property
    def _heads(self) -> int:
        return self.q.shape[:-2].numel()

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.q.dtype, self.lse.dtype)

    def split_band(self, rows: range) -> tuple[list[range], list[range]]:
        """The keys of a band: plain stretches, and the rest."""
        near, wide = self._near(rows), self.tile.keys
        seen = self.terms.key_span(rows, self.k.shape[-2])
        plain, rest = [], []
        for part in tiling.split_keys(seen, wide, (near.start, near.stop)):
            if self._is_plain(rows, part, near):
                plain += [part] if self._counts(part) else []
            elif rest and rest[-1].stop == part.start and part.stop <= rest[-1].start + wide:
                rest[-1] = range(rest[-1].start, part.stop)
            else:
                rest.append(part)
        return plain, rest

    def add(self, rows: range, parts: list[range]) -> None:
        """Count some tiles of a band."""
        q = upcast(slice_axis(self.q, -2, rows)).to(self._dtype) * self.terms.scale
        lse = slice_axis(self.lse, -1, rows)
        self.deep = bool((q.norm(dim=-1) * self.longest + lse).amax() > -self.least)
        q = torch.cat([q, -lse[..., None]], -1).reshape(self._heads, len(rows), -1)
        count = max(1, self.tile.weights // (len(rows) * self.tile.keys))
        for top in range(0, self._heads, count):
            heads = range(top, min(top + count, self._heads))
            self._add_heads(q[top : heads.stop], heads, rows, parts)

    def _is_plain(self, rows: range, keys: range, near: range) -> bool:
        places = range(rows.start + self.terms.offset, rows.stop + self.terms.offset)
        away = keys.stop <= near.start or keys.start >= near.stop
        return away and (self.terms.mask is None or self.terms.mask.is_full(places, keys))

    def _counts(self, keys: range) -> bool:
        """Whether a plain tile can add to anything that was asked."""
        return bool(self.totals.keys() - {"first_share"}) or (
            "first_share" in self.totals and keys.start < self.options.first_keys
        )

    def _near(self, rows: range) -> range:
        """The keys that a place of these rows falls on, or the sign of a distance changes at."""
        asked = self.options.statistics
        back = max("previous_share" in asked, self.options.radius * ("local_share" in asked))
        fore = self.options.radius * ("local_share" in asked)
        start, stop = rows.start + self.terms.offset, rows.stop + self.terms.offset
        return range(max(0, start - back), stop + fore)

    def _add_heads(self, q: Tensor, heads: range, rows: range, parts: list[range]) -> None:
        at = slice(heads.start, heads.stop), slice(rows.start, rows.stop)
        k, received = self._keys_of(heads), []
        rows_of = q.new_empty(4, len(parts), *q.shape[:-1])
        for keys, best, logs, mass, moment in zip(parts, *map(Tensor.unbind, rows_of), strict=True):
            x, w = self._room((*q.shape[:-1], len(keys)))
            torch.bmm(q, k.narrow(-1, keys.start, len(keys)), out=x)
            if self.peaks:
                torch.amax(x, -1, out=best)
            torch.exp(x.clamp_(min=self.least) if self.deep else x, out=w)
            if "received" in self.totals:
                received.append(w.sum(-2))
            if self.distances:
                torch.sum(w, -1, out=mass)
                step = self.step.narrow(0, 0, len(keys))
                torch.mv(w.view(-1, len(keys)), step, out=moment.view(-1))
            if "entropy" in self.totals:
                torch.sum(x.mul_(w), -1, out=logs)
            if "first_share" in self.totals and keys.start < self.options.first_keys:
                self.totals["first_share"][at] += w[
                    ..., : self.options.first_keys - keys.start
                ].sum(-1)
        for keys, more in zip(parts, received, strict=False):
            self.totals["received"][at[0], keys.start : keys.stop] += more
        best, logs, mass, moment = rows_of
        if "entropy" in self.totals:
            self.totals["entropy"][at] -= logs.sum(0)
        if self.distances:
            self._add_distances(mass, moment, at, rows, parts)
        if self.peaks:
            self._add_peaks(best, at, parts)

    def _keys_of(self, heads: range) -> Tensor:
        """The keys of these heads, (head, head_dim, key)."""
        if self.group == 1:
            return self.k[heads.start : heads.stop].mT
        return self.k[torch.arange(heads.start, heads.stop) // self.group].mT

    def _room(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Two places for a tile, always the same: memory fresh from the system is slow."""
        if self.rooms[0].shape != shape:
            numbers = torch.Size(shape).numel()
            if self.memory.shape[-1] < numbers:
                self.memory = self.k.new_empty(2, numbers)
            self.rooms = self.memory[0, :numbers].view(shape), self.memory[1, :numbers].view(shape)
        return self.rooms

    def _add_distances(
        self,
        mass: Tensor,
        moment: Tensor,
        at: tuple[slice, slice],
        rows: range,
        parts: list[range],
    ) -> None:
        place = torch.arange(rows.start, rows.stop) + self.terms.offset
        begin = torch.tensor([keys.start for keys in parts])[:, None, None]
        ahead = moment + (begin - place) * mass
        if "mean_offset" in self.totals:
            self.totals["mean_offset"][at] += ahead.sum(0)
        if "mean_distance" in self.totals:
            self.totals["mean_distance"][at] += ahead.abs().sum(0)

    def _add_peaks(self, best: Tensor, at: tuple[slice, slice], parts: list[range]) -> None:
        best, tile = best.max(0)
        if "max_score" in self.totals:
            most = (best + self.lse.reshape(self.peak_search.start.shape)[at]).amax(
                -1, keepdim=True
            )
            old = self.totals["max_score"][at[0]]
            torch.maximum(most.to(old.dtype), old, out=old)
        if "peak" not in self.totals:
            return
        start, stop = torch.tensor([[p.start, p.stop] for p in parts])[tile].unbind(-1)
        value, old = best.exp().to(self.lse.dtype), self.totals["peak"][at]
        # of equal weights the first key stays; the two kinds of tile round differently
        equal = torch.isclose(value, old, rtol=8 * torch.finfo(old.dtype).eps, atol=0)
        new = torch.where(equal, start < self.totals["peak_key"][at], value > old)
        self.peak_search.start[at], self.peak_search.stop[at] = (
            start.where(new, 0),
            stop.where(new, 0),
        )
        torch.maximum(value, old, out=old)

    def find_peak_keys(self) -> None:
        """Look for the peaks that plain tiles held."""
        if "peak_key" in self.options.statistics:
            self.peak_search.find(self.q, self.k, self.terms.scale, self.totals["peak_key"])
