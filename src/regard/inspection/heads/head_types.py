"""The word for a head: the numbers behind it, the thresholds, and the order of the questions."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When a number earns its word, each with the reason for its value.

    >>> Thresholds().majority
    0.5
    """

    majority: float = 0.5  # more than half of the weight: no two places can both have it
    hard: float = 0.9  # one key takes nine tenths, so the rest moves the output little
    distinct: float = 0.9  # nearly every query has a key of its own: a permutation
    diffuse: float = 0.9  # nine tenths of the entropy that equal weights would have
    local_share: float = 0.9  # nearly all weight within the radius …
    residual: float = 0.15  # … and the same kernel at each place, up to this share of the weight
    monotone: float = 0.9  # correlation of the query's place with the place it looks at
    focused: float = 0.5  # an alignment uses at most half of the largest entropy
    max_offset: int = 8  # offsets up to this are looked at one by one


@dataclass(frozen=True, kw_only=True)
class HeadRow:
    """One head: its type and the numbers behind the word, means over queries that had a choice.

    >>> row = HeadRow(site="encoder.0.self", call=0, head=1, query_count=9, kind="self", previous_share=0.8)
    >>> classify_head(row)
    ('previous', 'previous 0.80 > 0.5')
    """

    site: str
    call: int
    head: int
    query_count: int  # queries that are real and may see at least two keys
    kind: str = "self"
    type: str = "mixed"
    reason: str = ""  # the numbers that decided
    self_share: float = 0.0  # weight on its own place
    previous_share: float = 0.0  # on the place before
    next_share: float = 0.0  # on the place after
    offset: int = 0  # the best of the other offsets up to Thresholds.furthest …
    offset_share: float = 0.0  # … and the weight there
    local_share: float = 0.0  # weight within `radius`
    radius: int = 0
    kernel: tuple[float, ...] = ()  # mean weight at -radius … radius, the fitted convolution
    residual: float = 1.0  # share of the weight that would have to move to be that convolution
    sink_share: float = 0.0  # weight on the first key, and on sinks that give nothing
    separator_share: float = 0.0  # weight on separators, other than the first key
    peak: float = 0.0  # the largest weight
    distinct: float = 0.0  # share of queries whose peak is at a key of its own
    normalized_entropy: float = 0.0  # entropy as a share of the largest there could be
    mean_distance: float = 0.0  # how far it looks, in places
    monotone: float = 0.0  # correlation of where it stands and where it looks
    induction: float | None = None  # weight on what followed the same token before (see `probe`)
    duplicate: float | None = None  # weight on the same token before (see `probe`)


def classify_head(row: HeadRow, thresholds: Thresholds | None = None) -> tuple[str, str]:
    """The type of a head and the numbers that decided, the first question that is answered yes.

    >>> classify_head(HeadRow(site="a", call=0, head=0, query_count=9, normalized_entropy=0.97))
    ('diffuse', 'spread 0.97 ≥ 0.9')
    """
    t = thresholds or Thresholds()
    if not row.query_count:
        return "forced", "no query had two keys to choose from"
    for name, share in _places(row):
        if share is not None and share > t.majority:
            return name, f"{name} {share:.2f} > {t.majority:g}"
    if row.kind == "cross" and row.monotone >= t.monotone and row.normalized_entropy <= t.focused:
        return "alignment", (
            f"monotone {row.monotone:.2f} ≥ {t.monotone:g}, spread {row.normalized_entropy:.2f} ≤ {t.focused:g}"
        )
    if row.radius > 1 and row.local_share >= t.local_share and row.residual <= t.residual:
        return "local", (
            f"near {row.local_share:.2f} ≥ {t.local_share:g}, residual {row.residual:.2f} ≤ {t.residual:g}"
        )
    if row.peak >= t.hard:
        name = "permutation" if row.distinct >= t.distinct else "hard"
        return name, f"peak {row.peak:.2f} ≥ {t.hard:g}, distinct {row.distinct:.2f}"
    if row.normalized_entropy >= t.diffuse:
        return "diffuse", f"spread {row.normalized_entropy:.2f} ≥ {t.diffuse:g}"
    return (
        "mixed",
        f"no place has more than half; peak {row.peak:.2f}, spread {row.normalized_entropy:.2f}",
    )


def _places(row: HeadRow) -> list[tuple[str, float | None]]:
    """The places that may hold more than half of the weight."""
    repeated = [("induction", row.induction), ("duplicate", row.duplicate)]
    keys = [("separator", row.separator_share), ("sink", row.sink_share)]
    if row.kind == "cross":  # places in two sequences are not comparable one by one
        return [*repeated, *keys]
    offset = (f"offset {row.offset:+d}", row.offset_share)
    beside = [
        ("identity", row.self_share),
        ("previous", row.previous_share),
        ("next", row.next_share),
        offset,
    ]
    return [*repeated, *beside, *keys]
