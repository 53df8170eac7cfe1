"""The survey in plain torch, tile by tile: any terms, any device, memory linear in n."""

import torch
from torch import Tensor

from regard.ops import tiling
from regard.ops.grid import Grid
from regard.ops.survey.fast_path import FastPath, can_use_fast_path, first_argmax
from regard.ops.survey.statistics import (
    STATISTICS,
    Survey,
    SurveyOptions,
    distance_bin,
    initial_values,
    pooled_index,
)
from regard.ops.terms import LOG2E, LOWEST_SCORE, Terms, finite_lse

DIAGONAL_COST = 1 << 15  # adding one diagonal takes as long as a pass over so many weights


def survey(q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions) -> Survey:
    """Stream over the visible tiles; each adds to the totals."""
    totals = SurveyTotals(q, k, lse, terms, options)
    if not can_use_fast_path(q, k, terms, options):
        for rows, keys in tiling.iter_tiles(q, k, terms):
            totals.add(rows, keys)
        return totals.survey()
    fast = FastPath(q, k, lse, terms, options, totals.values)
    for rows in tiling.split_rows(q, fast.tile.rows):
        plain, others = fast.split_band(rows)
        for keys in others:
            totals.add(rows, keys)
        if plain:
            fast.add(rows, plain)
    fast.find_peak_keys()
    return totals.survey()


class SurveyTotals:
    """The statistics of the tiles added so far."""

    def __init__(self, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions):
        self.q, self.k, self.lse, self.terms, self.options = q, k, lse, terms, options
        self.values = initial_values(options.statistics, q, k, lse, terms.offset, options)
        names = {STATISTICS[name].accumulator for name in self.values}
        names = sorted(names - {"_add_max_score", "_add_entropy"})  # of scores, and of logarithms
        self.accumulators = [getattr(self, name) for name in names]
        self.is_causal = terms.mask is not None and not terms.mask.allows_future
        self.finite_lse = finite_lse(lse)[..., None]
        self.step = torch.arange(tiling.tile_size(q).keys, device=q.device, dtype=lse.dtype)
        # All tiles share two buffers: touching freshly allocated memory is slow.
        self.buffer, self.other_buffer = lse.new_empty(0), lse.new_empty(0)

    def survey(self) -> Survey:
        """The requested statistics."""
        values = {name: self.values[name] for name in self.options.statistics}
        for name, total in values.items():
            if finish := STATISTICS[name].finish:
                values[name] = finish(total)
        return Survey(**values)

    def add(self, rows: range, keys: range) -> None:
        """Add one tile to the totals."""
        grid = self.terms.grid(self.q, self.k, rows, keys)
        at = slice(rows.start, rows.stop)
        size = self.q.shape[:-2].numel() * len(rows) * len(keys)
        if self.buffer.numel() < size:
            self.buffer, self.other_buffer = self.lse.new_empty(2, size).unbind(0)
        scores = self.terms.score_tile(self.q, self.k, rows, keys, buffer=self.buffer)
        if "max_score" in self.values:
            self._add_max_score(scores)
        # powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
        x = scores.sub_(self.finite_lse[..., at, :]).mul_(LOG2E)
        w = torch.exp2(x, out=self.other_buffer[: x.numel()].view_as(x))
        for accumulate in self.accumulators:
            accumulate(w, grid, at)
        if "entropy" in self.values:
            self._add_entropy(x, w, grid, at)

    # ---- accumulators of weights, named by the records of STATISTICS; `at` are rows of the totals

    def _add_max_score(self, scores: Tensor) -> None:
        total = self.values["max_score"]
        torch.maximum(total, scores.flatten(-2).amax(-1), out=total)

    def _add_entropy(self, log2_w: Tensor, w: Tensor, grid: Grid, at: slice) -> None:
        """It overwrites the logarithms, which are -inf where the weight is 0."""
        mask, bias = self.terms.mask, self.terms.bias
        is_full = mask is None or mask.is_full(grid.query_positions, grid.keys)
        if bias is not None or not is_full:
            log2_w.clamp_(min=LOWEST_SCORE)
        self.values["entropy"][..., at] -= log2_w.mul_(w).sum(-1) / LOG2E

    def _add_received(self, w: Tensor, grid: Grid, at: slice) -> None:
        keys = grid.keys
        self.values["received"][..., keys.start : keys.stop] += w.sum(-2)

    def _add_top(self, w: Tensor, grid: Grid, at: slice) -> None:
        start, top_k = grid.keys.start, self.options.top_k
        weights = self.values["top_weights"][..., at, :]
        keys = self.values["top_keys"][..., at, :]
        new_weights, new_keys = w.topk(min(top_k, w.shape[-1]), -1)
        candidates = torch.cat([keys, new_keys + start], -1)
        best, index = torch.cat([weights, new_weights], -1).topk(top_k, -1)
        weights.copy_(best)
        keys.copy_(candidates.gather(-1, index).masked_fill(best == 0, -1))

    def _add_peaks(self, w: Tensor, grid: Grid, at: slice) -> None:
        start, value = grid.keys.start, w.amax(-1)
        peak, peak_key = self.values["peak"][..., at], self.values["peak_key"][..., at]
        is_new = value > peak  # of equal weights the first key stays
        if is_new.all():  # as in the first tile of a band
            peak_key.copy_((first_argmax(w.flatten(0, -2)) + start).view_as(peak_key))
        else:  # few rows change in later tiles
            peak_key[is_new] = first_argmax(w[is_new]) + start
        torch.maximum(value, peak, out=peak)

    def _add_distances(self, w: Tensor, grid: Grid, at: slice) -> None:
        """Off the diagonal the weight and its first moment give both distances."""
        keys, positions = grid.keys, grid.query_positions
        step = self.step[: len(keys)].to(w.dtype)
        offset = w @ step + (keys.start - grid.i[:, 0]) * w.sum(-1)
        if "mean_offset" in self.values:
            self.values["mean_offset"][..., at] += offset
        if "mean_distance" in self.values:
            is_diagonal = keys.start < positions.stop and positions.start < keys.stop
            if is_diagonal and not self.is_causal:
                offset = (w * (grid.j - grid.i).abs()).sum(-1)
            self.values["mean_distance"][..., at] += offset.abs()

    def _add_first_share(self, w: Tensor, grid: Grid, at: slice) -> None:
        count = self.options.first_keys - grid.keys.start
        if count > 0:
            self.values["first_share"][..., at] += w[..., :count].sum(-1)

    def _add_diagonals(self, w: Tensor, grid: Grid, at: slice) -> None:
        radius = self.options.radius
        keys, positions = grid.keys, grid.query_positions
        for name, low, high in (
            ("self_share", 0, 0),
            ("previous_share", -1, -1),
            ("local_share", -radius, radius),
        ):
            first = max(keys.start, positions.start + low)
            last = min(keys.stop, positions.stop + high)
            if name not in self.values or first >= last:
                continue
            total, part = self.values[name][..., at], w[..., first - keys.start : last - keys.start]
            if (high - low) * DIAGONAL_COST < part.numel():
                for distance in range(low, high + 1):
                    _add_diagonal(total, w, grid, distance)
                continue
            j = torch.arange(first, last, device=w.device)
            inside = (j >= grid.i + low) & (j <= grid.i + high)
            total += (part * inside).sum(-1)

    def _add_bins(self, w: Tensor, grid: Grid, at: slice) -> None:
        keys, values = grid.keys, self.values
        bins = distance_bin(grid.j - grid.i)
        for n in range(int(bins.min()), int(bins.max()) + 1):
            received = (w * (bins == n)).sum(-2)
            if "distance_histogram" in values:
                values["distance_histogram"][..., n] += received.sum(-1)
            if "received_by_distance" in values:
                values["received_by_distance"][..., keys.start : keys.stop, n] += received

    def _add_pooled(self, w: Tensor, grid: Grid, at: slice) -> None:
        high, wide = self.options.pooled_size
        rows = pooled_index(self.q.shape[-2], high, w.device)[grid.rows.start : grid.rows.stop]
        columns = pooled_index(self.k.shape[-2], wide, w.device)[grid.keys.start : grid.keys.stop]
        left = int(columns[0])
        by_column = w.new_zeros((*w.shape[:-1], int(columns[-1]) - left + 1))
        by_column.index_add_(-1, columns - left, w)
        total = self.values["pooled_map"]
        total[..., left : left + by_column.shape[-1]].index_add_(-2, rows, by_column)


def _add_diagonal(total: Tensor, w: Tensor, grid: Grid, distance: int) -> None:
    """Add to each row the weight of the key at a signed distance, where the tile holds it."""
    shift = grid.query_positions.start + distance - grid.keys.start  # column of the first row's key
    if -w.shape[-2] < shift < w.shape[-1]:
        diagonal = w.diagonal(shift, -2, -1)
        top = max(0, -shift)
        total[..., top : top + diagonal.shape[-1]] += diagonal
