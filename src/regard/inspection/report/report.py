"""Writes a self-contained HTML page about a sight, of bounded size."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
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
from regard.inspection.report.predictions import Predictions
from regard.inspection.report.report_data import PageBudget, site_data, survey_for_page

TEMPLATE = Path(__file__).with_name("report.html")
FACT_START, FACT_END = 300, 100  # characters shown of a longer text
REPORT_COLUMNS = (
    "self_share",
    "previous_share",
    "next_share",
    "local_share",
    "sink_share",
    "separator_share",
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
    facts: Mapping[str, str] | None = None,
    predictions: Predictions | None = None,
    header_html: str = "",
) -> Path:
    """Write one HTML file about all attentions of a sight; it needs no network and no server.

    It has the type, numbers and description of every head, maps to enlarge, statistics per
    position and top keys per token. Its size is bounded for any input: long maps are pooled, with
    exact blocks where the weight is.

    Args:
        sight: The sight.
        path: File to write.
        title: Title of the page.
        batch: Index of the sequence.
        queries: Queries to show exact blocks around; chosen automatically by default.
        separators: Tokens such as "[SEP]" or "." that count as separators.
        probe: Result of `score_heads`.
        thresholds: Limits of the head types.
        facts: Names and texts to put first, such as the model and its input; long ones are cut.
        predictions: Outputs of the model, per position or for the whole input.
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
    longest = max(site.queries for site in sites)
    for i in queries:
        if not -longest <= i < longest:
            raise ShapeError(f"queries: needs less than {longest}, got {i}; try {longest - 1}")
    budget = PageBudget.for_heads(sum(site.heads for site in sites), longest)
    surveys = [survey_for_page(site, budget) for site in sites]
    heads = classify_heads(
        sites, separators=separators, probe=probe, thresholds=thresholds, surveys=surveys
    )
    rows = iter(heads)
    data = [
        site_data(site, survey, list(islice(rows, site.heads)), budget, batch, queries)
        for site, survey in zip(sites, surveys, strict=True)
    ]
    columns = REPORT_COLUMNS if probe is None else (*REPORT_COLUMNS, "induction", "duplicate")
    counts = ", ".join(f"{count} {name}" for name, count in heads.types.items())
    missing = f"; {sight.missing}" if sight.missing else ""
    skipped = format_skipped(sight.skipped, names=len(sight.skipped))
    items = "".join(f"<li>{escape(line)}</li>" for line in skipped)
    parts = {
        "TITLE": escape(title),
        "SUMMARY": escape(f"{len(data)} attentions, {len(heads)} heads: {counts}{missing}"),
        "VERSION": escape(version("regard")),
        "SKIPPED": f"<p>Skipped:</p><ul>{items}</ul>" if items else "",
        "FACTS": _render_facts(facts or {}, predictions),
        "HEADER": header_html,
        "HEADINGS": "".join(f'<th scope="col">{name}</th>' for name in columns),
        "ROWS": _render_rows(data, heads, columns),
        "DATA": _page_json(data, predictions),
    }
    # one pass: a placeholder inside a title or a token is not replaced
    page = TEMPLATE.read_text(encoding="utf-8")
    return write_text(path, re.sub(r"\[\[([A-Z]+)\]\]", lambda match: parts[match[1]], page))


def _page_json(data: list[dict[str, Any]], predictions: Predictions | None) -> str:
    """The data of the script; sites with the same labels share them."""
    labels: list[Any] = []
    for site in data:
        for name in ("query_labels", "key_labels"):
            if site[name] not in labels:
                labels.append(site[name])
            site[name] = labels.index(site[name])
    page: dict[str, Any] = {"sites": data, "labels": labels, "predictions": None}
    if predictions is not None and len(predictions.rows) > 1:
        last = data[-1]  # the outputs are computed from its queries
        shown = last["top"]["rows"] if last["queries"] == len(predictions.rows) else []
        rows = {i: predictions.rows[i] for i in shown}
        page["predictions"] = {
            "labels": last["query_labels"],
            "kind": predictions.kind,
            "rows": rows,
        }
    # "</script>" inside the data would end the script
    return json.dumps(page, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _render_facts(facts: Mapping[str, str], predictions: Predictions | None) -> str:
    items = []
    for name, text in facts.items():
        cut = f"{text[:FACT_START]} … {text[-FACT_END:]} ({len(text):,} characters)"
        text = text if len(text) <= FACT_START + FACT_END else cut
        items.append(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>")
    if predictions is not None and predictions.rows:
        bars = "".join(
            f'<li><span>{escape(name)}</span><i style="width: {100 * p:.1f}%"></i>'
            f"<span>{p:.3f}</span></li>"
            for name, p in predictions.rows[predictions.at]
            if p >= 0.0005  # would read 0.000
        )
        items.append(
            f'<dt>{predictions.kind.capitalize()}</dt><dd><ol class="bars">{bars}</ol></dd>'
        )
    return f"<dl>{''.join(items)}</dl>" if items else ""


def _render_rows(data: list[dict[str, Any]], heads: HeadTable, columns: Sequence[str]) -> str:
    """The rows of the table of heads, readable without JavaScript."""
    lines, rows = [], iter(heads)
    for i, site in enumerate(data):
        name = escape(site["name"]) + (f" (call {site['call']})" if site["call"] else "")
        for row in islice(rows, len(site["heads"])):
            target = f'data-site="{i}" data-head="{row.head}"'
            button = f'<button type="button" class="go" {target}>{row.head}</button>'
            numbers = "".join(f"<td>{getattr(row, name) or 0:.3f}</td>" for name in columns)
            lines.append(
                f'<tr data-type="{row.type.split()[0]}"><th scope="row">{name}</th>'
                f'<td>{button}</td><td class="type" title="{escape(row.reason)}">'
                f"{escape(row.type)}</td>{numbers}</tr>"
            )
    return "\n".join(lines)
