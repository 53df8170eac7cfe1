"""The weights of a tile of the map, or of all of it, as the formulas of statistics read them."""

from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.grid import Grid
from regard.ops.terms import Terms, weights_from_scores


class SurveyOptions(NamedTuple):
    """The arguments of a survey, checked."""

    statistics: frozenset[str]
    first_keys: int  # number of first tokens counted by first_share
    radius: int  # largest distance counted by local_share
    top_k: int  # number of top_weights and top_keys
    pooled_size: tuple[int, int]  # rows and columns of pooled_map


class WeightTile:
    """Weights w_ij = exp(s_ij - lse_i) of whole rows, with positions and options."""

    def __init__(
        self,
        scores: Tensor,
        lse: Tensor,
        grid: Grid,
        options: SurveyOptions,
        starts: Tensor | None = None,
    ):
        self.scores, self.lse, self.grid = scores, lse, grid
        self.options, self.starts = options, starts

    @cached_property
    def w(self) -> Tensor:
        """The weights."""
        return weights_from_scores(self.scores, self.lse)

    @cached_property
    def log_w(self) -> Tensor:
        """log w, with 0 for masked keys: 0 · log 0 = 0."""
        log_w = self.scores - self.lse[..., None]
        return log_w.masked_fill(self.scores == -torch.inf, 0)

    @cached_property
    def relative_position(self) -> Tensor:
        """j - p_i, (query, key)."""
        return self.grid.j - self.grid.i

    @cached_property
    def is_first_key(self) -> Tensor:
        """Whether a key is among the first of its sequence; padding is not counted."""
        return is_first_key(self.grid, self.options, self.starts)

    @cached_property
    def top(self) -> tuple[Tensor, Tensor]:
        """The largest weights and their keys, -1 where the weight is 0."""
        missing = self.options.top_k - self.w.shape[-1]
        # stable, so that of equal weights the first key comes first
        w, key = F.pad(self.w, (0, max(0, missing))).sort(stable=True, dim=-1, descending=True)
        w, key = w[..., : self.options.top_k], key[..., : self.options.top_k]
        return w, key.masked_fill(w == 0, -1)

    @cached_property
    def distance_bins(self) -> Tensor:
        """One-hot distance bins, (query, key, bin)."""
        grid = self.grid
        count = distance_bin_count(len(grid.keys), len(grid.rows), grid.offset)
        return F.one_hot(distance_bin(self.relative_position), count).to(self.w.dtype)

    @cached_property
    def pooled(self) -> Tensor:
        """The sum of the weights in each cell of the pooled map."""
        high, wide = self.options.pooled_size
        rows = pooled_index(self.w.shape[-2], high, self.w.device)
        columns = pooled_index(self.w.shape[-1], wide, self.w.device)
        rows, columns = F.one_hot(rows, high), F.one_hot(columns, wide)
        return rows.to(self.w.dtype).mT @ self.w @ columns.to(self.w.dtype)


def nonzero_starts(q: Tensor, k: Tensor, terms: Terms) -> Tensor | None:
    """The start of the sequence of each key, (sequence, key); None if all start at 0."""
    if terms.mask is None:
        return None
    leading = q.shape[:-3] if q.ndim > 3 else q.shape[:-2]
    starts = terms.mask.sequence_starts(leading.numel(), k.shape[-2])
    return starts if starts is not None and bool(starts.any()) else None


def is_first_key(grid: Grid, options: SurveyOptions, starts: Tensor | None) -> Tensor:
    """Whether each key is among the first of its sequence or document, after padding."""
    j = grid.j if starts is None else grid.j - starts[grid.b, grid.j]
    return (j >= 0) & (j < options.first_keys)


def distance_bin(relative_position: Tensor) -> Tensor:
    """The bin of a distance: 0 for the same position, then 1, 2–3, 4–7, …

    >>> distance_bin(torch.tensor([0, -1, 2, 3, -4]))
    tensor([0, 1, 2, 2, 3])
    """
    return torch.frexp(relative_position.abs().float())[1].long().clamp(min=0)


def distance_bin_count(keys: int, queries: int, offset: int) -> int:
    """The number of distance bins of a map: 0, 1, 2–3, 4–7, … up to its longest distance.

    >>> distance_bin_count(keys=5, queries=5, offset=0)
    4
    """
    return max(1, max(keys, queries + offset) - 1).bit_length() + 1


def pooled_index(count: int, bins: int, device: torch.device) -> Tensor:
    """The bin of each of `count` rows or keys, split into `bins` as evenly as possible.

    >>> pooled_index(5, 2, torch.device("cpu"))
    tensor([0, 0, 0, 1, 1])
    """
    return torch.arange(count, device=device) * bins // max(1, count)
