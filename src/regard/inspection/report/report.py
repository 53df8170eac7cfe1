"""Writes the page about a sight: heads, maps, linear mixers, experts and predictions."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import version
from itertools import islice
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import FileError, LookError, ShapeError, counted
from regard.files import write_text
from regard.inspection.heads.head_table import COLUMNS, MORE_COLUMNS, HeadRow, HeadTable, Thresholds
from regard.inspection.heads.measures import classify_heads
from regard.inspection.heads.mixer_table import MAX_HEADS, name_of_call
from regard.inspection.record.routers import Router
from regard.inspection.record.sight import Sight, format_skipped
from regard.inspection.report.report_data import (
    PageBudget,
    encode_base64,
    range_around,
    site_data,
    survey_for_page,
)
from regard.inspection.sites.labels import strip_marks
from regard.inspection.sites.mixer_site import MixerSite, first_heads, mixer_labels
from regard.ops.tiling import row_bands
from regard.page import offline_page, saved
from regard.page.document import plain_table

TOP = 5


class Predictions(NamedTuple):
    """Names with their probabilities, the largest first: one list per position, or one in all."""

    kind: str  # what is predicted: "next token", "token", "tag" or "class"
    rows: list[list[tuple[str, float]]]
    at: int = -1  # position shown first
    ids: Sequence[Sequence[int]] = ()  # of the names, as the model counts its outputs
    classes: int = 0  # that the model chooses from


def top_predictions(
    kind: str, logits: Float[Tensor, "position class"], names: Callable[[list[int]], list[str]]
) -> Predictions:
    """The most probable classes of each position; `names` are labels or tokens by index.

    >>> found = top_predictions("tag", torch.tensor([[0.0, 40.0]]), lambda ids: [*map(str, ids)])
    >>> found.rows, found.ids, found.classes
    ([[('1', 1.0), ('0', 0.0)]], [[1, 0]], 2)
    """
    rows, indices = [], []
    for band in row_bands(*logits.shape):
        part = logits[band.start : band.stop].float()
        best = part.topk(min(TOP, part.shape[-1]), -1)
        probabilities = (best.values - part.logsumexp(-1, keepdim=True)).exp()
        indices += best.indices.tolist()
        for p, classes in zip(probabilities.tolist(), best.indices.tolist(), strict=True):
            rows.append(
                [*zip(map(strip_marks, names(classes)), (round(x, 4) for x in p), strict=True)]
            )
    return Predictions(kind, rows, ids=indices, classes=logits.shape[-1])


FACT_START, FACT_END = 300, 100  # characters shown of a longer text
LEAST = 0.0005  # a probability below would read 0.000
# first_share of the page is that of the first key alone, which is sink_share
COLUMN_NAMES = tuple(
    name
    for name in (*COLUMNS, "separator_share", "monotone", *MORE_COLUMNS)
    if name != "first_share"
)


def write_report(
    sight: Sight, path: str | Path, *, title: str = "What the heads look at", batch: int = 0,
    queries: Sequence[int] = (), separators: Collection[str] = (), probe: HeadTable | None = None,
    thresholds: Thresholds | None = None, facts: Mapping[str, str] | None = None,
    predictions: Predictions | None = None,
) -> Path:  # fmt: skip
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

    >>> import tempfile
    >>> sight = rg.Sight([rg.make_site(*torch.randn(2, 5, 4), tokens=list("abcde"))])
    >>> rg.inspection.write_report(sight, Path(tempfile.mkdtemp()) / "report.html").name
    'report.html'
    """
    path = Path(path)
    sites = sight.join_all()
    every = [*sites, *sight.mixers]
    if not every:
        raise LookError("sight: needs an attention or a linear mixer, got none; try look(model)")
    if not 0 <= batch < (size := min(site.batch for site in every)):
        raise ShapeError(f"batch: needs less than {size}, got {batch}; try 0")
    if not path.resolve().parent.is_dir():
        raise FileError(f"{path}: needs an existing folder, got none of that name")
    longest = max(site.queries for site in every)
    for i in queries:
        if not -longest <= i < longest:
            raise ShapeError(f"queries: needs less than {longest}, got {i}; try {longest - 1}")
    budget = PageBudget.for_heads(max(1, sum(site.heads for site in sites)), longest)
    surveys = [survey_for_page(site, budget) for site in sites]
    heads = classify_heads(
        sites, separators=separators, probe=probe, thresholds=thresholds, surveys=surveys
    )
    columns = COLUMN_NAMES if probe is None else (*COLUMN_NAMES, "induction", "duplicate")
    table = [[row.site, str(row.head), row.type, *_numbers(row, columns)] for row in heads]
    rows, data = zip(heads, table, strict=True), []
    for site, survey in zip(sites, surveys, strict=True):
        of_site, texts = zip(*islice(rows, site.heads), strict=True)
        numbers = [[float(x) for x in row[3:]] for row in texts]
        page_data = site_data(site, survey, list(of_site), budget, batch, queries)
        data.append(page_data | {"numbers": numbers})
    counts = ", ".join(f"{count} {name}" for name, count in heads.types.items())
    panels = map_panels(sight, batch, queries)
    sizes = f"{counted(len(data), 'attention')}, {counted(len(heads), 'head')}"
    parts = [f"{sizes}: {counts}"] if data else []
    parts += [counted(len(sight.mixer_names), "linear mixer")] if sight.mixers else []
    summary = "; ".join(filter(None, (*parts, sight.missing, sight.coverage))) + "."
    outputs = _outputs(predictions)
    response: dict[str, Any] = {
        "summary": summary,
        "facts": [[name, _cut(text)] for name, text in (facts or {}).items()],
        "skipped": format_skipped(sight.skipped, names=len(sight.skipped)),
        "columns": columns,
        "panels": panels,
        "outputs": outputs,
        "written": f"Written by regard {version('regard')}.",
        **_with_shared_labels(data, predictions),
    }
    lines = [summary, *(f"{n}: {x}" for n, x in response["facts"]), *response["skipped"]]
    if outputs is not None:
        lines.append(", ".join(f"{name} {p:.3f}" for name, p in outputs["rows"]))
    plain = "".join(f"<p>{escape(line)}</p>" for line in lines)
    plain += plain_table("Heads", ("site", "head", "type", *columns), table)
    for panel in panels:
        plain += plain_table(panel["name"], panel["columns"], panel["rows"])
    page = offline_page(
        "/sight", [saved("sight", response)], title=title,
        plain_html=f"<h1>{escape(title)}</h1>{plain}",
    )  # fmt: skip
    return write_text(path, page)


def _numbers(row: HeadRow, columns: Sequence[str]) -> list[str]:
    return [f"{row.number(name) or 0:.3f}" for name in columns]


def _cut(text: str) -> str:
    """A text of bounded length, with its start and its end."""
    if len(text) <= FACT_START + FACT_END:
        return text
    return f"{text[:FACT_START]} … {text[-FACT_END:]} ({len(text):,} characters)"


def _outputs(predictions: Predictions | None) -> dict[str, Any] | None:
    """The most probable outputs at the position that is shown first."""
    if predictions is None or not predictions.rows:
        return None
    rows = [[name, p] for name, p in predictions.rows[predictions.at] if p >= LEAST]
    return {"kind": predictions.kind, "rows": rows}


def _with_shared_labels(
    data: list[dict[str, Any]], predictions: Predictions | None
) -> dict[str, Any]:
    """The sites, where those with the same labels share them, and predictions by position."""
    labels: list[Any] = []
    for site in data:
        for name in ("query_labels", "key_labels"):
            if site[name] not in labels:
                labels.append(site[name])
            site[name] = labels.index(site[name])
    page: dict[str, Any] = {"sites": data, "labels": labels, "predictions": None}
    if data and predictions is not None and len(predictions.rows) > 1:
        last = data[-1]  # the outputs are computed from its queries
        shown = last["top"]["rows"] if last["queries"] == len(predictions.rows) else []
        rows = {i: predictions.rows[i] for i in shown}
        labels_of = {"labels": last["query_labels"], "kind": predictions.kind}
        page["predictions"] = labels_of | {"rows": rows}
    return page


PANEL_CELLS = 100_000  # of the maps of a panel, two bytes each
SIDES = 8, 64  # tokens per side of a map, at least and at most
ZERO = 32767  # numbers are stored as multiples of scale / 32767 above it

Panel = dict[str, Any]


@torch.no_grad()
def map_panels(sight: Sight, batch: int, queries: Sequence[int]) -> list[Panel]:
    """The panels that a sight has something for."""
    panels = []
    if sight.mixers:
        table = sight.mixer_heads()
        side = min(max(isqrt(PANEL_CELLS // max(1, len(table))), SIDES[0]), SIDES[1])
        sites = sight.join_mixers()
        more = f"; {table.hidden} more heads have no row" if table.hidden else ""
        panels.append(
            {
                "name": "Linear mixers",
                "note": "Layers without softmax: y = W v with signed weights. Click a head to see "
                f"its map{more}.",
                "columns": table.columns,
                "rows": table.texts(),
                "maps": [x for site in sites for x in _mixer_maps(site, side, batch, queries)],
            }
        )
    if routers := sight.routers:
        width = max(SIDES[0], PANEL_CELLS // sum(x.count for x in routers.values()))
        panels.append(
            {
                "name": "Experts",
                "note": "Click a router to see the weight of each expert for each token.",
                "columns": routers.columns,
                "rows": routers.texts(),
                "maps": [_expert_map(x, width, batch, queries) for x in routers.values()],
            }
        )
    return panels


def _mixer_maps(
    site: MixerSite, side: int, batch: int, queries: Sequence[int]
) -> Iterable[dict[str, Any]]:
    """Exact weights of every head, around a query of a long text: by default the last."""
    rows, columns = mixer_labels(site, batch)
    row = _span(queries, side, site.queries)
    key = range(max(0, row.stop + site.offset - side), row.stop + site.offset)
    part = first_heads(site, MAX_HEADS)
    w = part.window(None, slice(row.start, row.stop), slice(key.start, key.stop))[batch]
    for head, x in enumerate(w[:MAX_HEADS]):
        title = f"{name_of_call(site)}, head {head}{_cut_of(row, site.queries, 'queries')}"
        labels = rows[row.start : row.stop], columns[key.start : key.stop]
        yield _map(title, x, ("query", "key"), *labels)


def _expert_map(router: Router, width: int, batch: int, queries: Sequence[int]) -> dict[str, Any]:
    weights = router.map[batch].mT
    time = weights.shape[1]
    span = _span(queries, min(width, 8 * SIDES[1]), time)
    labels = [*map(str, range(time))] if router.labels is None else router.labels[batch]
    return _map(
        f"{router.name}{_cut_of(span, time, 'tokens')}",
        weights[:, span.start : span.stop],
        ("expert", "token"),
        [*map(str, range(router.count))],
        labels[span.start : span.stop],
    )


def _span(queries: Sequence[int], side: int, count: int) -> range:
    inside = [i % count for i in queries if -count <= i < count]
    return range_around(inside[0] if inside else count - 1, side, count)


def _cut_of(shown: range, count: int, noun: str) -> str:
    return "" if len(shown) == count else f", {noun} {shown.start}–{shown.stop - 1} of {count}"


def _map(
    title: str, x: Tensor, titles: tuple[str, str], rows: list[str], columns: list[str]
) -> dict[str, Any]:
    scale = float(x.abs().max()) if x.numel() else 0.0
    data = (x.double() / (scale or 1) * ZERO).round() + ZERO
    return {
        "title": title,
        "titles": titles,
        "rows": rows,
        "columns": columns,
        "scale": scale,
        "signed": bool((x < 0).any()),
        "data": encode_base64(data, "u2"),
    }
