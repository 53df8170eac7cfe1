"""The statistics of a survey: one record each, from which all lists of statistics derive.

To add one: a field of `Survey` with its record here, and its accumulator in survey/tiled.py. One
that is a default number per query is then a number of each head, in tables and on the page.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.grid import Grid
from regard.ops.indices import as_int, as_int_pair
from regard.ops.maybe_none import MaybeNone
from regard.ops.terms import Terms, weights_from_scores
from regard.tables import html_summary


class SurveyOptions(NamedTuple):
    """The arguments of a survey, checked."""

    statistics: frozenset[str]
    first_keys: int  # number of first tokens counted by first_share
    radius: int  # largest distance counted by local_share
    top_k: int  # number of top_weights and top_keys
    pooled_size: tuple[int, int]  # rows and columns of pooled_map


@dataclass(eq=False)
class WeightTile:
    """Weights w_ij = exp(s_ij - lse_i) of whole rows, with positions and options."""

    scores: Tensor
    lse: Tensor
    grid: Grid
    options: SurveyOptions
    starts: Tensor | None = None  # of the sequence of each key; None: all start at 0

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
        """Whether a key is among the first of its sequence or document, after padding."""
        j = self.grid.j
        if self.starts is not None:
            j = j - self.starts[self.grid.b, j]
        return (j >= 0) & (j < self.options.first_keys)

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


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """What a statistic is, and how each backend computes it."""

    name: str = ""
    meaning: str  # in one line
    formula: Callable[[WeightTile], Tensor]  # the definition, from the whole map
    axes: tuple[str, ...]  # one value per query, key, …
    default: bool = False  # computed unless other statistics are requested
    initial: float = 0.0  # value without any visible key
    twin: str | None = None  # the statistic computed together with it
    finish: Callable[[Tensor], Tensor] | None = None  # of the sum over tiles: 1 / Σ w², say
    # what follows has no default: a fact left out would cost a gradient or speed silently
    differentiable: bool
    accumulator: str  # method of SurveyTotals that adds up a tile
    fast_path: Literal["all", "diagonal"] | None  # tiles to which it adds something
    kernel: Literal["sums", "received", "peak", "shares"] | None  # result of the kernels

    @property
    def is_index(self) -> bool:
        """Whether the values are key indices, -1 where there is none."""
        return self.initial == -1


def _statistic(meaning: str, formula: Callable[[WeightTile], Tensor], *axes: str, **facts) -> Any:
    record = Statistic(meaning=meaning, formula=formula, axes=axes or ("query",), **facts)
    return field(default=None, metadata={"statistic": record})


def _row(meaning: str, formula: Callable[[WeightTile], Tensor], **facts) -> Any:
    """A default statistic with one differentiable value per query."""
    return _statistic(meaning, formula, default=True, differentiable=True, **facts)


_PEAK = {"accumulator": "_add_peaks", "fast_path": "all", "kernel": "peak"}
_DISTANCE = {"accumulator": "_add_distances", "fast_path": "all", "kernel": "sums"}
_TILED_ONLY = {"differentiable": False, "fast_path": None, "kernel": None}
_DIAGONAL = {"accumulator": "_add_diagonals", "fast_path": "diagonal", "kernel": "shares"}


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Statistics of an attention map; None where not requested.

    w_ij is the weight of query i on key j, p_i the position of query i (its row plus the offset).

    >>> q, k = torch.zeros(1, 2), torch.zeros(4, 2)
    >>> result = rg.survey(q, k, rg.attend(q, k, k)[1], statistics=["peak", "mean_distance"])
    >>> result.peak, result.mean_distance, result.entropy
    (tensor([0.2500]), tensor([1.5000]), None)
    """

    entropy: Float[Tensor, "*batch query"] | MaybeNone = _row(
        "-Σ_j w log w, in nats",
        lambda t: -(t.w * t.log_w).sum(-1),
        accumulator="_add_entropy",
        fast_path="all",
        kernel="sums",
    )
    peak: Float[Tensor, "*batch query"] | MaybeNone = _row(
        "max_j w", lambda t: t.w.amax(-1), twin="peak_key", **_PEAK
    )
    peak_key: Int[Tensor, "*batch query"] | MaybeNone = _statistic(
        "argmax_j w, -1 without visible keys",
        lambda t: t.top[1][..., 0],
        default=True,
        differentiable=False,
        initial=-1,
        twin="peak",
        **_PEAK,
    )
    mean_distance: Float[Tensor, "*batch query"] | MaybeNone = _row(
        "Σ_j w |j - p_i|", lambda t: (t.w * t.relative_position.abs()).sum(-1), **_DISTANCE
    )
    mean_offset: Float[Tensor, "*batch query"] | MaybeNone = _row(
        "Σ_j w (j - p_i), negative for earlier keys",
        lambda t: (t.w * t.relative_position).sum(-1),
        **_DISTANCE,
    )
    self_share: Float[Tensor, "*batch query"] | MaybeNone = _row(
        "weight on the same position",
        lambda t: (t.w * (t.relative_position == 0)).sum(-1),
        **_DIAGONAL,
    )
    previous_share: Float[Tensor, "*batch query"] | MaybeNone = _row(
        "weight on the previous position",
        lambda t: (t.w * (t.relative_position == -1)).sum(-1),
        **_DIAGONAL,
    )
    first_share: Float[Tensor, "*batch query"] | MaybeNone = _row(
        "weight on the first `first_keys` tokens, after padding, of each packed document",
        lambda t: (t.w * t.is_first_key).sum(-1),
        accumulator="_add_first_share",
        fast_path="all",
        kernel="shares",
    )
    local_share: Float[Tensor, "*batch query"] | MaybeNone = _row(
        "weight within `radius` of the same position",
        lambda t: (t.w * (t.relative_position.abs() <= t.options.radius)).sum(-1),
        **_DIAGONAL,
    )
    received: Float[Tensor, "*batch key"] | MaybeNone = _statistic(
        "Σ_i w, the weight that a key receives from all queries",
        lambda t: t.w.sum(-2),
        "key",
        default=True,
        differentiable=True,
        accumulator="_add_received",
        fast_path="all",
        kernel="received",
    )
    top_weights: Float[Tensor, "*batch query top"] | MaybeNone = _statistic(
        "the `top_k` largest weights, descending",
        lambda t: t.top[0],
        "query",
        "top",
        accumulator="_add_top",
        twin="top_keys",
        **_TILED_ONLY,
    )
    top_keys: Int[Tensor, "*batch query top"] | MaybeNone = _statistic(
        "the keys of top_weights",
        lambda t: t.top[1],
        "query",
        "top",
        initial=-1,
        accumulator="_add_top",
        twin="top_weights",
        **_TILED_ONLY,
    )
    max_score: Float[Tensor, "*batch"] | MaybeNone = _statistic(
        "the largest score before softmax",
        lambda t: t.scores.flatten(-2).amax(-1),
        "map",
        differentiable=False,
        initial=-torch.inf,
        accumulator="_add_max_score",
        fast_path="all",
        kernel="peak",
    )
    distance_histogram: Float[Tensor, "*batch bin"] | MaybeNone = _statistic(
        "Σ w by distance: 0, 1, 2–3, 4–7, …",
        lambda t: torch.einsum("...ij,ijn->...n", t.w, t.distance_bins),
        "bin",
        accumulator="_add_bins",
        **_TILED_ONLY,
    )
    received_by_distance: Float[Tensor, "*batch key bin"] | MaybeNone = _statistic(
        "received, by distance",
        lambda t: torch.einsum("...ij,ijn->...jn", t.w, t.distance_bins),
        "key",
        "bin",
        accumulator="_add_bins",
        **_TILED_ONLY,
    )
    pooled_map: Float[Tensor, "*batch row column"] | MaybeNone = _statistic(
        "the map summed over `pooled_size` cells",
        lambda t: t.pooled,
        "row",
        "column",
        accumulator="_add_pooled",
        **_TILED_ONLY | {"fast_path": "all"},
    )

    def _repr_html_(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return html_summary({name: x for name, x in values.items() if x is not None})


STATISTICS: dict[str, Statistic] = {
    f.name: replace(f.metadata["statistic"], name=f.name) for f in fields(Survey)
}
ALL_STATISTICS = tuple(STATISTICS)
DEFAULT_STATISTICS = tuple(name for name, s in STATISTICS.items() if s.default)
QUERY_STATISTICS = tuple(  # one default number per query
    name for name, s in STATISTICS.items() if s.default and s.axes == ("query",) and not s.is_index
)
DIFFERENTIABLE_STATISTICS = tuple(name for name, s in STATISTICS.items() if s.differentiable)
KERNEL_STATISTICS = frozenset(name for name, s in STATISTICS.items() if s.kernel)


def statistics_with(**facts: str) -> frozenset[str]:
    """The statistics whose records state these facts, such as kernel="peak"."""
    return frozenset(name for name, s in STATISTICS.items() if facts.items() <= vars(s).items())


def initial_values(
    names: Collection[str], q: Tensor, k: Tensor, lse: Tensor, offset: int, options: SurveyOptions
) -> dict[str, Tensor]:
    """The values of statistics, and of their twins, before any tile is added."""
    queries, keys = q.shape[-2], k.shape[-2]
    high, wide = options.pooled_size
    bins = distance_bin_count(keys, queries, offset)
    sizes = {"query": queries, "key": keys, "bin": bins, "top": options.top_k}
    sizes |= {"row": high, "column": wide}
    twins = {s.twin for name, s in STATISTICS.items() if name in names and s.twin}
    values = {}
    for name in {*names, *twins}:
        s = STATISTICS[name]
        shape = (*q.shape[:-2], *(sizes[axis] for axis in s.axes if axis != "map"))
        dtype = torch.long if s.is_index else lse.dtype
        values[name] = torch.full(shape, s.initial, dtype=dtype, device=lse.device)
    return values


def make_survey_options(
    statistics: Collection[str],
    first_keys: int,
    radius: int,
    top_k: int,
    pooled_size: int | tuple[int, int],
) -> SurveyOptions:
    """Build `SurveyOptions` from a caller's arguments, checked."""
    for name, value, least in (
        ("first_keys", first_keys, 1),
        ("radius", radius, 0),
        ("top_k", top_k, 1),
    ):
        if as_int(name, value) < least:
            raise ShapeError(f"{name}: needs {least} or more, got {value}")
    size = (pooled_size, pooled_size) if isinstance(pooled_size, int) else pooled_size
    high, wide = as_int_pair("pooled_size", size)
    if min(high, wide) < 1:
        raise ShapeError(f"pooled_size: needs 1 or more, got {pooled_size}")
    return SurveyOptions(check_statistics(statistics), first_keys, radius, top_k, (high, wide))


def check_statistics(statistics: Collection[str]) -> frozenset[str]:
    """The names of statistics, one or several, checked.

    >>> check_statistics("entropy")
    frozenset({'entropy'})
    """
    names = [statistics] if isinstance(statistics, str) else statistics
    for name in names if isinstance(names, Collection) else [names]:
        if not isinstance(name, str) or name not in STATISTICS:
            raise ShapeError(f"statistics: needs names of {', '.join(STATISTICS)}, got {name!r}")
    return frozenset(names)
