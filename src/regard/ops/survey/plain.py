"""Tiles whose scores are scale · q · k alone: a few heads at a time, so that they stay in cache."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.grid import cut
from regard.ops.survey import walk
from regard.ops.survey.statistics import Question
from regard.ops.terms import Terms, widen

EVERYWHERE = frozenset({"entropy", "peak", "peak_key", "max_score", "reach", "ahead", "received"})
BY_PLACE = frozenset({"own", "previous", "near", "sink"})  # nothing to add to, away from the place
LOG2E = 1.4426950408889634
GROUP = 64  # keys among which a largest is looked for


def suits(q: Tensor, k: Tensor, terms: Terms, question: Question) -> bool:
    """Whether the map has several tiles, and those that no edge of the mask crosses are plain."""
    product = terms.score is None and terms.bias is None and terms.softcap is None
    several = q.shape[-2] * k.shape[-2] > walk.IN_CACHE.high * walk.IN_CACHE.wide
    return product and several and not q.is_cuda and question.ask <= EVERYWHERE | BY_PLACE


class Plain:
    """Counts plain tiles into the totals of a survey.

    The product gives log₂ w itself: its last feature is -lse_i · 1. What a row gathers is written
    down tile by tile and summed once a band; which key is its peak is looked for when all is
    walked, only in the tile that held it.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        lse: Tensor,
        terms: Terms,
        question: Question,
        found: dict[str, Tensor],
    ):
        self.q, self.terms, self.question = q, terms, question
        self.lse = lse.masked_fill(lse == -torch.inf, 0)
        self.tile = walk.IN_CACHE
        k = widen(k).reshape(-1, *k.shape[-2:])
        self.k = F.pad(k, (0, 1), value=1.0).to(self._dtype)
        self.group = q.shape[:-2].numel() // len(k)
        known = found.keys() & EVERYWHERE
        self.found = {name: found[name].view(self._heads, -1) for name in known}
        # the stretch of keys where the peak of a row is still to be looked for
        self.start, self.stop = lse.new_zeros((2, self._heads, q.shape[-2]), dtype=torch.long)
        self.step = torch.arange(self.tile.wide, dtype=self._dtype)
        self.room, self.other_room = self.k.new_empty(2, 0).unbind(0)

    @property
    def _heads(self) -> int:
        return self.q.shape[:-2].numel()

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.q.dtype, self.lse.dtype)

    def parts(self, rows: range) -> tuple[list[range], list[range]]:
        """The keys of a band: plain stretches, and the rest."""
        near, wide = self._near(rows), self.tile.wide
        first = self.question.first if "sink" in self.question.ask else 0
        seen = self.terms.span(rows, self.k.shape[-2])
        plain, rest = [], []
        for part in walk.cuts(seen, wide, (first, near.start, near.stop)):
            if self._is_plain(rows, part, near, first):
                plain.append(part)
            elif rest and rest[-1].stop == part.start and part.stop <= rest[-1].start + wide:
                rest[-1] = range(rest[-1].start, part.stop)
            else:
                rest.append(part)
        return plain, rest

    def add(self, rows: range, parts: list[range]) -> None:
        """Count some tiles of a band."""
        q = widen(cut(self.q, -2, rows)).to(self._dtype) * self.terms.scale
        q = torch.cat([q, -cut(self.lse, -1, rows)[..., None]], -1).mul_(LOG2E)
        q = q.reshape(self._heads, len(rows), -1)
        count = max(1, self.tile.weights // (len(rows) * self.tile.wide))
        for top in range(0, self._heads, count):
            heads = range(top, min(top + count, self._heads))
            self._add_heads(q[top : heads.stop], heads, rows, parts)

    def _is_plain(self, rows: range, keys: range, near: range, first: int) -> bool:
        places = range(rows.start + self.terms.offset, rows.stop + self.terms.offset)
        away = keys.start >= first and (keys.stop <= near.start or keys.start >= near.stop)
        return away and (self.terms.mask is None or self.terms.mask.covers(places, keys))

    def _near(self, rows: range) -> range:
        """The keys that a place of these rows falls on, or the sign of a distance changes at."""
        asked = self.question.ask
        back = max("previous" in asked, self.question.radius * ("near" in asked))
        fore = self.question.radius * ("near" in asked)
        start, stop = rows.start + self.terms.offset, rows.stop + self.terms.offset
        return range(max(0, start - back), stop + fore)

    def _add_heads(self, q: Tensor, heads: range, rows: range, parts: list[range]) -> None:
        best, logs, mass, moment = q.new_empty(4, len(parts), *q.shape[:-1]).unbind(0)
        for t, keys in enumerate(parts):
            x = self._log_weights(q, heads, keys)
            if self.found.keys() & {"peak", "max_score"}:
                torch.amax(x, -1, out=best[t])
            w = torch.exp2(x, out=self.other_room[: x.numel()].view_as(x))
            if "received" in self.found:
                received = self.found["received"][heads.start : heads.stop, keys.start : keys.stop]
                received += w.sum(-2)
            if self.found.keys() & {"reach", "ahead"}:
                torch.sum(w, -1, out=mass[t])
                step = self.step[: len(keys)]
                torch.mv(w.view(-1, len(keys)), step, out=moment[t].view(-1))
            if "entropy" in self.found:
                torch.sum(x.mul_(w), -1, out=logs[t])
        at = slice(heads.start, heads.stop), slice(rows.start, rows.stop)
        if "entropy" in self.found:
            self.found["entropy"][at] -= logs.sum(0) / LOG2E
        if self.found.keys() & {"reach", "ahead"}:
            self._add_distances(mass, moment, at, rows, parts)
        if self.found.keys() & {"peak", "max_score"}:
            self._add_peaks(best, at, parts)

    def _log_weights(self, q: Tensor, heads: range, keys: range) -> Tensor:
        k = self.k[:, keys.start : keys.stop]
        if self.group == 1:
            k = k[heads.start : heads.stop]
        else:
            k = k[torch.arange(heads.start, heads.stop) // self.group]
        numbers = len(heads) * q.shape[-2] * len(keys)
        if self.room.numel() < numbers:
            self.room, self.other_room = q.new_empty(2, numbers).unbind(0)
        return torch.bmm(q, k.mT, out=self.room[:numbers].view(len(heads), -1, len(keys)))

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
        if "ahead" in self.found:
            self.found["ahead"][at] += ahead.sum(0)
        if "reach" in self.found:
            self.found["reach"][at] += ahead.abs().sum(0)

    def _add_peaks(self, best: Tensor, at: tuple[slice, slice], parts: list[range]) -> None:
        best, tile = best.max(0)
        if "max_score" in self.found:
            most = (best / LOG2E + self.lse.reshape(self.start.shape)[at]).amax(-1, keepdim=True)
            old = self.found["max_score"][at[0]]
            torch.maximum(most.to(old.dtype), old, out=old)
        if "peak" not in self.found:
            return
        start, stop = torch.tensor([[p.start, p.stop] for p in parts])[tile].unbind(-1)
        value, old = best.exp2().to(self.lse.dtype), self.found["peak"][at]
        # of equal weights the first key stays; the two kinds of tile round differently
        equal = torch.isclose(value, old, rtol=8 * torch.finfo(old.dtype).eps, atol=0)
        new = torch.where(equal, start < self.found["peak_key"][at], value > old)
        self.start[at], self.stop[at] = start.where(new, 0), stop.where(new, 0)
        torch.maximum(value, old, out=old)

    def find_keys(self) -> None:
        """Look for the peaks that plain tiles held, for all rows of a tile's keys together."""
        if "peak_key" not in self.found:
            return
        scaled = widen(self.q).reshape(self._heads, *self.q.shape[-2:])
        for head, key_of_row in enumerate(self.found["peak_key"]):
            rows = self.stop[head].nonzero().squeeze(-1)
            block = self.start[head, rows] // self.tile.wide
            block, order = block.sort(stable=True)
            rows = rows[order]
            edges = [
                *([0] if len(rows) else []),
                *(block.diff().nonzero().squeeze(-1) + 1).tolist(),
                len(rows),
            ]
            for a, b in pairwise(edges):
                for some in rows[a:b].split(max(1, walk.ON_CPU.weights // self.tile.wide)):
                    key_of_row[some] = self._largest(scaled[head, some], head, some)

    def _largest(self, q: Tensor, head: int, rows: Tensor) -> Tensor:
        """The key of the largest weight of each row, all within one block of keys."""
        start, stop = self.start[head, rows], self.stop[head, rows]
        low, high = int(start.min()), int(stop.max())
        k = self.k[head // self.group, low:high, :-1]
        scores = (q.to(k.dtype) * self.terms.scale) @ k.mT
        if int(start.max()) > low or int(stop.min()) < high:  # else they see all of it
            j = torch.arange(low, high)
            scores.masked_fill_((j < start[:, None]) | (j >= stop[:, None]), -torch.inf)
        return low + first_largest(scores)


def first_largest(rows: Tensor) -> Tensor:
    """Where each row is largest, looked for in groups: argmax of a whole row is far slower.

    >>> first_largest(torch.tensor([[0.0, 2.0, 1.0, 2.0]]))
    tensor([1])
    """
    short = -rows.shape[-1] % GROUP
    groups = F.pad(rows, (0, short), value=-torch.inf) if short else rows
    groups = groups.unflatten(-1, (-1, GROUP))
    group = groups.amax(-1).argmax(-1)
    place = torch.arange(len(rows), device=rows.device) * groups.shape[1] + group
    return group * GROUP + groups.flatten(0, 1).index_select(0, place).argmax(-1)
