"""Writes a self-contained HTML page about a sight, of bounded size."""

import json
import re
from collections.abc import Collection, Sequence
from html import escape
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from regard.errors import FileError, LookError, ShapeError
from regard.files import write_text
from regard.inspection.heads.head_table import HeadTable, classify_heads
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

    It has the type, numbers and description of every head, pooled maps, statistics per position,
    top keys per token, and exact windows. Its size is bounded for any input.

    Args:
        sight: The sight.
        path: File to write.
        title: Title of the page.
        batch: Index of the sequence.
        queries: Queries to show exact windows around; chosen automatically by default.
        separators: Tokens such as "[SEP]" or "." that count as separators.
        probe: Result of `score_heads`.
        thresholds: Limits of the head types.
        header_html: HTML to put first; it is not escaped.

    >>> import tempfile
    >>> sight = rg.Sight([rg.make_site(*torch.randn(2, 5, 4), tokens=list("abcde"))])
    >>> rg.inspection.write_report(sight, Path(tempfile.mkdtemp()) / "report.html").name
    'report.html'
    """
    path = Path(path)
    sites = sight.join_all()
    if not sites:
        raise LookError("sight: needs at least one attention, got none; try look(model)")
    if not 0 <= batch < (size := min(site.batch for site in sites)):
        raise ShapeError(f"batch: needs less than {size}, got {batch}; try 0")
    if not path.resolve().parent.is_dir():
        raise FileError(f"{path}: needs an existing folder, got none of that name")
    heads = classify_heads(sites, separators=separators, probe=probe, thresholds=thresholds)
    longest = max(site.queries for site in sites)
    budget, rows = PageBudget.for_heads(len(heads), longest), iter(heads)
    data = [site_data(s, list(islice(rows, s.heads)), budget, batch, queries) for s in sites]
    counts = ", ".join(f"{count} {name}" for name, count in heads.types.items())
    skipped = format_skipped(sight.skipped, names=len(sight.skipped))
    items = "".join(f"<li>{escape(line)}</li>" for line in skipped)
    parts = {
        "TITLE": escape(title),
        "SUMMARY": escape(f"{len(data)} attentions, {len(heads)} heads: {counts}"),
        "VERSION": escape(version("regard")),
        "SKIPPED": f"<p>Skipped:</p><ul>{items}</ul>" if items else "",
        "HEADER": header_html,
        "HEADINGS": "".join(f'<th scope="col">{name}</th>' for name in REPORT_COLUMNS),
        "ROWS": _render_rows(data),
        # "</script>" inside the data would end the script
        "DATA": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    # one pass: a placeholder inside a title or a token is not replaced
    page = TEMPLATE.read_text(encoding="utf-8")
    return write_text(path, re.sub(r"\[\[([A-Z]+)\]\]", lambda match: parts[match[1]], page))


def _render_rows(data: list[dict[str, Any]]) -> str:
    """The rows of the table of heads, readable without JavaScript."""
    lines = []
    for i, site in enumerate(data):
        for row in site["heads"]:
            name = escape(site["name"]) + (f" (call {site['call']})" if site["call"] else "")
            target = f'data-site="{i}" data-head="{row["head"]}"'
            button = f'<button class="go" {target}>{row["head"]}</button>'
            numbers = "".join(f"<td>{row[n]:.3f}</td>" for n in REPORT_COLUMNS)
            kind = row["type"].split()[0]
            lines.append(
                f'<tr data-type="{kind}"><th scope="row">{name}</th><td>{button}</td>'
                f'<td class="type" title="{escape(row["reason"])}">{escape(row["type"])}</td>'
                f"{numbers}</tr>"
            )
    return "\n".join(lines)
