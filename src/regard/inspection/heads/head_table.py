"""A table of attention heads, each with its type and the numbers that decided it."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import repeat
from typing import Any

from regard.errors import ShapeError
from regard.inspection.heads.head_types import HeadRow, Thresholds, with_type
from regard.inspection.heads.measures import measure_heads
from regard.inspection.sites.site import Site
from regard.ops import Survey
from regard.tables import html_table

TABLE_COLUMNS = {  # field of HeadRow -> heading of the text table
    "self_share": "self",
    "previous_share": "previous",
    "next_share": "next",
    "local_share": "local",
    "sink_share": "sink",
    "peak": "peak",
    "normalized_entropy": "entropy",
    "mean_distance": "distance",
}


@dataclass(frozen=True)
class HeadTable:
    """A table of heads, one `HeadRow` per head.

    >>> row = HeadRow(site="encoder.0.self", call=0, head=1, query_count=9, type="sink")
    >>> heads = HeadTable([row])
    >>> heads.types, heads["encoder.0.self", 1].type
    ({'sink': 1}, 'sink')
    """

    rows: list[HeadRow]

    @property
    def types(self) -> dict[str, int]:
        """Number of heads per type, the most frequent first."""
        return dict(Counter(row.type for row in self.rows).most_common())

    def of_type(self, head_type: str) -> "HeadTable":
        """The heads of one type."""
        return HeadTable([row for row in self.rows if row.type == head_type])

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts, for a data frame or JSON."""
        return [asdict(row) for row in self.rows]

    def __getitem__(self, at: int | tuple[str, int]) -> HeadRow:
        if isinstance(at, int):
            return self.rows[at]
        for row in self.rows:
            if (row.site, row.head) == at:
                return row
        raise ShapeError(f"at: needs a site and one of its heads, got {at}; try heads.rows")

    def __iter__(self) -> Iterator[HeadRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        width = max([4, *(len(row.site) for row in self.rows)])
        headings = "".join(f"{heading:>9}" for heading in TABLE_COLUMNS.values())
        lines = [f"{'site':<{width}}  head  {'type':<12}{headings}"]
        for row in self.rows:
            numbers = "".join(f"{getattr(row, name):9.2f}" for name in TABLE_COLUMNS)
            lines.append(f"{row.site:<{width}}  {row.head:>4}  {row.type:<12}{numbers}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.types.items())
        columns = ("site", "head", "type", *TABLE_COLUMNS, "reason")
        rows = ([getattr(row, name) for name in columns] for row in self.rows)
        return f"<p>{len(self)} heads: {escape(counts)}</p>" + html_table(columns, rows)


def classify_heads(
    sites: Iterable[Site],
    *,
    separators: Collection[str] = (),
    probe: HeadTable | None = None,
    thresholds: Thresholds | None = None,
    surveys: Iterable[Survey] | None = None,
) -> HeadTable:
    """Classify every head of the sites; the options are those of `Sight.heads`.

    `surveys` of the sites may be given if they have all of `HEAD_STATISTICS`.

    >>> classify_heads([rg.make_site(*torch.zeros(2, 8, 2))])[0].type
    'diffuse'
    """
    thresholds = thresholds or Thresholds()
    probed = {(row.site, row.head): row for row in probe or ()}
    rows = []
    for site, survey in zip(sites, repeat(None) if surveys is None else surveys, strict=False):
        for row in measure_heads(site, frozenset(separators), thresholds, survey):
            if copying := probed.get((row.site, row.head)):
                row = replace(row, induction=copying.induction, duplicate=copying.duplicate)
            rows.append(with_type(row, thresholds))
    return HeadTable(rows)
