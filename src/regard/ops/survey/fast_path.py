"""The fast path of the survey on a CPU: tiles whose scores are scale · q · k alone, and peaks.

A few heads at a time, so that a tile stays in cache.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import tiling
from regard.ops.grid import slice_axis
from regard.ops.packed_linear import batched_product
from regard.ops.survey.statistics import SurveyOptions, pooled_index, statistics_with
from regard.ops.terms import Terms, finite_lse, upcast

FAST_STATISTICS = statistics_with(fast_path="all")
MAX_GROUP = 64  # keys per group in first_argmax
BUFFER_SCORES = 1 << 20  # scores computed at a time


def can_use_fast_path(q: Tensor, k: Tensor, terms: Terms, options: SurveyOptions) -> bool:
    """Whether the map has several tiles, and its unmasked tiles are plain products."""
    if terms.score is not None or terms.bias is not None or terms.softcap is not None or q.is_cuda:
        return False
    is_large = q.shape[-2] * k.shape[-2] > tiling.CACHE_TILE.rows * tiling.CACHE_TILE.keys
    # a mask without `is_full`, like padding, leaves no plain tile
    has_plain_tiles = terms.mask is None or terms.mask.is_full(range(1), range(1))
    known = FAST_STATISTICS | statistics_with(
        fast_path="diagonal"
    )  # off the diagonal these add nothing
    return is_large and has_plain_tiles and options.statistics <= known


class FastPath:
    """Adds plain tiles to the totals of a survey.

    The product gives log w itself: its last feature is -lse_i · 1. Row sums are stored per tile
    and added once per band. The key of a peak is searched at the end, in the tile that holds it.
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
        self.lse = finite_lse(lse)
        self.heads, self.dtype = q.shape[:-2].numel(), torch.promote_types(q.dtype, lse.dtype)
        self.tile = tiling.CACHE_TILE
        k = upcast(k).reshape(-1, *k.shape[-2:])
        self.k = F.pad(k, (0, 1), value=1.0).to(self.dtype)
        self.group = self.heads // len(k)
        names = totals.keys() & FAST_STATISTICS
        sizes = {name: totals[name].shape[q.ndim - 2 :] or (1,) for name in names}
        self.totals = {name: totals[name].view(self.heads, *sizes[name]) for name in names}
        self.needs_peaks = bool(names & {"peak", "max_score"})
        self.needs_columns = bool(names & {"received", "pooled_map"})
        self.needs_distances = bool(names & {"mean_distance", "mean_offset"})
        # start and stop of the keys, within one tile, that hold each row's peak; stop = 0: none
        self.peak_ranges = torch.zeros(2, self.heads, q.shape[-2], dtype=torch.long).unbind(0)
        self.step = torch.arange(self.tile.keys, dtype=self.dtype)
        self.max_key_norm = k.norm(dim=-1).amax()
        # below this exp underflows, which is forty times slower
        self.min_log_w, self.may_underflow = math.log(torch.finfo(self.dtype).tiny) + 0.5, True
        self.memory = self.k.new_empty(2, 0)
        self.buffers = self.memory[0], self.memory[1]

    def split_band(self, rows: range) -> tuple[list[range], list[range]]:
        """The keys of a band: plain tiles, and the others."""
        diagonal, width = self._diagonal(rows), self.tile.keys
        visible = self.terms.key_span(rows, self.k.shape[-2])
        plain, others = [], []
        for part in tiling.split_keys(visible, width, (diagonal.start, diagonal.stop)):
            if self._is_plain(rows, part, diagonal):
                plain += [part] if self._is_needed(part) else []
            elif others and others[-1].stop == part.start and part.stop <= others[-1].start + width:
                others[-1] = range(others[-1].start, part.stop)
            else:
                others.append(part)
        return plain, others

    def add(self, rows: range, parts: list[range]) -> None:
        """Add plain tiles of a band."""
        q = upcast(slice_axis(self.q, -2, rows)).to(self.dtype) * self.terms.scale
        lse = slice_axis(self.lse, -1, rows)
        bound = (q.norm(dim=-1) * self.max_key_norm + lse).amax()
        self.may_underflow = bool(bound > -self.min_log_w)
        q = torch.cat([q, -lse[..., None]], -1).reshape(self.heads, len(rows), -1)
        count = max(1, self.tile.weights // (len(rows) * self.tile.keys))
        if count >= self.group:  # whole groups, or a part of one
            count -= count % self.group
        else:
            count = max(n for n in range(1, count + 1) if self.group % n == 0)
        for top in range(0, self.heads, count):
            heads = range(top, min(top + count, self.heads))
            self._add_heads(q[top : heads.stop], heads, rows, parts)

    def _is_plain(self, rows: range, keys: range, diagonal: range) -> bool:
        positions = range(rows.start + self.terms.offset, rows.stop + self.terms.offset)
        is_off = keys.stop <= diagonal.start or keys.start >= diagonal.stop
        return is_off and (self.terms.mask is None or self.terms.mask.is_full(positions, keys))

    def _is_needed(self, keys: range) -> bool:
        """Whether a plain tile adds to a requested statistic."""
        return bool(self.totals.keys() - {"first_share"}) or (
            "first_share" in self.totals and keys.start < self.options.first_keys
        )

    def _diagonal(self, rows: range) -> range:
        """The keys that add to a diagonal statistic, or where the sign of the distance changes."""
        names = self.options.statistics
        before = max("previous_share" in names, self.options.radius * ("local_share" in names))
        after = self.options.radius * ("local_share" in names)
        start, stop = rows.start + self.terms.offset, rows.stop + self.terms.offset
        return range(max(0, start - before), stop + after)

    def _add_heads(self, q: Tensor, heads: range, rows: range, parts: list[range]) -> None:
        at = slice(heads.start, heads.stop), slice(rows.start, rows.stop)
        # the heads of a group share keys: more rows of one product
        k = self.k[heads.start // self.group : (heads.stop - 1) // self.group + 1]
        grouped_q, received = q.reshape(len(k), -1, q.shape[-1]), []
        first, heights = self._row_cells(rows)
        rows_of = q.new_empty(4, len(parts), *q.shape[:-1])
        for keys, best, logs, mass, moment in zip(parts, *map(Tensor.unbind, rows_of), strict=True):
            x, w = self._buffers((*q.shape[:-1], len(keys)))
            scores = x.view(len(k), -1, len(keys))
            batched_product(grouped_q, k.narrow(-2, keys.start, len(keys)), scores)
            if self.needs_peaks:
                torch.amax(x, -1, out=best)
            torch.exp(x.clamp_(min=self.min_log_w) if self.may_underflow else x, out=w)
            if self.needs_columns:
                sums = [part.sum(-2) for part in w.split(heights, -2)]
                received.append(torch.stack(sums, -2))
            if self.needs_distances:
                torch.sum(w, -1, out=mass)
                step = self.step.narrow(0, 0, len(keys))
                torch.mv(w.view(-1, len(keys)), step, out=moment.view(-1))
            if "entropy" in self.totals:
                torch.sum(x.mul_(w), -1, out=logs)
            if "first_share" in self.totals and keys.start < self.options.first_keys:
                count = self.options.first_keys - keys.start
                self.totals["first_share"][at] += w[..., :count].sum(-1)
        for keys, sums in zip(parts, received, strict=False):
            if "received" in self.totals:
                self.totals["received"][at[0], keys.start : keys.stop] += sums.sum(-2)
            if "pooled_map" in self.totals:
                total = self.totals["pooled_map"][at[0], first : first + len(heights)]
                cells = pooled_index(self.k.shape[-2], total.shape[-1], sums.device)
                total.index_add_(-1, cells[keys.start : keys.stop], sums.to(total.dtype))
        best, logs, mass, moment = rows_of
        if "entropy" in self.totals:
            self.totals["entropy"][at] -= logs.sum(0)
        if self.needs_distances:
            position = torch.arange(rows.start, rows.stop) + self.terms.offset
            first_key = torch.tensor([keys.start for keys in parts])[:, None, None]
            offset = moment + (first_key - position) * mass
            if "mean_offset" in self.totals:
                self.totals["mean_offset"][at] += offset.sum(0)
            if "mean_distance" in self.totals:
                self.totals["mean_distance"][at] += offset.abs().sum(0)
        if self.needs_peaks:
            self._add_peaks(best, at, parts)

    def _row_cells(self, rows: range) -> tuple[int, list[int]]:
        """The first row of the pooled map in a band, and the number of queries of each row."""
        if "pooled_map" not in self.totals:
            return 0, [len(rows)]
        high = self.totals["pooled_map"].shape[-2]
        cells = pooled_index(self.q.shape[-2], high, self.q.device)[rows.start : rows.stop]
        return int(cells[0]), cells.unique_consecutive(return_counts=True)[1].tolist()

    def _buffers(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Two buffers for a tile, reused: touching freshly allocated memory is slow."""
        if self.buffers[0].shape != shape:
            size = torch.Size(shape).numel()
            if self.memory.shape[-1] < size:
                self.memory = self.k.new_empty(2, size)
            self.buffers = self.memory[0, :size].view(shape), self.memory[1, :size].view(shape)
        return self.buffers

    def _add_peaks(self, best: Tensor, at: tuple[slice, slice], parts: list[range]) -> None:
        best, tile = best.max(0)
        if "max_score" in self.totals:
            lse, old = self.lse.reshape(self.heads, -1), self.totals["max_score"][at[0]]
            best_score = (best + lse[at]).amax(-1, keepdim=True)
            torch.maximum(best_score.to(old.dtype), old, out=old)
        if "peak" not in self.totals:
            return
        start, stop = torch.tensor([[p.start, p.stop] for p in parts])[tile].unbind(-1)
        value, old = best.exp().to(self.lse.dtype), self.totals["peak"][at]
        # of equal weights the first key stays; plain and other tiles round differently
        equal = torch.isclose(value, old, rtol=8 * torch.finfo(old.dtype).eps, atol=0)
        new = torch.where(equal, start < self.totals["peak_key"][at], value > old)
        for end, x in zip(self.peak_ranges, (start, stop), strict=True):
            end[at] = x.where(new, 0)
        torch.maximum(value, old, out=old)

    def find_peak_keys(self) -> None:
        """Find the keys of the peaks in plain tiles by one product per head and block of keys."""
        if "peak_key" not in self.options.statistics:
            return
        peak_key, size = self.totals["peak_key"], self.tile.keys
        q = self.q.reshape(-1, *self.q.shape[-2:])
        buffer = self.k.new_empty(max(BUFFER_SCORES, size))
        for head, key_of_row in enumerate(peak_key):
            head_keys = self.k[head // self.group, :, : q.shape[-1]]
            for rows, block, is_whole in self._group_rows(head, len(head_keys)):
                keys = head_keys[block : block + size]
                for part in rows.split(len(buffer) // size):
                    queries = upcast(q[head].index_select(0, part)).to(keys.dtype)
                    shape = len(part), len(keys)
                    scores = buffer[: math.prod(shape)].view(shape)
                    torch.mm(queries * self.terms.scale, keys.mT, out=scores)
                    if not is_whole:
                        j = torch.arange(block, block + len(keys))
                        start, stop = (x[head, part, None] for x in self.peak_ranges)
                        scores.masked_fill_((j < start) | (j >= stop), -torch.inf)
                    key_of_row.index_copy_(0, part, first_argmax(scores) + block)

    def _group_rows(self, head: int, keys: int) -> Iterator[tuple[Tensor, int, bool]]:
        """Rows with the same block, the start of it, and whether their range is all of it."""
        size, rows = self.tile.keys, self.peak_ranges[1][head].nonzero().squeeze(-1)
        start, stop = (x[head, rows] for x in self.peak_ranges)
        is_whole = (start % size == 0) & ((stop % size == 0) | (stop == keys))
        kind, order = (2 * (start // size) + is_whole).sort(stable=True)
        kinds, counts = kind.unique_consecutive(return_counts=True)
        parts = rows[order].split(counts.tolist())
        for kind, part in zip(kinds.tolist(), parts, strict=True):
            yield part, kind // 2 * size, kind % 2 == 1


def first_argmax(rows: Tensor) -> Tensor:
    """The first index of each row's maximum, by groups: argmax of a long row is far slower.

    >>> first_argmax(torch.tensor([[0.0, 2.0, 1.0, 2.0]]))
    tensor([1])
    """
    group = group_size(rows.shape[-1])
    groups = rows.unflatten(-1, (-1, group))
    which = groups.amax(-1).max(-1).indices
    index = torch.arange(len(rows), device=rows.device) * groups.shape[1] + which
    return which * group + groups.flatten(0, 1).index_select(0, index).max(-1).indices


def group_size(width: int) -> int:
    """The largest divisor of a row's width up to MAX_GROUP, or the width if that is below 16.

    >>> group_size(512), group_size(510), group_size(509)
    (64, 51, 509)
    """
    size = next(size for size in range(min(MAX_GROUP, width), 0, -1) if width % size == 0)
    return size if size >= 16 else width
