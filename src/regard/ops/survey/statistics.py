"""The words for what a survey finds, and what a caller may ask."""

from collections.abc import Collection
from dataclasses import dataclass, fields

from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.indices import as_int, as_int_pair
from regard.tables import html_summary


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What one pass over the map found; None where it was not asked.

    w_ij is the weight of query i on key j, p_i the position of query i (its row plus the offset).

    >>> q, k = torch.zeros(1, 2), torch.zeros(4, 2)
    >>> found = rg.survey(q, k, rg.attend(q, k, k)[1], statistics=["peak", "mean_distance"])
    >>> found.peak, found.mean_distance, found.entropy
    (tensor([0.2500]), tensor([1.5000]), None)
    """

    entropy: Float[Tensor, "*batch query"] | None = None  # -Σ_j w log w, in nats
    peak: Float[Tensor, "*batch query"] | None = None  # max_j w
    peak_key: Int[Tensor, "*batch query"] | None = None  # the key of the peak, -1 if none is seen
    mean_distance: Float[Tensor, "*batch query"] | None = None  # Σ_j w |j - p_i|, how far it looks
    mean_offset: Float[Tensor, "*batch query"] | None = None  # Σ_j w (j - p_i), negative when back
    self_share: Float[Tensor, "*batch query"] | None = None  # share on its own position
    previous_share: Float[Tensor, "*batch query"] | None = None  # share on the position before
    first_share: Float[Tensor, "*batch query"] | None = (
        None  # share on the first tokens after padding
    )
    local_share: Float[Tensor, "*batch query"] | None = None  # share within the radius
    received: Float[Tensor, "*batch key"] | None = None  # Σ_i w, what a key gets from all
    top_weights: Float[Tensor, "*batch query most"] | None = None  # the largest weights, falling
    top_keys: Int[Tensor, "*batch query most"] | None = None  # and their keys
    max_score: Float[Tensor, "*batch"] | None = None  # the largest score before softmax
    distance_histogram: Float[Tensor, "*batch bin"] | None = (
        None  # Σ w by distance: 0, 1, 2–3, 4–7, …
    )
    received_by_distance: Float[Tensor, "*batch key bin"] | None = None  # received, by distance
    pooled_map: Float[Tensor, "*batch row column"] | None = None  # the map in cells, summed

    def _repr_html_(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return html_summary({name: x for name, x in values.items() if x is not None})


ROW_STATISTICS = (
    "entropy",
    "peak",
    "peak_key",
    "mean_distance",
    "mean_offset",
    "self_share",
    "previous_share",
    "first_share",
    "local_share",
)
DEFAULT_STATISTICS = (*ROW_STATISTICS, "received")
ALL_STATISTICS = tuple(field.name for field in fields(Survey))
DIFFERENTIABLE_STATISTICS = (
    "entropy",
    "peak",
    "mean_distance",
    "mean_offset",
    "self_share",
    "previous_share",
    "first_share",
    "local_share",
    "received",
)


@dataclass(frozen=True, kw_only=True)
class SurveyOptions:
    """What is asked of a survey, checked."""

    statistics: frozenset[str]
    first_keys: int  # how many first tokens count as the sink
    radius: int  # how far near is
    top_k: int  # how many of the largest weights
    pooled_size: tuple[int, int]  # rows and columns of the pooled map


def make_survey_options(
    statistics: Collection[str],
    first_keys: int,
    radius: int,
    top_k: int,
    pooled_size: int | tuple[int, int],
) -> SurveyOptions:
    """The question as a caller may write it, checked."""
    for name, value, least in (("first", first_keys, 1), ("radius", radius, 0), ("most", top_k, 1)):
        if as_int(name, value) < least:
            raise ShapeError(f"{name}: needs {least} or more, got {value}")
    high, wide = as_int_pair(
        "cells", (pooled_size, pooled_size) if isinstance(pooled_size, int) else pooled_size
    )
    if min(high, wide) < 1:
        raise ShapeError(f"cells: needs 1 or more, got {pooled_size}")
    return SurveyOptions(
        statistics=check_statistics(statistics),
        first_keys=first_keys,
        radius=radius,
        top_k=top_k,
        pooled_size=(high, wide),
    )


def check_statistics(statistics: Collection[str]) -> frozenset[str]:
    """The names of statistics, one or several, checked.

    >>> check_statistics("entropy")
    frozenset({'entropy'})
    """
    statistics = (statistics,) if isinstance(statistics, str) else statistics
    odd = (
        [statistics]
        if not isinstance(statistics, Collection)
        else [x for x in statistics if x not in ALL_STATISTICS]
    )
    if odd:
        raise ShapeError(f"ask: needs names of {', '.join(ALL_STATISTICS)}, got {odd[0]!r}")
    return frozenset(statistics)


def distance_bin_count(keys: int, queries: int, offset: int) -> int:
    """How many distance bins the map has: 0, 1, 2–3, 4–7, … up to its furthest pair.

    >>> distance_bin_count(keys=5, queries=5, offset=0)
    4
    """
    return max(1, max(keys, queries + offset) - 1).bit_length() + 1
