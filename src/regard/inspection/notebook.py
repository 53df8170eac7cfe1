"""What a notebook shows of a sight, a site, a survey and a table of heads: small tables, no map."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape

from torch import Tensor

from regard.inspection.heads.head_table import TABLE_COLUMNS, HeadTable
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.ops import Survey

MAX_AUTO_WEIGHTS = (
    1 << 24
)  # weights that are surveyed for a display without being asked; well under a second
MAX_HTML_ROWS = 200  # rows of a table


def heads_html(heads: HeadTable) -> str:
    """The table of heads, its types counted above it.

    >>> heads_html(HeadTable([])).startswith("<p>0 heads")
    True
    """
    counts = ", ".join(f"{count} {name}" for name, count in heads.types.items())
    names = ("site", "head", "type", *TABLE_COLUMNS, "why")
    rows = (
        (r.site, r.head, r.type, *(getattr(r, name) for name in TABLE_COLUMNS), r.reason)
        for r in heads
    )
    return f"<p>{len(heads)} heads: {escape(counts)}</p>" + html_table(names, rows)


def sight_html(sight: Sight) -> str:
    """Every attention that ran, and what was not seen.

    >>> "not seen" in sight_html(Sight(skipped={"encoder.0.self": "it was full"}))
    True
    """
    names = ("site", "call", "kind", "heads", "queries", "keys", "batch")
    rows = ((s.name, s.call, s.kind, s.heads, s.queries, s.keys, s.batch) for s in sight)
    missing = "".join(
        f"<p>not seen: {escape(name)}, {escape(reason)}</p>"
        for name, reason in sight.skipped.items()
    )
    return f"<p>{len(sight)} attentions</p>" + html_table(names, rows) + missing


def site_html(site: Site) -> str:
    """One attention: what it is and, where that is quick, the means of its statistics by head.

    >>> "diffuse" in site_html(rg.make_site(*torch.zeros(2, 9, 4)))
    True
    """
    said = f"<p>{escape(repr(site))}</p>"
    if not site.has_tensors or site.q.shape[:-1].numel() * site.keys > MAX_AUTO_WEIGHTS:
        return said
    from regard.inspection.heads.head_table import classify_heads

    return said + heads_html(classify_heads([site]))


def survey_html(survey: Survey) -> str:
    """What was asked: of each statistic its axes, least, mean and most.

    >>> "<td>0.250</td>" in survey_html(Survey(peak=torch.tensor([0.25])))
    True
    """
    asked = ((f.name, getattr(survey, f.name)) for f in fields(survey))
    rows = ((name, *_range(x)) for name, x in asked if x is not None)
    return html_table(("statistic", "shape", "least", "mean", "most"), rows)


def html_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; numbers to three places, text escaped, long ones cut with a note.

    >>> html_table(["a"], [["<"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = ["".join(f"<td>{_cell(x)}</td>" for x in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines[:MAX_HTML_ROWS])
    more = f"<p>… and {len(lines) - MAX_HTML_ROWS} more</p>" if len(lines) > MAX_HTML_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(x: object) -> str:
    return f"{x:.3f}" if isinstance(x, float) else escape(str(x))


def _range(x: Tensor) -> tuple[str, float, float, float]:
    x, shape = x.detach(), " × ".join(str(size) for size in x.shape)
    if not x.numel():
        return shape, float("nan"), float("nan"), float("nan")
    x = x.double()
    return shape, x.min().item(), x.mean().item(), x.max().item()


# Set here: Survey lives below this layer and must not know it, and Sight and Site need no display
# outside of notebooks.
for _kind, _show in ((Sight, sight_html), (Site, site_html), (Survey, survey_html)):
    _kind._repr_html_ = _show  # type: ignore[attr-defined]
