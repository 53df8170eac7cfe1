"""The words for what a survey finds, and what a caller may ask."""

from collections.abc import Collection
from dataclasses import dataclass, fields

from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.indices import two_numbers, whole_number


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What one pass over the map found; None where it was not asked.

    w_ij is the weight of query i on key j, p_i the position of query i (its row plus the offset).

    >>> q, k = torch.zeros(1, 2), torch.zeros(4, 2)
    >>> found = rg.survey(q, k, rg.attend(q, k, k)[1], ask=["peak", "reach"])
    >>> found.peak, found.reach, found.entropy
    (tensor([0.2500]), tensor([1.5000]), None)
    """

    entropy: Float[Tensor, "*batch query"] | None = None  # -Σ_j w log w, in nats
    peak: Float[Tensor, "*batch query"] | None = None  # max_j w
    peak_key: Int[Tensor, "*batch query"] | None = None  # the key of the peak, -1 if none is seen
    reach: Float[Tensor, "*batch query"] | None = None  # Σ_j w |j - p_i|, how far it looks
    ahead: Float[Tensor, "*batch query"] | None = None  # Σ_j w (j - p_i), negative when back
    own: Float[Tensor, "*batch query"] | None = None  # share on its own position
    previous: Float[Tensor, "*batch query"] | None = None  # share on the position before
    sink: Float[Tensor, "*batch query"] | None = None  # share on the first tokens after padding
    near: Float[Tensor, "*batch query"] | None = None  # share within the radius
    received: Float[Tensor, "*batch key"] | None = None  # Σ_i w, what a key gets from all
    top: Float[Tensor, "*batch query most"] | None = None  # the largest weights, falling
    top_key: Int[Tensor, "*batch query most"] | None = None  # and their keys
    max_score: Float[Tensor, "*batch"] | None = None  # the largest score before softmax
    distances: Float[Tensor, "*batch bin"] | None = None  # Σ w by distance: 0, 1, 2–3, 4–7, …
    received_from: Float[Tensor, "*batch key bin"] | None = None  # received, by distance
    pooled: Float[Tensor, "*batch row column"] | None = None  # the map in cells, summed


QUICK = ("entropy", "peak", "peak_key", "reach", "ahead", "own", "previous", "sink", "near")
QUICK_AND_RECEIVED = (*QUICK, "received")
EVERY = tuple(field.name for field in fields(Survey))
SMOOTH = ("entropy", "peak", "reach", "ahead", "own", "previous", "sink", "near", "received")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a survey, checked."""

    ask: frozenset[str]
    first: int  # how many first tokens count as the sink
    radius: int  # how far near is
    most: int  # how many of the largest weights
    cells: tuple[int, int]  # rows and columns of the pooled map


def make_question(
    ask: Collection[str], first: int, radius: int, most: int, cells: int | tuple[int, int]
) -> Question:
    """The question as a caller may write it, checked."""
    for name, value, least in (("first", first, 1), ("radius", radius, 0), ("most", most, 1)):
        if whole_number(name, value) < least:
            raise ShapeError(f"{name}: needs {least} or more, got {value}")
    high, wide = two_numbers("cells", (cells, cells) if isinstance(cells, int) else cells)
    if min(high, wide) < 1:
        raise ShapeError(f"cells: needs 1 or more, got {cells}")
    return Question(ask=named(ask), first=first, radius=radius, most=most, cells=(high, wide))


def named(ask: Collection[str]) -> frozenset[str]:
    """The names of statistics, one or several, checked.

    >>> named("entropy")
    frozenset({'entropy'})
    """
    ask = (ask,) if isinstance(ask, str) else ask
    odd = [ask] if not isinstance(ask, Collection) else [x for x in ask if x not in EVERY]
    if odd:
        raise ShapeError(f"ask: needs names of {', '.join(EVERY)}, got {odd[0]!r}")
    return frozenset(ask)


def bins(keys: int, queries: int, offset: int) -> int:
    """How many distance bins the map has: 0, 1, 2–3, 4–7, … up to its furthest pair.

    >>> bins(keys=5, queries=5, offset=0)
    4
    """
    return max(1, max(keys, queries + offset) - 1).bit_length() + 1
