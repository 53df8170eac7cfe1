"""A table of attention heads, each with its type and the numbers that decided it."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from html import escape
from itertools import chain
from typing import Any

from regard.errors import ShapeError, suggestion
from regard.inspection.heads.head_types import COLUMNS, MORE_COLUMNS, HeadRow, Thresholds, with_type
from regard.inspection.heads.measures import measure_heads, merge_layers
from regard.inspection.sites.site import Site
from regard.ops import Survey
from regard.tables import html_table

TABLE_COLUMNS = {name: column.heading for name, column in COLUMNS.items()}
SCORE_COLUMNS = {
    "induction": "induction",
    "previous_share": "previous",
    "duplicate": "duplicate",
    "retrieval": "retrieval",
    "sink_share": "sink",
}


@dataclass(frozen=True, repr=False)
class HeadTable:
    """A table of heads, one `HeadRow` per head.

    >>> row = HeadRow(site="encoder.0.self", call=0, head=1, query_count=9, type="sink")
    >>> heads = HeadTable([row])
    >>> heads.types, heads["encoder.0.self", 1].type
    ({'sink': 1}, 'sink')
    """

    rows: list[HeadRow]
    columns: Mapping[str, str] = field(default_factory=lambda: TABLE_COLUMNS)  # printed
    note: str = ""  # what is missing, printed too

    @property
    def types(self) -> dict[str, int]:
        """Number of heads per type, the most frequent first."""
        return dict(Counter(row.type for row in self.rows).most_common())

    def of_type(self, head_type: str) -> "HeadTable":
        """The heads of one type."""
        return replace(self, rows=[row for row in self.rows if row.type == head_type])

    def top(self, count: int = 10, *, by: str) -> "HeadTable":
        """The heads with the largest number of a column or field, such as "induction".

        >>> rows = [HeadRow(site="a", call=0, head=h, query_count=9, peak=h / 9) for h in range(3)]
        >>> [row.head for row in HeadTable(rows).top(2, by="peak")]
        [2, 1]
        """
        name = self.field_name(by)
        known = [row for row in self.rows if row.number(name) is not None]
        return replace(self, rows=sorted(known, key=lambda row: -row.number(name))[:count])

    def field_name(self, by: str) -> str:
        """The field of a row with numbers, from its name or the heading of its column."""
        headings = {heading: name for name, heading in {**TABLE_COLUMNS, **SCORE_COLUMNS}.items()}
        name = headings.get(by, by)
        words = {"site", "call", "kind", "type", "reason", "kernel", "statistics"}
        names = {*(f.name for f in fields(HeadRow)), *MORE_COLUMNS} - words
        if name not in names:
            raise ShapeError(
                f"by: needs a number of a head, got {by!r}{suggestion(by, [*names, *headings])}"
            )
        return name

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts, for a data frame or JSON."""
        return [(row := asdict(x)) | row.pop("statistics") for x in self.rows]

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

    def __repr__(self) -> str:
        width = max([4, *(len(row.site) for row in self.rows)])
        headings = "".join(f"{heading:>10}" for heading in self.columns.values())
        lines = [f"{'site':<{width}}  head  {'type':<12}{headings}"]
        for row in self.rows:
            numbers = "".join(_format_number(row.number(name)) for name in self.columns)
            lines.append(f"{row.site:<{width}}  {row.head:>4}  {row.type:<12}{numbers}")
        return "\n".join([*lines, *([self.note] if self.note else [])])

    def _repr_html_(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.types.items())
        columns = ("site", "head", "type", *self.columns, "reason")
        rows = ([row.number(name) for name in columns] for row in self.rows)
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return f"<p>{len(self)} heads: {escape(counts)}</p>{note}" + html_table(columns, rows)


def _format_number(x: float | None) -> str:
    return f"{x:10.2f}" if x is not None else f"{'':10}"


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
    pairs = zip(sites, surveys, strict=True) if surveys else ()
    given = ((site, survey, [site]) for site, survey in pairs)
    merged = ((site, None, layers) for site, layers in merge_layers(() if surveys else sites))
    for site, survey, layers in chain(given, merged):
        for row in measure_heads(site, frozenset(separators), thresholds, survey, layers):
            if copying := probed.get((row.site, row.head)):
                names = ("induction", "duplicate", "retrieval")
                row = replace(row, **{name: getattr(copying, name) for name in names})
            rows.append(with_type(row, thresholds))
    return HeadTable(rows)
