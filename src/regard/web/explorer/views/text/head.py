"""One head of the text view: its map, the arithmetic of a weight, its causes, and a second head."""

from typing import Any

import torch
from pydantic import Field

from regard.data import Pair, collate, pair_preprocessor
from regard.errors import LookError, ShapeError
from regard.inspection import Site, compare_sights, output_projection, split_score
from regard.inspection.adapters.activation_points import find_activations
from regard.inspection.sites.labels import key_labels, query_labels, strip_marks
from regard.ops import influence_window
from regard.ops.indices import resolve_index
from regard.runs.text_model import Reading, TextModel
from regard.web.explorer.catalog import check_length, find_head, recorded_sites
from regard.web.explorer.explorer import (
    MAX_CHARS,
    Explorer,
    TextRequest,
    finite,
    pack,
    query,
    table_of,
)
from regard.web.jobs import Job
from regard.work import explain
from regard.work.show.text import entry_text, select, value_equation
from regard.work.solution import Solution


class HeadRequest(TextRequest):
    """A request about one head of one attention."""

    site: str = Field(max_length=300)
    head: int = Field(0, ge=0, le=100_000)


class WeightRequest(HeadRequest):
    """A request about one weight of a head."""

    query: int = Field(ge=0, le=10_000_000)
    key: int = Field(ge=0, le=10_000_000)


def read(explorer: Explorer, request: TextRequest, job: Job | None, **changes: Any) -> Reading:
    """The recorded forward pass that a request is about, with other options of the recording."""
    given: dict[str, Any] = {"to": request.to, "target": request.target, "job": job}
    return explorer.recordings.read(request.model, request.text, **given | changes)


def open_text_model(explorer: Explorer, request: TextRequest) -> tuple[TextModel, Any]:
    """The model of a request, and what it is called with: a tensor, a tuple or a mapping."""
    text_model = explorer.catalog.run(request.model).text_model
    check_length(text_model, request.text, request.target)
    if not text_model.is_encoder_decoder:
        return text_model, text_model.encode("text", request.text)
    target = read(explorer, request, None).target
    if text_model.tokenizer is not None:
        to = request.to or text_model.default_language
        pair = Pair(request.text, target or "", to)
        batch = collate([pair_preprocessor(text_model.tokenizer)(pair)])
        inputs = batch["source"], batch["target"][:, :-1]
        return text_model, tuple(x.to(text_model.device) for x in inputs)
    source = text_model.encode("text", request.text)
    decoder = text_model.encode("target", target or "", is_decoder=True)
    if text_model.decoder_start_token_id is None:
        return text_model, (source, decoder)
    return text_model, {"input_ids": source, "decoder_input_ids": decoder}


def output_names(text_model: TextModel, ids: list[int]) -> list[str]:
    """Names of outputs by index: labels of classes, else tokens."""
    if text_model.labels:
        return [text_model.labels[i] for i in ids]
    return [strip_marks(x) for x in text_model.token_names(ids)]


MAX_CELLS = 256  # rows and columns of a map; longer texts are pooled
MAX_HEADS = 40  # rows of the table
COLUMNS = ("site", "head", "distance", "query", "key", "before", "after")


class OtherRequest(TextRequest):
    """Another head, text, language or model to compare with."""

    other_site: str | None = Field(None, max_length=300)
    other_head: int | None = Field(None, ge=0, le=100_000)
    other_text: str | None = Field(None, max_length=MAX_CHARS)
    other_to: str | None = Field(None, max_length=20)
    other_model: str | None = Field(None, max_length=200)


class CompareRequest(HeadRequest, OtherRequest):
    """A head, and what to compare it with."""


@query("text.compare", CompareRequest, table=lambda x: table_of(x["heads"], COLUMNS))
@torch.no_grad()
def answer_text_compare(explorer: Explorer, request: CompareRequest, job: Job) -> dict[str, Any]:
    """Both maps and their difference, and the heads that differ most."""
    first = read(explorer, request, job)
    others = (request.other_text, request.other_to, request.other_model)
    if others == (None, None, None):
        site, head = find_head(first.sight, request.site, request.head)
        name = request.site if request.other_site is None else request.other_site
        number = request.head if request.other_head is None else request.other_head
        return _two_heads(site, head, *find_head(first.sight, name, number))
    other = request.model_copy(
        update={
            "model": request.other_model or request.model,
            "text": request.text if request.other_text is None else request.other_text,
            "to": request.other_to or request.to,
            "target": request.target if request.other_text is None else None,
        }
    )
    second = read(explorer, other, job)
    job.report(0.9, "comparing every head")
    comparison = compare_sights(first.sight, second.sight)
    find_head(first.sight, request.site, request.head)
    if request.site not in comparison.pairs:
        names = ", ".join(list(comparison.pairs)[:8])
        raise ShapeError(f"site: needs one that both have, {names}, got {request.site!r}")
    pair = comparison.pairs[request.site]
    pool = _pool(len(pair.queries)), _pool(len(pair.keys))
    return {
        "maps": pack(comparison.maps(request.site, request.head, pool)),
        "pool": list(pool),
        "query_tokens": [t.label for t in pair.queries],
        "key_tokens": [t.label for t in pair.keys],
        "names": [request.site, pair.second.name],
        "outputs": [first.target, second.target],
        "heads": comparison.to_dicts()[:MAX_HEADS],
        "unmatched": comparison.unmatched,
    }


def _two_heads(site: Site, head: int, other: Site, other_head: int) -> dict[str, Any]:
    """Two heads of one forward pass, over the same queries and keys."""
    if (site.queries, site.keys) != (other.queries, other.keys):
        raise ShapeError(
            f"other_site: needs {site.queries} queries and {site.keys} keys as {site.name} has, "
            f"got {other.queries} and {other.keys}; try one of the same group"
        )
    pool = _pool(site.queries), _pool(site.keys)
    w, w_other = (x.window(h, pool=pool)[0].float() for x, h in ((site, head), (other, other_head)))
    return {
        "maps": pack(torch.stack([w, w_other, w_other - w])),
        "pool": list(pool),
        "query_tokens": query_labels(site),
        "key_tokens": key_labels(site),
        "names": [f"{site.name}, head {head}", f"{other.name}, head {other_head}"],
        "outputs": [None, None],
        "heads": [],
        "unmatched": [],
    }


def _pool(count: int) -> int:
    return -(-count // MAX_CELLS)


MAX_EXACT = 512  # queries and keys of an exact map
MAX_POOLED = 256  # rows and columns of a pooled one
TOP_PAIRS = 8  # of parts that made a score


class InfluenceRequest(HeadRequest):
    """A request about one key of a head."""

    key: int = Field(ge=0, le=10_000_000)


@query("text.map", HeadRequest)
@torch.no_grad()
def answer_text_map(explorer: Explorer, request: HeadRequest, job: Job) -> dict[str, Any]:
    """The exact map of one head up to 512 tokens; means of blocks of weights beyond."""
    sight = read(explorer, request, job).sight
    return map_answer(*find_head(sight, request.site, request.head))


def map_answer(site: Site, head: int) -> dict[str, Any]:
    """The map of a head for JSON, with the weights per cell and the labels of short sides."""
    pool = [1, 1]
    if max(site.queries, site.keys) > MAX_EXACT:
        pool = [-(-site.queries // MAX_POOLED), -(-site.keys // MAX_POOLED)]
    return {
        "site": site.name,
        "head": head,
        "pool": pool,
        "query_tokens": query_labels(site)[:MAX_EXACT],
        "key_tokens": key_labels(site)[:MAX_EXACT],
        "map": pack(site.window(head, pool=(pool[0], pool[1]))[0]),
    }


@query("text.cell", WeightRequest)
@torch.no_grad()
def answer_text_cell(explorer: Explorer, request: WeightRequest, job: Job) -> dict[str, Any]:
    """The arithmetic of one weight, step by step, as `rg.explain` computes it."""
    sight = read(explorer, request, job).sight
    site, head = find_head(sight, request.site, request.head)
    job.report(0.5, "writing the steps")
    try:
        model = explorer.catalog.run(request.model).text_model.model
        w_out = output_projection(model, site)
    except (LookError, ValueError):  # a saved sight, or a projection of unknown name
        w_out = None
    explanation = explain(site, head, request.query, request.key, w_out=w_out)
    breakdown = explanation.breakdown
    numbers = ("dot", "scale", "scaled", "softcap", "capped", "bias", "score", "lse", "weight")
    values = {name: getattr(breakdown, name) for name in numbers}
    return {
        "title": explanation.title,
        **{name: None if x is None else finite(x) for name, x in values.items()},
        "allowed": breakdown.allowed,
        **_written(explanation),
    }


def _written(solution: Solution) -> dict[str, Any]:
    """Given numbers and steps as MathML, which holds names and numbers only; remarks as text."""
    digits = 6
    shown = select(solution, digits, ())
    return {
        "given": [
            value_equation(name, value, digits).mathml(display=True)
            for name, value in shown.given.items()
        ],
        "steps": [
            {
                "title": one.heading,
                "formula": one.step.equation.mathml(display=True),
                "entry": None if one.entry is None else entry_text(solution, one.step, digits),
                "results": [tree.mathml(display=True) for tree in one.equations(digits)],
            }
            for one in shown.steps
        ],
        "remarks": list(shown.remarks),
    }


@query("text.why", WeightRequest)
@torch.no_grad()
def answer_text_why(explorer: Explorer, request: WeightRequest, job: Job) -> dict[str, Any]:
    """The score of one cell split by the parts of the model that wrote its query and its key."""
    site, head = find_head(read(explorer, request, job).sight, request.site, request.head)
    if site.kind != "self":
        raise LookError(
            f"site: needs a self-attention to split its score, got the cross-attention {site.name}"
        )
    text_model, inputs = open_text_model(explorer, request)
    at = activation_name(text_model.model, site)
    with job.checking(text_model.model, "splitting the score"):
        cell: dict[str, Any] = {"head": head, "query": request.query, "key": request.key}
        split = split_score(text_model.model, inputs, at, **cell)
    return {
        "score": split.score,
        "error": split.error,
        "pairs": [list(pair) for pair in split.top(TOP_PAIRS)],
        "count": split.pairs.numel(),
        "by_query": split.by_query,
        "by_key": split.by_key,
    }


def activation_name(model: torch.nn.Module, site: Site) -> str:
    """The name that activations give to an attention, such as "decoder.3.self".

    Sites of a Hugging Face model are named by their modules.
    """
    for name, point in find_activations(model).items():
        is_input = name.endswith((".self.in", ".cross.in"))
        if is_input and f"{site.path}.".startswith(f"{point.path}."):
            return name.removesuffix(".in")
    raise LookError(f"site: needs an attention of a stack of blocks, got {site.name}")


@query("text.influence", InfluenceRequest)
@torch.no_grad()
def answer_text_influence(
    explorer: Explorer, request: InfluenceRequest, job: Job
) -> dict[str, Any]:
    """What removing one key changes: each output of a head, and all outputs of every attention."""
    sight = read(explorer, request, job).sight
    site, head = find_head(sight, request.site, request.head)
    key = resolve_index("key", request.key, site.keys)
    same_keys = [
        x for x in recorded_sites(sight) if (x.keys, x.key_tokens) == (site.keys, site.key_tokens)
    ]
    totals, effects = [], torch.zeros(0)
    for n, other in enumerate(same_keys):
        job.report(n / len(same_keys), f"removing a key of {other.name}")
        tensors = (other.q, other.k, other.v, other.out, other.lse)
        window = influence_window(*tensors, keys=slice(key, key + 1), **other.term_kwargs)
        change = window[0, ..., 0]  # of each output, (head, query)
        by_head = change.sum(-1)
        effect = float(by_head.sum())
        totals.append({"site": other.name, "effect": effect, "head": int(by_head.argmax())})
        effects = change[head] if other.name == site.name else effects
    return {
        "key": key,
        "effects": effects[:MAX_EXACT].tolist(),
        "sizes": site.out[0, head].float().norm(dim=-1)[:MAX_EXACT].tolist(),
        "total": float(effects.sum()),
        "sites": totals,
    }
