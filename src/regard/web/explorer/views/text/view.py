"""The text view: tokens, what the model makes of them, and every attention head at once."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl

import torch
from pydantic import Field

from regard.inspection import HeadRow, Site
from regard.inspection.figures.canvas import axis_inches, label_axis, new_figure, show_matrix
from regard.inspection.heads.descriptions import describe_heads
from regard.inspection.heads.head_table import COLUMNS, MORE_COLUMNS
from regard.inspection.heads.measures import HEAD_STATISTICS, classify_heads
from regard.inspection.sites.labels import key_labels, query_labels
from regard.ops import Survey
from regard.runs.text_model import Reading
from regard.tasks import Pipeline
from regard.tasks.pipeline import outputs_of
from regard.web.explorer.catalog import find_head, recorded_sites
from regard.web.explorer.explorer import (
    Explorer,
    TextRequest,
    finite,
    pack,
    query,
    table_of,
    unpack,
)
from regard.web.explorer.views.text.head import OtherRequest, map_answer, read
from regard.web.explorer.views.text.prediction import (
    AttributionRequest,
    head_effects,
    start_position,
)
from regard.web.jobs import READING, Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS, GAP = 48, 4  # pixels of a map on the sheet of all heads, and between two


def _draw_map(map_response: dict[str, Any]) -> "Figure":
    w, (high, wide) = unpack(map_response["map"]), map_response["pool"]
    queries, keys = w.shape[0] * high, w.shape[1] * wide
    figure = new_figure(axis_inches(keys) + 1.6, axis_inches(queries) + 1.0)
    axes = figure.subplots()
    image = show_matrix(axes, w, (queries, keys))
    if high == wide == 1:
        label_axis(axes, "y", map_response["query_tokens"])
        label_axis(axes, "x", map_response["key_tokens"])
    axes.set(xlabel="key", ylabel="query (rows sum to 1)")
    axes.set_title(f"{map_response['site']}, head {map_response['head']}", fontsize=10)
    cell = "weight" if high == wide == 1 else f"weight, mean of {high}×{wide}"
    figure.colorbar(image, ax=axes, label=cell, shrink=0.8)
    return figure


def _draw_heads(sites: list[dict[str, Any]]) -> "Figure":
    """One row per attention, one column per head, each map relative to its largest cell."""
    columns, step = max((x["heads"] for x in sites), default=1), CELLS + GAP
    sheet = torch.full((max(1, len(sites)) * step - GAP, columns * step - GAP), torch.nan)
    for row, site in enumerate(sites):
        maps = unpack(site["maps"])
        maps = maps / maps.amax((-2, -1), keepdim=True).clamp(min=1e-30)
        at = [torch.arange(CELLS) * count // CELLS for count in maps.shape[1:]]
        for head, thumbnail in enumerate(maps[:, at[0]][:, :, at[1]]):
            top, left = row * step, head * step
            sheet[top : top + CELLS, left : left + CELLS] = thumbnail
    figure = new_figure(min(14, 1.6 + 0.85 * columns), min(40, 0.8 + 0.85 * max(1, len(sites))))
    axes = figure.subplots()
    show_matrix(axes, sheet.sqrt(), (sheet.shape[0], sheet.shape[1]), aspect="equal")
    centre = CELLS / 2
    axes.set_xticks(
        [centre + step * n for n in range(columns)], [*map(str, range(columns))], fontsize=8
    )
    names = [site["name"] for site in sites]
    axes.set_yticks([centre + step * n for n in range(len(sites))], names, fontsize=8)
    axes.set_xlabel("head (rows of a map: queries, columns: keys)", fontsize=8)
    return figure


MAX_EXACT = 64  # tokens up to which the maps of all heads are sent exactly
MAX_CELLS = 400_000  # of the maps of all heads together
MAX_THUMBNAIL = 48  # cells on a side of a pooled map
MAX_TOKENS = 512  # tokens and predictions that are sent
MIN_EFFECT = 0.01  # nats: below, no single head is needed
HIDDEN = ("call", "kernel", "statistics")
FIELDS = [*(f.name for f in fields(HeadRow) if f.name not in HIDDEN), *MORE_COLUMNS]


class TextViewRequest(AttributionRequest, OtherRequest):
    """A text; with a site also the map of one of its heads; the rest is what the link holds."""

    site: str | None = Field(None, max_length=300)
    head: int = Field(0, ge=0, le=100_000)
    query: int | None = Field(None, ge=0, le=10_000_000)
    key: int | None = Field(None, ge=0, le=10_000_000)
    stat: str | None = Field(None, max_length=40)  # under each head
    sort: str | None = Field(None, max_length=40)  # of the heads
    kind: str | None = Field(None, max_length=40)  # of the heads that are listed
    tab: Literal["head", "compare", "lens", "parts"] = "head"
    show: Literal["map", "arcs", "token"] = "map"  # of the head
    measure: Literal["probability", "final_probability", "kl"] = "probability"  # of the lens
    vs: Literal["head", "text", "to", "model"] = "head"  # what the head is compared with


OTHERS = tuple(x for x in OtherRequest.model_fields if x.startswith("other_"))


def _related(request: TextViewRequest, response: Any) -> list[tuple[str, dict[str, Any]]]:
    """What the page requests for the head, the cell and the tab of the link."""
    given, start = request.model_dump(exclude_unset=True), response["start"]

    def part(*names: str) -> dict[str, Any]:
        return {name: given[name] for name in (*TextRequest.model_fields, *names) if name in given}

    if request.tab == "lens":
        return [("text.lens", part("position"))]
    if request.tab == "parts":
        return [("text.attribution", part("position", "by", "token"))]
    if start is None:
        return []
    name = request.site or start["site"]
    number = given.get("head", start["head"] if name == start["site"] else 0)
    at = {"site": name, "head": number}
    site = next(x for x in response["sites"] if x["name"] == name)
    if request.tab == "compare":
        other = {"other_site": name, "other_head": (number + 1) % site["heads"]}
        return [("text.compare", part(*OTHERS) | at | (other if request.vs == "head" else {}))]
    related = [] if site["is_exact"] else [("text.map", part() | at)]
    if request.key is not None:
        related.append(("text.influence", part("key") | at))
        if request.query is not None:
            names = ["text.cell", "text.why"] if site["kind"] == "self" else ["text.cell"]
            related += [(x, part("query", "key") | at) for x in names]
    return related


@query(
    "text",
    TextViewRequest,
    table=lambda x: table_of(x["heads"], FIELDS),
    figure=lambda x: _draw_map(x["map"]) if "map" in x else _draw_heads(x["sites"]),
    related=_related,
)
@torch.no_grad()
def answer_text(explorer: Explorer, request: TextViewRequest, job: Job) -> dict[str, Any]:
    """Tokens, output, predictions, and every head with its type, its numbers and a small map."""
    reading = read(explorer, request, job)
    sites = recorded_sites(reading.sight)
    separators = frozenset()
    if explorer.catalog.entry(request.model).kind != "sight":
        separators = explorer.catalog.run(request.model).text_model.separators
    sizes, measured = _thumbnail_sizes(sites), []
    for n, site in enumerate(sites):
        job.report(READING + (1 - READING) * n / len(sites), f"measuring {site.name}")
        measured.append(_measure(site, sizes[n]))
    surveys, maps = [x for x, _ in measured], [x for _, x in measured]
    rows = classify_heads(sites, separators=separators, surveys=surveys).rows
    words = [
        sentence
        for site, survey in zip(sites, surveys, strict=True)
        for sentence in describe_heads(site, 0, [x for x in rows if x.site == site.name], survey)
    ]
    effects = head_effects(explorer, request, reading, start_position(reading), [], job)
    response = {
        "output": reading.target,
        "applied": _apply(explorer, request),
        "predictions": _predictions(reading),
        "sites": [_describe(*pair) for pair in zip(sites, maps, sizes, strict=True)],
        "heads": [_as_dict(*pair) for pair in zip(rows, words, strict=True)],
        "columns": [x._asdict() for x in (*COLUMNS.values(), *MORE_COLUMNS.values())],
        "start": _start(rows, effects),
        "effects": effects,
        "skipped": _skipped(reading),
    }
    if request.site is not None:
        site, head = find_head(reading.sight, request.site, request.head)
        response["map"] = map_answer(site, head)
    return response


@query("text.start", TextRequest)
def answer_text_start(explorer: Explorer, request: TextRequest, job: Job) -> Any:
    """The head that the view begins with, for views that show one head."""
    return explorer.answer("text", request.model_dump(exclude_unset=True), job)["start"]


def _thumbnail_sizes(sites: list[Site]) -> list[tuple[int, int]]:
    """Rows and columns of the maps: exact where the text is short, pooled within a budget."""
    if not sites:
        return []
    cells = sum(site.heads * site.queries * site.keys for site in sites)
    longest = max(max(site.queries, site.keys) for site in sites)
    heads = sum(site.heads for site in sites)
    side = MAX_EXACT
    if longest > MAX_EXACT or cells > MAX_CELLS:
        side = max(4, min(MAX_THUMBNAIL, int((MAX_CELLS / heads) ** 0.5)))
    return [(min(site.queries, side), min(site.keys, side)) for site in sites]


def _measure(site: Site, size: tuple[int, int]) -> tuple[Survey, torch.Tensor]:
    """All that the types of heads need, and the maps of the first sequence, in one pass."""
    names = {*HEAD_STATISTICS, "pooled_map", "received"}
    survey = site.survey(statistics=names, pooled_size=size)
    if size == (site.queries, site.keys):
        return survey, site.window()[0]
    pooled = survey.pooled_map
    assert pooled is not None
    return survey, pooled[0]


def _describe(site: Site, maps: torch.Tensor, size: tuple[int, int]) -> dict[str, Any]:
    return {
        "name": site.name,
        "kind": site.kind,
        "heads": site.heads,
        "queries": site.queries,
        "keys": site.keys,
        "offset": site.terms.offset,
        "query_tokens": query_labels(site)[:MAX_TOKENS],
        "key_tokens": key_labels(site)[:MAX_TOKENS],
        "is_exact": size == (site.queries, site.keys),
        "maps": pack(maps),
    }


def _apply(explorer: Explorer, request: TextViewRequest) -> str | None:
    """What the task of a run returns for the text, such as its tags; a custom task may raise."""
    if explorer.catalog.entry(request.model).kind != "run":
        return None
    run = explorer.catalog.run(request.model)
    if run.recipe is None or run.data.pipeline_type is not Pipeline:  # the view has the rest
        return None
    try:
        pipeline = run.parse_pipeline(dict(parse_qsl(request.options or "")))
        return run.data.format_output(outputs_of(pipeline, [request.text])[0])
    except Exception as error:  # of the user's code: the maps are shown all the same
        return f"{type(error).__name__}: {error}"


def _predictions(reading: Reading) -> dict[str, Any] | None:
    """The most probable outputs of the first positions, and of the last one."""
    predictions = reading.predictions
    if predictions is None:
        return None
    count = len(predictions.rows)
    positions = [*range(min(count - 1, MAX_TOKENS)), count - 1]
    return {
        "kind": predictions.kind,
        "count": count,
        "at": predictions.at % count,
        "positions": positions,
        "rows": [predictions.rows[i] for i in positions],
    }


def _start(rows: list[HeadRow], effects: dict[str, Any] | None) -> dict[str, Any] | None:
    """The head to begin with: the one without which the prediction loses most.

    Where none is needed, a sharp one with a key of its own for each query; best a cross one.
    """
    if not rows:
        return None
    tested = [] if effects is None else effects["heads"]
    most = max(tested, key=lambda x: x["effect"], default={"effect": 0.0})
    if most["effect"] >= MIN_EFFECT:
        return {"site": most["site"], "head": most["head"]}
    best = max(rows, key=lambda x: (x.kind == "cross", x.peak * x.distinct - x.sink_share, -x.head))
    return {"site": best.site, "head": best.head}


def _skipped(reading: Reading) -> dict[str, str]:
    surveyed = {x.name: "only a survey was recorded" for x in reading.sight if not x.has_tensors}
    mixers = {x.name: f"{x.kind}: signed weights" for x in reading.sight.mixers}
    return {**mixers, **reading.sight.skipped, **surveyed}


def _as_dict(row: HeadRow, words: str) -> dict[str, Any]:
    values = {name: row.number(name) for name in FIELDS}
    numbers = {name: finite(x) if isinstance(x, float) else x for name, x in values.items()}
    return numbers | {"words": words}
