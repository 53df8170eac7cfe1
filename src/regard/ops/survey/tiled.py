"""The survey in plain torch, tile by tile: any terms, on any device, memory linear in n."""

import torch
from torch import Tensor

from regard.ops.grid import Grid
from regard.ops.survey import walk
from regard.ops.survey.peaks import first_largest
from regard.ops.survey.plain import Plain, suits
from regard.ops.survey.reference import cell_of, distance_bin
from regard.ops.survey.statistics import Question, Survey, bins
from regard.ops.terms import Terms

DIAGONAL = 1 << 15  # to add one up by itself takes as long as a pass over so many weights
LOG2E = 1.4426950408889634
LOW = -1e30  # stands for -inf where 0 · log 0 must be 0


def survey(q: Tensor, k: Tensor, lse: Tensor, terms: Terms, question: Question) -> Survey:
    """Walk over the tiles that can be seen; each adds to the totals."""
    totals = Totals(q, k, lse, terms, question)
    if suits(q, k, terms, question):
        _survey_mostly_plain(totals)
    else:
        for rows, keys in walk.walk(q, k, terms):
            totals.add(rows, keys)
    return totals.survey()


def _survey_mostly_plain(totals: "Totals") -> None:
    plain = Plain(totals.q, totals.k, totals.lse, totals.terms, totals.question, totals.found)
    for rows in walk.bands(totals.q, plain.tile.high):
        easy, rest = plain.parts(rows)
        for keys in rest:
            totals.add(rows, keys)
        if easy:
            plain.add(rows, easy)
    plain.find_keys()


class Totals:
    """What has been found in the tiles walked over so far."""

    def __init__(self, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, question: Question):
        self.q, self.k, self.lse, self.terms, self.question = q, k, lse, terms, question
        queries, keys = q.shape[-2], k.shape[-2]
        self.found = self._start(question.ask, queries, keys)
        self.behind = terms.mask is not None and not terms.mask.looks_ahead
        self.safe_lse = lse.masked_fill(lse == -torch.inf, 0)[..., None]
        self.step = torch.arange(walk.tile_of(q).wide, device=q.device, dtype=self.safe_lse.dtype)
        # Every tile is computed in the same two places: memory fresh from the system is slow.
        self.room, self.other_room = lse.new_empty(0), lse.new_empty(0)

    def survey(self) -> Survey:
        """The finished statistics."""
        return Survey(**{name: self.found[name] for name in self.question.ask})

    def add(self, rows: range, keys: range) -> None:
        """Count one tile."""
        grid = self.terms.grid(self.q, self.k, rows, keys)
        at = slice(rows.start, rows.stop)
        self._make_room(self.q.shape[:-2].numel() * len(rows) * len(keys))
        scores = self.terms.tile(self.q, self.k, rows, keys, room=self.room)
        if "max_score" in self.found:
            best = scores.flatten(-2).amax(-1)
            torch.maximum(self.found["max_score"], best, out=self.found["max_score"])
        # by powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
        x = scores.sub_(self.safe_lse[..., at, :]).mul_(LOG2E)
        w = torch.exp2(x, out=self.other_room[: x.numel()].view_as(x))
        if "entropy" in self.found:
            if self._may_hide(grid):
                x.clamp_(min=LOW)
            self.found["entropy"][..., at] -= x.mul_(w).sum(-1) / LOG2E
        if "received" in self.found:
            self.found["received"][..., keys.start : keys.stop] += w.sum(-2)
        self._add_peaks(w, keys, at)
        self._add_places(w, grid, at)
        self._add_bins(w, grid)
        self._add_cells(w, grid)

    def _may_hide(self, grid: Grid) -> bool:
        mask, bias = self.terms.mask, self.terms.bias
        return bias is not None or (mask is not None and not mask.covers(grid.places, grid.keys))

    def _make_room(self, numbers: int) -> None:
        if self.room.numel() < numbers:
            self.room, self.other_room = self.lse.new_empty(2, numbers).unbind(0)

    def _add_peaks(self, w: Tensor, keys: range, at: slice) -> None:
        if "top" in self.found:
            most = min(self.question.most, len(keys))
            values, places = w.topk(most, -1)
            old, old_key = self.found["top"][..., at, :], self.found["top_key"][..., at, :]
            both = torch.cat([old, values], -1), torch.cat([old_key, places + keys.start], -1)
            values, best = both[0].topk(self.question.most, -1)
            self.found["top"][..., at, :] = values
            self.found["top_key"][..., at, :] = (
                both[1].gather(-1, best).masked_fill(values == 0, -1)
            )
        if "peak" in self.found:
            value = w.amax(-1)
            old, old_key = self.found["peak"][..., at], self.found["peak_key"][..., at]
            new = value > old  # of equal weights the first key stays
            if new.all():  # as in the first tile of a band
                old_key.copy_((first_largest(w.flatten(0, -2)) + keys.start).view_as(old_key))
            else:  # few rows change late in a walk
                old_key[new] = first_largest(w[new]) + keys.start
            torch.maximum(value, old, out=old)

    def _add_places(self, w: Tensor, grid: Grid, at: slice) -> None:
        """Shares by place; off the diagonal two sums a tile are enough for the distances."""
        found, keys, places, radius = self.found, grid.keys, grid.places, self.question.radius
        crosses = keys.start < places.stop and places.start < keys.stop
        if found.keys() & {"reach", "ahead"}:
            step = self.step[: len(keys)].to(w.dtype)
            ahead = w @ step + (keys.start - grid.i[:, 0]) * w.sum(-1)
            if "ahead" in found:
                found["ahead"][..., at] += ahead
            if "reach" in found:
                if crosses and not self.behind:
                    ahead = (w * (grid.j - grid.i).abs()).sum(-1)
                found["reach"][..., at] += ahead.abs()
        if "sink" in found and keys.start < self.question.first:
            found["sink"][..., at] += w[..., : self.question.first - keys.start].sum(-1)
        for name, low, high in (("own", 0, 0), ("previous", -1, -1), ("near", -radius, radius)):
            first = max(keys.start, places.start + low)
            last = min(keys.stop, places.stop + high)
            if name not in found or first >= last:
                continue
            part = w[..., first - keys.start : last - keys.start]
            if (high - low) * DIAGONAL < part.numel():
                for distance in range(low, high + 1):
                    _add_diagonal(found[name][..., at], w, grid, distance)
                continue
            j = torch.arange(first, last, device=w.device)
            inside = (j >= grid.i + low) & (j <= grid.i + high)
            found[name][..., at] += (part * inside).sum(-1)

    def _add_bins(self, w: Tensor, grid: Grid) -> None:
        if not self.found.keys() & {"distances", "received_from"}:
            return
        which = distance_bin(grid.j - grid.i)
        for n in range(int(which.min()), int(which.max()) + 1):
            part = (w * (which == n)).sum(-2)
            if "distances" in self.found:
                self.found["distances"][..., n] += part.sum(-1)
            if "received_from" in self.found:
                self.found["received_from"][..., grid.keys.start : grid.keys.stop, n] += part

    def _add_cells(self, w: Tensor, grid: Grid) -> None:
        if "pooled" not in self.found:
            return
        down, across = self.question.cells
        rows = cell_of(self.q.shape[-2], down, w.device)[grid.rows.start : grid.rows.stop]
        columns = cell_of(self.k.shape[-2], across, w.device)[grid.keys.start : grid.keys.stop]
        left = int(columns[0])
        part = w.new_zeros((*w.shape[:-1], int(columns[-1]) - left + 1))
        part.index_add_(-1, columns - left, w)
        cell = self.found["pooled"]
        cell[..., left : left + part.shape[-1]].index_add_(-2, rows, part)

    def _start(self, ask: frozenset[str], queries: int, keys: int) -> dict[str, Tensor]:
        batch, most, cells = self.q.shape[:-2], self.question.most, self.question.cells
        count = bins(keys, queries, self.terms.offset)
        shapes = {
            "received": (keys,),
            "top": (queries, most),
            "top_key": (queries, most),
            "max_score": (),
            "distances": (count,),
            "received_from": (keys, count),
            "pooled": cells,
        }
        twins = {"peak": "peak_key", "top": "top_key"}
        ask = ask | {a for pair in twins.items() for a in pair if set(pair) & ask}
        found = {name: self.lse.new_zeros((*batch, *shapes.get(name, (queries,)))) for name in ask}
        for name in set(twins.values()) & found.keys():
            found[name] = torch.full_like(found[name], -1, dtype=torch.long)
        if "max_score" in found:
            found["max_score"].fill_(-torch.inf)
        return found


def _add_diagonal(total: Tensor, w: Tensor, grid: Grid, distance: int) -> None:
    """Add to each row the weight of the key so far ahead of it, where the tile has it."""
    shift = grid.places.start + distance - grid.keys.start  # column of the first row's key
    if -w.shape[-2] < shift < w.shape[-1]:
        found = w.diagonal(shift, -2, -1)
        top = max(0, -shift)
        total[..., top : top + found.shape[-1]] += found
