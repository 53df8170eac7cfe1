"""Comparison of two sights, head by head: two prompts, two checkpoints, or two models."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import LookError, ShapeError, counted
from regard.inspection.record.sight import Sight
from regard.inspection.sites.labels import key_labels, query_labels
from regard.inspection.sites.site import Site
from regard.tables import text_table

MAX_SHOWN = 16
BAND = 256  # rows of a map at a time
STATISTICS = ("entropy", "first_share", "previous_share", "self_share", "mean_distance")


@dataclass(frozen=True, kw_only=True)
class HeadDifference:
    """How one head differs between two sights; means over the aligned queries.

    distance = ½ Σ_j |w'_ij - w_ij|: 0 for equal maps, 1 for disjoint ones
    entropy … mean_distance: the statistic of the second minus that of the first
    query, key, before, after: the weight that changes most
    """

    site: str
    head: int
    distance: float = 0.0
    entropy: float = 0.0  # in nats
    first_share: float = 0.0  # weight on the first key
    previous_share: float = 0.0
    self_share: float = 0.0
    mean_distance: float = 0.0
    query: str = ""
    key: str = ""
    before: float = 0.0
    after: float = 0.0


class AlignedToken(NamedTuple):
    """A position of both texts, or of one; a replaced token is a position of both."""

    label: str
    first: int | None
    second: int | None

    @property
    def is_shared(self) -> bool:
        """Whether both texts have it."""
        return self.first is not None and self.second is not None


class SitePair(NamedTuple):
    """The same site of two sights, with their queries and keys aligned."""

    first: Site
    second: Site
    queries: tuple[AlignedToken, ...]
    keys: tuple[AlignedToken, ...]


@dataclass(frozen=True, repr=False)
class SightComparison:
    """The differences of all heads of two sights; `unmatched` are sites that only one has.

    >>> sights = [rg.Sight([rg.make_site(x, x)]) for x in torch.randn(2, 5, 4)]
    >>> rg.inspection.compare_sights(*sights).rows[0].distance > 0
    True
    """

    rows: list[HeadDifference]
    unmatched: list[str] = field(default_factory=list)
    pairs: dict[str, SitePair] = field(default_factory=dict)  # by the name of the first site
    names: tuple[str, str] = ("first", "second")
    missing: str = ""  # what `max_bytes=` left out of either

    def top(self, count: int = 10, *, by: str = "distance") -> list[HeadDifference]:
        """The heads that differ most in their maps, or in a statistic."""
        numbers = ("distance", *STATISTICS)
        if by not in numbers:
            raise ShapeError(f"by: needs one of {', '.join(numbers)}, got {by!r}")
        return sorted(self.rows, key=lambda row: -abs(getattr(row, by)))[:count]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per head, the most different first."""
        return [asdict(row) for row in self.top(len(self.rows))]

    @torch.no_grad()
    def maps(
        self, site: str, head: int, pool: tuple[int, int] = (1, 1)
    ) -> Float[Tensor, "three query key"]:
        """The two maps of a head and their difference, over the tokens of both texts.

        A query that only one text has is NaN in the other and in the difference.

        >>> x = torch.zeros(2, 4)
        >>> a, b = (rg.Sight([rg.make_site(x, x, tokens=["a", t])]) for t in "bc")
        >>> rg.inspection.compare_sights(a, b).maps("attention", 0)[2]
        tensor([[0., 0.],
                [0., 0.]])
        """
        pair = self.pairs[site]
        shared = [t for t in pair.queries if t.is_shared]
        maps = [_merged_map(pair, side, head, pair.queries, pool) for side in (0, 1)]
        before, after = (_merged_map(pair, side, head, shared, pool) for side in (0, 1))
        return torch.stack([*maps, after - before])

    def __repr__(self) -> str:
        rows = []
        for row in self.top(MAX_SHOWN):
            deltas = (f"{getattr(row, name):+.3f}" for name in STATISTICS[:3])
            cell = f"{row.query} → {row.key}: {row.before:.2f} → {row.after:.2f}"
            rows.append([row.site, row.head, f"{row.distance:.3f}", *deltas, cell])
        numbers = ("head", "distance", "Δ entropy", "Δ first", "Δ previous")
        columns = ("site", *numbers, "largest change: query → key")
        table = text_table(columns, rows, right=numbers)
        lines = [f"{counted(len(self.rows), 'head')}, the most different first", table]
        lines += [f"in one only: {', '.join(self.unmatched)}"] if self.unmatched else []
        lines += [self.missing] if self.missing else []
        return "\n".join(lines)


@torch.no_grad()
def compare_sights(
    first: Sight, second: Sight, *, names: tuple[str, str] = ("first", "second")
) -> SightComparison:
    """Compare the maps of every head in two sights, for the first sequence of each.

    Sites are matched by name; where no name is shared, by depth, which needs as many sites in both.
    With tokens on both sides (`look(model, tokens=…)`) positions are aligned by their text, as in a
    diff: an inserted word shifts nothing, and a replaced word is aligned with its replacement.
    Weight on tokens that only one text has counts as different. Without tokens both need equal
    lengths. `names` of the two are for figures.

    >>> x = torch.randn(5, 4)
    >>> sight = rg.Sight([rg.make_site(x, x)])
    >>> rg.inspection.compare_sights(sight, sight).rows[0].distance
    0.0
    """
    a = {site.name: site for site in first.join_all()}
    b = {site.name: site for site in second.join_all()}
    if not a or not b:
        raise LookError("sights: need a site each to be compared, got none")
    if not a.keys() & b.keys():  # another architecture: by depth
        if len(a) != len(b):
            raise LookError(
                "sights: need sites of the same names or as many in both, "
                f"got {len(a)} such as {next(iter(a))} and {len(b)} such as {next(iter(b))}; "
                "try at=, which chooses some"
            )
        b = dict(zip(a, b.values(), strict=True))
    pairs = {name: _pair(a[name], b[name]) for name in a if name in b}
    rows = [row for pair in pairs.values() for row in _compare(pair)]
    unmatched = [n for n in {**a, **b} if n not in pairs]
    missing = "; ".join(dict.fromkeys(filter(None, (first.missing, second.missing))))
    return SightComparison(rows, unmatched, pairs, names, missing)


def _pair(a: Site, b: Site) -> SitePair:
    if a.heads != b.heads:
        raise LookError(
            f"{a.name}: needs as many heads in both sights, got {a.heads} and {b.heads}"
        )
    queries = _align(a.name, query_labels(a), query_labels(b), a.query_tokens and b.query_tokens)
    return SitePair(
        a, b, queries, _align(a.name, key_labels(a), key_labels(b), a.key_tokens and b.key_tokens)
    )


def _compare(pair: SitePair) -> list[HeadDifference]:
    a = pair.first
    shared = [t for t in pair.queries if t.is_shared]
    total = torch.zeros(a.heads, dtype=torch.double)
    largest = torch.full((a.heads,), -1.0)
    cells: list[tuple[int, int, float, float]] = [(0, 0, 0.0, 0.0)] * a.heads
    for start in range(0, len(shared), BAND):
        band = shared[start : start + BAND]
        w, other = (_rows(pair, side, None, band) for side in (0, 1))
        change = (other - w).abs()
        total += 0.5 * change.sum((-2, -1)).double()
        value, at = change.flatten(1).max(-1)
        for head in (value > largest).nonzero()[:, 0].tolist():
            i, j = divmod(int(at[head]), len(pair.keys))
            largest[head] = value[head]
            cells[head] = (start + i, j, float(w[head, i, j]), float(other[head, i, j]))
    distance, deltas = (total / len(shared)).tolist(), _statistics(pair, shared)
    return [
        HeadDifference(
            site=a.name, head=head, distance=round(distance[head], 6),
            **{name: round(x[head], 6) for name, x in deltas.items()},
            query=shared[i].label, key=pair.keys[j].label,
            before=round(before, 6), after=round(after, 6),
        )
        for head, (i, j, before, after) in enumerate(cells)
    ]  # fmt: skip


def _statistics(pair: SitePair, shared: Sequence[AlignedToken]) -> dict[str, list[float]]:
    """The difference of each statistic per head, over the queries that both have."""
    means = []
    for side, site in enumerate((pair.first, pair.second)):
        survey = site.survey(statistics=STATISTICS, first_keys=1)
        rows = _positions(shared, side)[1]
        means.append([getattr(survey, name)[0][:, rows].double().mean(-1) for name in STATISTICS])
    return {
        name: (y - x).tolist() for name, x, y in zip(STATISTICS, means[0], means[1], strict=True)
    }


def _rows(
    pair: SitePair, side: int, head: int | None, queries: Sequence[AlignedToken]
) -> Float[Tensor, "*head query key"]:
    """Rows of one map over the keys of both texts; 0 at keys that this text has not."""
    site, (_, rows) = (pair.first, pair.second)[side], _positions(queries, side)
    low, high = min(rows), max(rows) + 1
    w = site.window(head, slice(low, high))[0].float().cpu()[..., [row - low for row in rows], :]
    at, keys = _positions(pair.keys, side)
    merged = w.new_zeros(*w.shape[:-1], len(pair.keys))
    merged[..., at] = w[..., keys]
    return merged


def _positions(tokens: Sequence[AlignedToken], side: int) -> tuple[list[int], list[int]]:
    """Indices of the aligned tokens that one text has, and their positions in it."""
    positions = ((i, (t.first, t.second)[side]) for i, t in enumerate(tokens))
    pairs = [(i, position) for i, position in positions if position is not None]
    return [i for i, _ in pairs], [position for _, position in pairs]


def _merged_map(
    pair: SitePair, side: int, head: int, queries: Sequence[AlignedToken], pool: tuple[int, int]
) -> Float[Tensor, "query key"]:
    """The map of one head over all aligned tokens, pooled by means; NaN without a query."""
    high, wide = pool
    row_of = {token: i // high for i, token in enumerate(pair.queries)}
    mine = [queries[i] for i in _positions(queries, side)[0]]
    columns = torch.arange(len(pair.keys)) // wide
    total = torch.zeros(-(-len(pair.queries) // high), -(-len(pair.keys) // wide))
    count = torch.zeros(len(total))
    for start in range(0, len(mine), BAND):
        band = mine[start : start + BAND]
        at = torch.tensor([row_of[t] for t in band])
        tile = torch.zeros(len(band), total.shape[1])
        tile.index_add_(1, columns, _rows(pair, side, head, band))
        total.index_add_(0, at, tile)
        count.index_add_(0, at, torch.ones(len(band)))
    return total / (count[:, None] * columns.bincount())


def _align(
    name: str, words: list[str], others: list[str], has_tokens: Any
) -> tuple[AlignedToken, ...]:
    if not has_tokens and len(words) != len(others):
        raise LookError(
            f"{name}: needs tokens to align texts of {len(words)} and {len(others)} positions, "
            "got none; try look(model, tokens=…) for both"
        )
    aligned = align_tokens(tuple(words), tuple(others if has_tokens else words))
    if not any(t.is_shared and t.label in words for t in aligned):
        raise LookError(f"{name}: needs texts with a token in common, got none")
    return aligned


@lru_cache(maxsize=8)  # every site of a model has the same tokens
def align_tokens(words: tuple[str, ...], others: tuple[str, ...]) -> tuple[AlignedToken, ...]:
    """The tokens of two texts in one sequence, as in a diff.

    >>> [t.label for t in align_tokens(("the", "cat", "sat"), ("the", "old", "dog", "sat"))]
    ['the', 'cat', 'old', 'dog', 'sat']
    >>> align_tokens(("the", "cat"), ("the", "dog"))[1]
    AlignedToken(label='cat | dog', first=1, second=1)
    """
    aligned = []
    matcher = SequenceMatcher(None, words, others, autojunk=False)
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        if tag == "equal":
            aligned += [AlignedToken(words[a + n], a + n, b + n) for n in range(a_end - a)]
        elif a_end - a == b_end - b:  # replaced, word by word
            pairs = zip(range(a, a_end), range(b, b_end), strict=True)
            aligned += [AlignedToken(f"{words[i]} | {others[j]}", i, j) for i, j in pairs]
        else:
            aligned += [AlignedToken(words[i], i, None) for i in range(a, a_end)]
            aligned += [AlignedToken(others[j], None, j) for j in range(b, b_end)]
    return tuple(aligned)
