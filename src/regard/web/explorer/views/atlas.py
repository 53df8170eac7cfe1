"""The atlas view: one head's attention map of any length, zoomed from all of it to one weight."""

import base64
import glob
import hashlib
from collections.abc import Hashable
from dataclasses import fields
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field

from regard.errors import ConfigError, LookError, counted
from regard.inspection import MapTile, Site
from regard.inspection.figures.canvas import escape_mathtext, new_figure
from regard.inspection.sites.breakdown import WeightBreakdown
from regard.inspection.sites.labels import strip_marks
from regard.inspection.sites.pyramid import MIN_BASE_LEVEL
from regard.web.explorer.atlas_maps import HEADS, OpenMap, demo_length, is_demo, make_demo_site
from regard.web.explorer.catalog import find_head, recorded_sites
from regard.web.explorer.explorer import (
    MAX_CHARS,
    Explorer,
    ModelRequest,
    QueryRequest,
    Rows,
    finite,
    pack,
    query,
    unpack,
)
from regard.web.jobs import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_WHOLE = 8192  # characters up to which every attention is recorded; beyond, one
SAMPLE = 200  # characters of a longer text that tell the names of its attentions
MAX_TOKENS = 1 << 16  # that a model reads; its logits take 1 GiB at a vocabulary of 4096
MAX_CELLS = 4096  # of a margin in one response
MAX_LABELS, MAX_MATCHES = 512, 500  # tokens in one response


class AtlasRequest(ModelRequest):
    """A head of a model on a text, of a saved sight, or of a synthetic map; and what is shown."""

    text: str | None = Field(None, max_length=MAX_CHARS)
    file: str | None = Field(None, max_length=80)  # an uploaded text
    to: str | None = Field(None, max_length=20)
    target: str | None = Field(None, max_length=MAX_CHARS)
    site: str | None = Field(None, max_length=300)  # the last one by default
    head: int = Field(0, ge=0, le=100_000)
    reduce: Literal["mean", "max"] = "mean"
    # the rest of a link; the picture of the whole map does not depend on it
    other: str | None = Field(None, max_length=300)
    x: float | None = None
    y: float | None = None
    z: float | None = None
    max: float | None = None
    log: bool = True
    band: bool = False
    keep: str | None = Field(None, max_length=20)
    query: int | None = None
    key: int | None = None


class MapRequest(QueryRequest):
    """A request about an open map."""

    id: str = Field(max_length=80)


class MarginsRequest(MapRequest):
    """Cells of both margins at a level: the first and the number of rows and columns."""

    level: int = Field(ge=0, le=40)
    row: int = Field(0, ge=0, le=10_000_000)
    rows: int = Field(ge=0, le=MAX_CELLS)
    column: int = Field(0, ge=0, le=10_000_000)
    columns: int = Field(ge=0, le=MAX_CELLS)


class TokensRequest(MapRequest):
    """Tokens of a range of positions."""

    side: Literal["query", "key"] = "key"
    start: int = Field(ge=0, le=10_000_000)
    stop: int = Field(ge=0, le=10_000_000)


class SearchRequest(MapRequest):
    """A text to find in the tokens of the keys or queries."""

    side: Literal["query", "key"] = "key"
    text: str = Field(min_length=1, max_length=200)


class AtlasCellRequest(MapRequest):
    """One weight."""

    query: int = Field(ge=0, le=10_000_000)
    key: int = Field(ge=0, le=10_000_000)


def _table(response: dict[str, Any]) -> Rows:
    """Margins of the whole map: entropy per block of queries, received mass per block of keys."""
    size = 1 << response["levels"] - 1
    head = ["side", "first", "last", "mean"]
    rows = []
    for side, name, count in (("query", "entropy", "queries"), ("key", "received", "keys")):
        for n, value in enumerate(unpack(response[name]).tolist()):
            rows.append([side, n * size, min((n + 1) * size, response[count]) - 1, value])
    return [head, *rows]


def _figure(response: dict[str, Any]) -> "Figure":
    """The whole map on a logarithmic scale."""
    from matplotlib.colors import LogNorm

    values = MapTile.from_bytes(base64.b64decode(response["overview"])).values.numpy()
    figure = new_figure(7, 6.2)
    axes = figure.subplots()
    top = float(torch.from_numpy(values).nan_to_num(0).max()) or 1.0
    extent = (0, response["keys"], response["queries"], 0)
    image = axes.imshow(
        values, norm=LogNorm(top / 1e4, top, clip=True), cmap="cividis", extent=extent
    )
    figure.colorbar(image, label=f"{response['reduce']} weight per cell")
    axes.set(xlabel="key", ylabel="query", title=escape_mathtext(response["title"]))
    return figure


def _related(request: AtlasRequest, response: Any) -> list[tuple[str, dict[str, Any]]]:
    if request.query is None or request.key is None:
        return []
    return [("atlas.cell", {"id": response["id"], "query": request.query, "key": request.key})]


@query("atlas", AtlasRequest, table=_table, figure=_figure, related=_related, is_cached=False)
@torch.no_grad()
def answer_atlas(explorer: Explorer, request: AtlasRequest, job: Job) -> dict[str, Any]:
    """Opens the map of a head: its size, the other heads, and a first picture of all of it."""
    opened, sites, title = _open(explorer, request, job)
    job.report(0.9, "drawing the whole map")
    pyramid, site = opened.pyramid, opened.site
    level = pyramid.levels - 1
    margins = pyramid.margins(level)
    return {
        "id": opened.id,
        "title": title,
        "is_synthetic": is_demo(request.model),
        "site": site.name,
        "head": opened.head,
        "reduce": request.reduce,
        "queries": pyramid.queries,
        "keys": pyramid.keys,
        "offset": site.terms.offset,
        "kind": site.kind,
        "has_tokens": site.key_tokens is not None,
        "tile": pyramid.tile_size,
        "levels": pyramid.levels,
        "band_levels": 0 if site.kind == "cross" else min(pyramid.levels, MIN_BASE_LEVEL),
        "sites": [{"name": name, "heads": heads} for name, heads in sites.items()],
        "progress": opened.progress,
        "overview": base64.b64encode(pyramid.tile(level, 0, 0, request.reduce).to_bytes()).decode(),
        "entropy": pack(margins.entropy),
        "received": pack(margins.received),
    }


@query("atlas.margins", MarginsRequest, is_cached=False, priority=-1)
def answer_atlas_margins(explorer: Explorer, request: MarginsRequest, job: Job) -> dict[str, Any]:
    """Row entropy and received mass per cell of a level, and how far the pass is."""
    opened = explorer.maps.look(request.id)
    margins = opened.pyramid.margins(request.level)
    rows = slice(request.row, request.row + request.rows)
    columns = slice(request.column, request.column + request.columns)
    return {
        "entropy": pack(margins.entropy[rows]),
        "received": pack(margins.received[columns]),
        "progress": opened.progress,
        "version": margins.version,
        "is_complete": margins.complete,
    }


@query("atlas.tokens", TokensRequest, is_cached=False, priority=-1)
def answer_atlas_tokens(explorer: Explorer, request: TokensRequest, job: Job) -> dict[str, Any]:
    """The tokens from one position to another; None without tokens."""
    if not 0 < request.stop - request.start <= MAX_LABELS:
        raise ConfigError(
            f"stop: needs 1 to {MAX_LABELS} more than start, got {request.stop - request.start}"
        )
    tokens = _tokens(explorer.maps.look(request.id).site, request.side)
    part = None if tokens is None else tokens[request.start : request.stop]
    return {"tokens": part and [strip_marks(x) for x in part]}


@query("atlas.search", SearchRequest, is_cached=False)
def answer_atlas_search(explorer: Explorer, request: SearchRequest, job: Job) -> dict[str, Any]:
    """Positions of the tokens that are, or else contain, a text; the first ones, and their count.

    A number is a position, where the tokens are unknown.
    """
    tokens = _tokens(explorer.maps.look(request.id).site, request.side)
    if tokens is None:
        raise ConfigError("text: needs a map with tokens, got one without; try a position, as #12")
    text, labels = request.text, [strip_marks(x) for x in tokens]
    positions = [i for i, x in enumerate(labels) if x == text]
    is_exact = bool(positions)
    if not is_exact:
        positions = [i for i, x in enumerate(labels) if text.casefold() in x.casefold()]
    return {"positions": positions[:MAX_MATCHES], "count": len(positions), "is_exact": is_exact}


@query("atlas.cell", AtlasCellRequest, is_cached=False)
@torch.no_grad()
def answer_atlas_cell(explorer: Explorer, request: AtlasCellRequest, job: Job) -> dict[str, Any]:
    """Every term of one weight, as `Site.breakdown` computes them."""
    opened = explorer.maps.look(request.id)
    site = opened.site
    breakdown = site.breakdown(opened.head, request.query, request.key)
    numbers = {f.name: getattr(breakdown, f.name) for f in fields(WeightBreakdown)}
    terms = {n: x and finite(x) for n, x in numbers.items() if isinstance(x, float | None)}
    tokens = [_tokens(site, side) for side in ("query", "key")]
    return terms | {
        "allowed": breakdown.allowed,
        "products": None if breakdown.products is None else breakdown.products.tolist(),
        "tokens": [
            x and strip_marks(x[at])
            for x, at in zip(tokens, (request.query, request.key), strict=True)
        ],
    }


def _tokens(site: Site, side: str) -> list[str] | None:
    tokens = site.query_tokens if side == "query" else site.key_tokens
    return None if tokens is None else tokens[0]


# ---- from a request to a head


def _open(
    explorer: Explorer, request: AtlasRequest, job: Job
) -> tuple[OpenMap, dict[str, list[str]], str]:
    """The open map of a request, the attentions to choose from with their heads, and a title."""
    if is_demo(request.model):
        length, head = demo_length(request.model), request.head
        if head >= len(HEADS):
            rule = f"less than the {len(HEADS)} heads of the synthetic map"
            raise LookError(f"head: needs {rule}, got {head}")
        opened = _open_map(explorer, (request.model,), lambda: make_demo_site(length), head)
        title = f"Synthetic, {length:,} tokens: {HEADS[head]}"
        return opened, {"synthetic": [f"{n}: {x}" for n, x in enumerate(HEADS)]}, title
    text = _text(explorer, request)
    is_long = len(text) > MAX_WHOLE
    if is_long and explorer.catalog.run(request.model).text_model.is_encoder_decoder:
        # it would write as much as it reads, one token after the other
        raise ConfigError(
            f"text: needs at most {MAX_WHOLE} characters for an encoder-decoder, got {len(text)}; "
            "try a language model, such as stdlib"
        )
    # the beginning of a long text is read for the names of its attentions
    start, read = text[:SAMPLE] if is_long else text, explorer.recordings.read
    sight = read(request.model, start, to=request.to, target=request.target, job=job).sight
    sites = {x.name: [str(n) for n in range(x.heads)] for x in recorded_sites(sight)}
    if not sites:
        raise LookError(f"model: needs one with attention, got {request.model!r}")
    name = request.site or list(sites)[-1]
    site, head = find_head(sight, name, request.head)
    entry = (request.model, explorer.catalog.version(request.model))
    source = (*entry, text, request.to, request.target, name)
    load = (lambda: _read_site(explorer, request, text, name, job)) if is_long else (lambda: site)
    opened = _open_map(explorer, source, load, head)
    return opened, sites, f"{request.model}, {name}, head {head}"


def _open_map(explorer: Explorer, source: Hashable, load: Any, head: int) -> OpenMap:
    """The id is a hash of the contents and the version: browsers cache tiles by id."""
    key = repr((version("regard"), source, head))
    map_id = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:24]
    return explorer.maps.open(map_id, source, load, head)


def _text(explorer: Explorer, request: AtlasRequest) -> str:
    """What the model reads; nothing for a saved sight."""
    entry = explorer.catalog.entry(request.model)
    if entry.kind == "sight":
        return ""
    if entry.reads != "text":
        raise ConfigError(
            f"model: needs one that reads text, got {request.model!r}, which reads {entry.reads}; "
            "try demo:100000"
        )
    if request.file is None:
        if request.text is None:
            raise ConfigError("text: needs a text, or a file with one, got neither")
        return request.text
    try:
        return explorer.uploaded(request.file).decode()
    except UnicodeDecodeError:
        raise ConfigError("file: needs a text in UTF-8, got other bytes") from None


def _read_site(explorer: Explorer, request: AtlasRequest, text: str, name: str, job: Job) -> Site:
    """One attention of a model on a long text; nothing else is stored."""
    text_model = explorer.catalog.run(request.model).text_model
    count = text_model.encode("text", text).shape[-1]
    if count > MAX_TOKENS:
        raise ConfigError(f"text: needs at most {MAX_TOKENS} tokens, got {count}; try a part of it")
    with job.checking(text_model.model, f"reading {counted(count, 'token')}"):
        sight = text_model.look(text, at=glob.escape(name))
    return find_head(sight, name, 0)[0]
