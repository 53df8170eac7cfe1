"""One self-contained page about a sight: it opens offline and never holds a whole long map."""

import json
import re
from collections.abc import Collection, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from regard.errors import FileError, LookError, ShapeError
from regard.files import write_text
from regard.inspection.heads.head_table import HeadTable, classify_heads, join_all_calls
from regard.inspection.heads.head_types import Thresholds
from regard.inspection.record.sight import Sight, format_skipped
from regard.inspection.report.report_data import PageBudget, site_data

TEMPLATE = Path(__file__).with_name("report.html")
REPORT_COLUMNS = (
    "self_share",
    "previous_share",
    "next_share",
    "local_share",
    "sink_share",
    "peak",
    "normalized_entropy",
    "mean_distance",
    "monotone",
)


def write_report(
    sight: Sight,
    path: str | Path,
    *,
    title: str = "What the heads look at",
    batch: int = 0,
    queries: Sequence[int] = (),
    separators: Collection[str] = (),
    probe: HeadTable | None = None,
    thresholds: Thresholds | None = None,
    header_html: str = "",
) -> Path:
    """Write one HTML file about all attentions of a sight; it needs no network and no server.

    It holds every head's type, numbers and words, pooled maps, strips of statistics, the top keys
    of the tokens, and exact windows `around` chosen queries. Its size is bounded for any input.
    `above` is HTML of your own that comes first; what stands in it is yours to escape.

    >>> import tempfile
    >>> sight = rg.Sight([rg.make_site(*torch.randn(2, 5, 4), tokens=list("abcde"))])
    >>> rg.write_report(sight, Path(tempfile.mkdtemp()) / "report.html").name
    'report.html'
    """
    path = Path(path)
    sites = join_all_calls(sight)
    if not sites:
        raise LookError("sight: needs at least one attention, got none; try look(model)")
    if not 0 <= batch < (least := min(site.batch for site in sites)):
        raise ShapeError(f"batch: needs less than {least}, got {batch}; try 0")
    if not path.resolve().parent.is_dir():
        raise FileError(f"{path}: needs a folder that exists, got none of that name")
    found = classify_heads(sites, separators=separators, probe=probe, thresholds=thresholds)
    longest = max(site.queries for site in sites)
    shares, at, data = PageBudget.for_heads(len(found), longest), 0, []
    for site in sites:
        rows = found.rows[at : at + site.heads]
        data.append(site_data(site, rows, shares, batch, queries))
        at += site.heads
    write_text(path, _page(title, data, found, sight.skipped, header_html))
    return path


def _page(
    title: str, data: list[dict[str, Any]], found: HeadTable, skipped: dict[str, str], above: str
) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in found.types.items())
    facts = f"{len(data)} attentions, {len(found)} heads: {counts}"
    missing = "".join(
        f"<li>{escape(line)}</li>" for line in format_skipped(skipped, names=len(skipped))
    )
    parts = {
        "TITLE": escape(title),
        "FACTS": escape(facts),
        "VERSION": escape(version("regard")),
        "SKIPPED": f"<p>Not seen:</p><ul>{missing}</ul>" if missing else "",
        "ABOVE": above,
        "HEADINGS": "".join(f'<th scope="col">{name}</th>' for name in REPORT_COLUMNS),
        "ROWS": _rows(data),
        # inside a script a "<" could end it
        "DATA": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    # one pass, so that a mark inside a title or a token stays what it is
    return re.sub(
        r"\[\[([A-Z]+)\]\]", lambda mark: parts[mark[1]], TEMPLATE.read_text(encoding="utf-8")
    )


def _rows(data: list[dict[str, Any]]) -> str:
    """The table of heads, readable without a script too."""
    lines = []
    for at, site in enumerate(data):
        for row in site["heads"]:
            name = escape(site["name"]) + (f" (call {site['call']})" if site["call"] else "")
            here = f'data-site="{at}" data-head="{row["head"]}"'
            look = f'<button class="go" {here}>{row["head"]}</button>'
            numbers = "".join(f"<td>{row[n]:.3f}</td>" for n in REPORT_COLUMNS)
            kind = row["type"].split()[0]
            lines.append(
                f'<tr data-type="{kind}"><th scope="row">{name}</th><td>{look}</td>'
                f'<td class="type" title="{escape(row["reason"])}">{escape(row["type"])}</td>'
                f"{numbers}</tr>"
            )
    return "\n".join(lines)
