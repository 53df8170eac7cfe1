"""The survey in plain torch, tile by tile: any terms, on any device, memory linear in n."""

import torch
from torch import Tensor

from regard.ops import tiling
from regard.ops.grid import Grid
from regard.ops.survey.fast_path import FastPath, can_use_fast_path
from regard.ops.survey.peak_search import first_argmax
from regard.ops.survey.reference import distance_bin, pooled_index
from regard.ops.survey.statistics import Survey, SurveyOptions, distance_bin_count
from regard.ops.terms import Terms

DIAGONAL_COST = 1 << 15  # to add one up by itself takes as long as a pass over so many weights
LOG2E = 1.4426950408889634
MIN_LOG2_WEIGHT = -1e30  # stands for -inf where 0 · log 0 must be 0


def survey(q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions) -> Survey:
    """Walk over the tiles that can be seen; each adds to the totals."""
    totals = SurveyTotals(q, k, lse, terms, options)
    if can_use_fast_path(q, k, terms, options):
        _survey_mostly_plain(totals)
    else:
        for rows, keys in tiling.iter_tiles(q, k, terms):
            totals.add(rows, keys)
    return totals.survey()


def _survey_mostly_plain(totals: "SurveyTotals") -> None:
    plain = FastPath(totals.q, totals.k, totals.lse, totals.terms, totals.options, totals.values)
    for rows in tiling.split_rows(totals.q, plain.tile.rows):
        easy, rest = plain.split_band(rows)
        for keys in rest:
            totals.add(rows, keys)
        if easy:
            plain.add(rows, easy)
    plain.find_peak_keys()


class SurveyTotals:
    """What has been found in the tiles walked over so far."""

    def __init__(self, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions):
        self.q, self.k, self.lse, self.terms, self.options = q, k, lse, terms, options
        queries, keys = q.shape[-2], k.shape[-2]
        self.values = self._start(options.statistics, queries, keys)
        self.is_causal = terms.mask is not None and not terms.mask.allows_future
        self.safe_lse = lse.masked_fill(lse == -torch.inf, 0)[..., None]
        self.step = torch.arange(
            tiling.tile_size(q).keys, device=q.device, dtype=self.safe_lse.dtype
        )
        # Every tile is computed in the same two places: memory fresh from the system is slow.
        self.buffer, self.other_buffer = lse.new_empty(0), lse.new_empty(0)

    def survey(self) -> Survey:
        """The finished statistics."""
        return Survey(**{name: self.values[name] for name in self.options.statistics})

    def add(self, rows: range, keys: range) -> None:
        """Count one tile."""
        grid = self.terms.grid(self.q, self.k, rows, keys)
        at = slice(rows.start, rows.stop)
        self._make_room(self.q.shape[:-2].numel() * len(rows) * len(keys))
        scores = self.terms.score_tile(self.q, self.k, rows, keys, buffer=self.buffer)
        if "max_score" in self.values:
            best = scores.flatten(-2).amax(-1)
            torch.maximum(self.values["max_score"], best, out=self.values["max_score"])
        # by powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
        x = scores.sub_(self.safe_lse[..., at, :]).mul_(LOG2E)
        w = torch.exp2(x, out=self.other_buffer[: x.numel()].view_as(x))
        if "entropy" in self.values:
            if self._may_hide(grid):
                x.clamp_(min=MIN_LOG2_WEIGHT)
            self.values["entropy"][..., at] -= x.mul_(w).sum(-1) / LOG2E
        if "received" in self.values:
            self.values["received"][..., keys.start : keys.stop] += w.sum(-2)
        self._add_peaks(w, keys, at)
        self._add_places(w, grid, at)
        self._add_bins(w, grid)
        self._add_cells(w, grid)

    def _may_hide(self, grid: Grid) -> bool:
        mask, bias = self.terms.mask, self.terms.bias
        return bias is not None or (
            mask is not None and not mask.is_full(grid.query_positions, grid.keys)
        )

    def _make_room(self, numbers: int) -> None:
        if self.buffer.numel() < numbers:
            self.buffer, self.other_buffer = self.lse.new_empty(2, numbers).unbind(0)

    def _add_peaks(self, w: Tensor, keys: range, at: slice) -> None:
        if "top_weights" in self.values:
            most = min(self.options.top_k, len(keys))
            values, places = w.topk(most, -1)
            old, old_key = (
                self.values["top_weights"][..., at, :],
                self.values["top_keys"][..., at, :],
            )
            both = torch.cat([old, values], -1), torch.cat([old_key, places + keys.start], -1)
            values, best = both[0].topk(self.options.top_k, -1)
            self.values["top_weights"][..., at, :] = values
            self.values["top_keys"][..., at, :] = (
                both[1].gather(-1, best).masked_fill(values == 0, -1)
            )
        if "peak" in self.values:
            value = w.amax(-1)
            old, old_key = self.values["peak"][..., at], self.values["peak_key"][..., at]
            new = value > old  # of equal weights the first key stays
            if new.all():  # as in the first tile of a band
                old_key.copy_((first_argmax(w.flatten(0, -2)) + keys.start).view_as(old_key))
            else:  # few rows change late in a walk
                old_key[new] = first_argmax(w[new]) + keys.start
            torch.maximum(value, old, out=old)

    def _add_places(self, w: Tensor, grid: Grid, at: slice) -> None:
        """Shares by place; off the diagonal two sums a tile are enough for the distances."""
        found, keys, places, radius = (
            self.values,
            grid.keys,
            grid.query_positions,
            self.options.radius,
        )
        crosses = keys.start < places.stop and places.start < keys.stop
        if found.keys() & {"mean_distance", "mean_offset"}:
            step = self.step[: len(keys)].to(w.dtype)
            ahead = w @ step + (keys.start - grid.i[:, 0]) * w.sum(-1)
            if "mean_offset" in found:
                found["mean_offset"][..., at] += ahead
            if "mean_distance" in found:
                if crosses and not self.is_causal:
                    ahead = (w * (grid.j - grid.i).abs()).sum(-1)
                found["mean_distance"][..., at] += ahead.abs()
        if "first_share" in found and keys.start < self.options.first_keys:
            found["first_share"][..., at] += w[..., : self.options.first_keys - keys.start].sum(-1)
        for name, low, high in (
            ("self_share", 0, 0),
            ("previous_share", -1, -1),
            ("local_share", -radius, radius),
        ):
            first = max(keys.start, places.start + low)
            last = min(keys.stop, places.stop + high)
            if name not in found or first >= last:
                continue
            part = w[..., first - keys.start : last - keys.start]
            if (high - low) * DIAGONAL_COST < part.numel():
                for distance in range(low, high + 1):
                    _add_diagonal(found[name][..., at], w, grid, distance)
                continue
            j = torch.arange(first, last, device=w.device)
            inside = (j >= grid.i + low) & (j <= grid.i + high)
            found[name][..., at] += (part * inside).sum(-1)

    def _add_bins(self, w: Tensor, grid: Grid) -> None:
        if not self.values.keys() & {"distance_histogram", "received_by_distance"}:
            return
        which = distance_bin(grid.j - grid.i)
        for n in range(int(which.min()), int(which.max()) + 1):
            part = (w * (which == n)).sum(-2)
            if "distance_histogram" in self.values:
                self.values["distance_histogram"][..., n] += part.sum(-1)
            if "received_by_distance" in self.values:
                self.values["received_by_distance"][..., grid.keys.start : grid.keys.stop, n] += (
                    part
                )

    def _add_cells(self, w: Tensor, grid: Grid) -> None:
        if "pooled_map" not in self.values:
            return
        down, across = self.options.pooled_size
        rows = pooled_index(self.q.shape[-2], down, w.device)[grid.rows.start : grid.rows.stop]
        columns = pooled_index(self.k.shape[-2], across, w.device)[grid.keys.start : grid.keys.stop]
        left = int(columns[0])
        part = w.new_zeros((*w.shape[:-1], int(columns[-1]) - left + 1))
        part.index_add_(-1, columns - left, w)
        cell = self.values["pooled_map"]
        cell[..., left : left + part.shape[-1]].index_add_(-2, rows, part)

    def _start(self, ask: frozenset[str], queries: int, keys: int) -> dict[str, Tensor]:
        batch, most, cells = self.q.shape[:-2], self.options.top_k, self.options.pooled_size
        count = distance_bin_count(keys, queries, self.terms.offset)
        shapes = {
            "received": (keys,),
            "top_weights": (queries, most),
            "top_keys": (queries, most),
            "max_score": (),
            "distance_histogram": (count,),
            "received_by_distance": (keys, count),
            "pooled_map": cells,
        }
        twins = {"peak": "peak_key", "top_weights": "top_keys"}
        ask = ask | {a for pair in twins.items() for a in pair if set(pair) & ask}
        found = {name: self.lse.new_zeros((*batch, *shapes.get(name, (queries,)))) for name in ask}
        for name in set(twins.values()) & found.keys():
            found[name] = torch.full_like(found[name], -1, dtype=torch.long)
        if "max_score" in found:
            found["max_score"].fill_(-torch.inf)
        return found


def _add_diagonal(total: Tensor, w: Tensor, grid: Grid, distance: int) -> None:
    """Add to each row the weight of the key so far ahead of it, where the tile has it."""
    shift = grid.query_positions.start + distance - grid.keys.start  # column of the first row's key
    if -w.shape[-2] < shift < w.shape[-1]:
        found = w.diagonal(shift, -2, -1)
        top = max(0, -shift)
        total[..., top : top + found.shape[-1]] += found
