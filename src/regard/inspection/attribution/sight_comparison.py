"""Comparison of two sights, head by head: two prompts, two checkpoints, or two models."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor

from regard.errors import LookError
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.tables import format_table

MAX_SHOWN = 16
BAND = 256  # rows of a map at a time


@dataclass(frozen=True)
class HeadDifference:
    """How one head differs between two sights.

    distance = mean over aligned queries of ½ Σ_j |w_ij - w'_ij|: 0 for equal maps, 1 for disjoint
    entropy: of the second minus that of the first, in nats;   first_share: mass on the first key

    >>> HeadDifference("decoder.0.self", 3, 0.25, -0.5, 0.0).distance
    0.25
    """

    site: str
    head: int
    distance: float
    entropy: float
    first_share: float


@dataclass(frozen=True, repr=False)
class SightComparison:
    """The differences of all heads of two sights; `unmatched` are sites that only one has.

    >>> sights = [rg.Sight([rg.make_site(x, x)]) for x in torch.randn(2, 5, 4)]
    >>> rg.inspection.compare_sights(*sights).rows[0].distance > 0
    True
    """

    rows: list[HeadDifference]
    unmatched: list[str]

    def top(self, count: int = 10) -> list[HeadDifference]:
        """The heads whose maps differ most."""
        return sorted(self.rows, key=lambda row: -row.distance)[:count]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per head."""
        return [asdict(row) for row in self.rows]

    def __repr__(self) -> str:
        from rich.table import Table

        table = Table("site", box=None, pad_edge=False)
        for name in ("head", "distance of maps", "Δ entropy", "Δ mass on first key"):
            table.add_column(name, justify="right")
        for row in self.top(MAX_SHOWN):
            numbers = f"{row.distance:.4f}", f"{row.entropy:+.4f}", f"{row.first_share:+.4f}"
            table.add_row(row.site, str(row.head), *numbers)
        lines = [f"{len(self.rows)} heads, the most different first", format_table(table)]
        lines += [f"in one only: {', '.join(self.unmatched)}"] if self.unmatched else []
        return "\n".join(lines)


@torch.no_grad()
def compare_sights(first: Sight, second: Sight) -> SightComparison:
    """Compare the maps of every head in two sights.

    Sites are matched by name, or in order where no name is shared. With tokens on both sides
    (`look(model, tokens=…)`) positions are aligned by their text, and mass on tokens that only one
    text has counts as different; without tokens both need equal lengths.

    >>> x = torch.randn(5, 4)
    >>> sight = rg.Sight([rg.make_site(x, x)])
    >>> rg.inspection.compare_sights(sight, sight).rows[0].distance
    0.0
    """
    a = {site.name: site for site in first.join_all()}
    b = {site.name: site for site in second.join_all()}
    if not a.keys() & b.keys():
        b = dict(zip(a, b.values(), strict=False))  # another architecture: by depth
    shared = [name for name in a if name in b]
    if not shared:
        raise LookError("sights: need a site each to be compared, got none")
    rows = [row for name in shared for row in _compare(a[name], b[name])]
    return SightComparison(rows, [n for n in {**a, **b} if n not in shared])


def _compare(a: Site, b: Site) -> list[HeadDifference]:
    if a.heads != b.heads:
        raise LookError(
            f"{a.name}: needs as many heads in both sights, got {a.heads} and {b.heads}"
        )
    queries = _align(a.queries, b.queries, a.query_tokens, b.query_tokens, a.name)
    keys = _align(a.keys, b.keys, a.key_tokens, b.key_tokens, a.name)
    total = torch.zeros(a.heads, dtype=torch.double)
    for start in range(0, len(queries), BAND):
        band = queries[start : start + BAND]
        w, other = (_rows(site, [pair[k] for pair in band]) for k, site in enumerate((a, b)))
        one, two = ([pair[k] for pair in keys] for k in (0, 1))
        near, far = w[..., one], other[..., two]
        # what lies on tokens that only one has counts whole
        left = (w.sum(-1) - near.sum(-1)) + (other.sum(-1) - far.sum(-1))
        total += 0.5 * ((near - far).abs().sum(-1) + left).sum(-1).double().cpu()
    means = [
        [getattr(site.survey(statistics=(name,)), name)[0].float().mean(-1) for site in (a, b)]
        for name in ("entropy", "first_share")
    ]
    distance = (total / max(1, len(queries))).tolist()
    entropy, first = ((y - x).tolist() for x, y in means)
    return [
        HeadDifference(a.name, head, *(round(x[head], 6) for x in (distance, entropy, first)))
        for head in range(a.heads)
    ]


def _rows(site: Site, rows: Sequence[int]) -> Tensor:
    """Some rows of the maps of the first sequence, (head, row, key)."""
    low, high = min(rows), max(rows) + 1
    return site.window(rows=slice(low, high))[0][:, [row - low for row in rows]]


def _align(a: int, b: int, words: Any, others: Any, name: str) -> list[tuple[int, int]]:
    """Pairs of positions with the same token, in order; equal positions without tokens."""
    if words is None or others is None:
        if a != b:
            raise LookError(
                f"{name}: needs tokens to align texts of {a} and {b} positions, got none; "
                "try look(model, tokens=…) for both"
            )
        return [(i, i) for i in range(a)]
    if a == b and words[0] == others[0]:
        return [(i, i) for i in range(a)]
    matcher = SequenceMatcher(None, list(words[0]), list(others[0]), autojunk=False)
    blocks = matcher.get_matching_blocks()
    pairs = [(x.a + k, x.b + k) for x in blocks for k in range(x.size)]
    if not pairs:
        raise LookError(f"{name}: needs texts with a token in common, got none")
    return pairs
