"""Attention heads as rows of a table: the measured numbers, the thresholds and the types."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from html import escape
from typing import Any, NamedTuple

from regard.errors import ShapeError, counted, suggestion
from regard.ops.maybe_none import MaybeNone
from regard.ops.survey.statistics import QUERY_STATISTICS, STATISTICS
from regard.tables import html_table


class HeadColumn(NamedTuple):
    """A number of a head as tables and the page show it; `maximum` is None where it has none."""

    name: str
    heading: str
    label: str
    maximum: float | None = None


def _column(heading: str, label: str, maximum: float | None = 1) -> Any:
    return field(default=0.0, metadata={"column": (heading, label, maximum)})


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits of the head types, each with the reason for its value."""

    majority: float = 0.5  # more than half of the weight: no two positions can both have it
    hard: float = 0.9  # one key has nine tenths, so the others change the output little
    distinct: float = 0.9  # share of queries with a key of their own: a permutation
    diffuse: float = 0.9  # nine tenths of the entropy of equal weights
    local_share: float = 0.9  # nearly all weight within the radius …
    residual: float = 0.15  # … and the same kernel at each position, up to this share of the weight
    monotone: float = 0.9  # correlation of the query's position with the position it looks at
    focused: float = 0.5  # an alignment has at most half of the largest entropy
    max_offset: int = 8  # offsets up to this are measured one by one


@dataclass(frozen=True, kw_only=True)
class HeadRow:
    """One head: its type and its numbers, means over the queries with two or more visible keys.

    >>> row = HeadRow(site="encoder.0.self", call=0, head=1, query_count=9, previous_share=0.8)
    >>> classify_head(row)
    ('previous', 'previous 0.80 > 0.5')
    """

    site: str
    call: int
    head: int
    query_count: int  # queries that are not padding and see at least two keys
    kind: str = "self"
    type: str = "mixed"
    reason: str = ""  # the numbers that decided
    self_share: float = _column("self", "weight on its own position")
    previous_share: float = _column("previous", "weight on the position before")
    next_share: float = _column("next", "weight on the position after")
    offset: int = 0  # the heaviest other offset up to Thresholds.max_offset …
    offset_share: float = 0.0  # … and its weight
    local_share: float = _column("local", "weight nearby")  # within `radius`
    radius: int = 0
    kernel: tuple[float, ...] = ()  # fitted convolution: mean weight at -radius … radius
    residual: float = 1.0  # share of the weight that differs from that convolution
    sink_share: float = _column("sink", "weight on the first token")  # and on learned sinks
    separator_share: float = 0.0  # weight on separators, without the first key
    peak: float = _column("peak", "largest weight")
    distinct: float = 0.0  # share of queries whose peak is at a key of their own
    # entropy divided by log(visible keys)
    normalized_entropy: float = _column("entropy", "entropy, 0 one key, 1 all alike")
    mean_distance: float = _column("distance", "distance looked, in tokens", None)
    monotone: float = 0.0  # correlation of query position and mean key position
    # by `score_heads`: weight on the token after an earlier copy, and on the copy itself; share of
    # queries whose heaviest key has the next token
    induction: float | MaybeNone = None
    duplicate: float | MaybeNone = None
    retrieval: float | MaybeNone = None
    statistics: Mapping[str, float] = field(default_factory=dict)  # of the survey, see MORE_COLUMNS

    def number(self, name: str) -> Any:
        """A number of the head by the name of its column or field."""
        return self.statistics[name] if name in self.statistics else getattr(self, name)


COLUMNS = {
    f.name: HeadColumn(f.name, *f.metadata["column"])
    for f in fields(HeadRow)
    if "column" in f.metadata
}
MORE_COLUMNS = {  # statistics of a survey that are no field of a row
    name: HeadColumn(name, name.replace("_", " "), STATISTICS[name].meaning)
    for name in QUERY_STATISTICS
    if name not in HeadRow.__dataclass_fields__
}


def classify_head(row: HeadRow, thresholds: Thresholds | None = None) -> tuple[str, str]:
    """The type of a head and the reason: the first test in order that it passes.

    >>> classify_head(HeadRow(site="a", call=0, head=0, query_count=9, normalized_entropy=0.97))
    ('diffuse', 'normalized entropy 0.97 ≥ 0.9')
    """
    t = thresholds or Thresholds()
    if not row.query_count:
        return "forced", "no query had more than one visible key"
    entropy = f"normalized entropy {row.normalized_entropy:.2f}"
    for name, share in _majority_shares(row):
        if share is not None and share > t.majority:
            return name, f"{name} {share:.2f} > {t.majority:g}"
    if row.kind == "cross" and row.monotone >= t.monotone and row.normalized_entropy <= t.focused:
        return "alignment", (
            f"monotone {row.monotone:.2f} ≥ {t.monotone:g}, {entropy} ≤ {t.focused:g}"
        )
    if row.radius > 1 and row.local_share >= t.local_share and row.residual <= t.residual:
        local = f"local {row.local_share:.2f} ≥ {t.local_share:g}"
        return "local", f"{local}, residual {row.residual:.2f} ≤ {t.residual:g}"
    if row.peak >= t.hard:
        name = "permutation" if row.distinct >= t.distinct else "hard"
        return name, f"peak {row.peak:.2f} ≥ {t.hard:g}, distinct {row.distinct:.2f}"
    if row.normalized_entropy >= t.diffuse:
        return "diffuse", f"{entropy} ≥ {t.diffuse:g}"
    return "mixed", f"no position has more than half; peak {row.peak:.2f}, {entropy}"


def with_type(row: HeadRow, thresholds: Thresholds) -> HeadRow:
    """The row with its type and reason filled in."""
    head_type, reason = classify_head(row, thresholds)
    return replace(row, type=head_type, reason=reason)


def _majority_shares(row: HeadRow) -> list[tuple[str, float | None]]:
    """Types whose share may be more than half of the weight, in order of precedence."""
    repeated = [("induction", row.induction), ("duplicate", row.duplicate)]
    keys = [("separator", row.separator_share), ("sink", row.sink_share)]
    if row.kind == "cross":  # offsets between two sequences mean nothing
        return [*repeated, *keys]
    offsets = [("identity", row.self_share), ("previous", row.previous_share)]
    offsets += [("next", row.next_share), (f"offset {row.offset:+d}", row.offset_share)]
    return [*repeated, *offsets, *keys]


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
            values = map(row.number, self.columns)
            numbers = "".join(f"{'' if x is None else f'{x:.2f}':>10}" for x in values)
            lines.append(f"{row.site:<{width}}  {row.head:>4}  {row.type:<12}{numbers}")
        return "\n".join([*lines, *([self.note] if self.note else [])])

    def _repr_html_(self) -> str:
        size = counted(len(self), "head")
        counts = ", ".join(f"{count} {name}" for name, count in self.types.items())
        columns = ("site", "head", "type", *self.columns, "reason")
        rows = ([row.number(name) for name in columns] for row in self.rows)
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return f"<p>{size}: {escape(counts)}</p>{note}" + html_table(columns, rows)
