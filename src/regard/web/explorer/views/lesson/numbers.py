"""The numbers on the way of one token through one block, as the recorded pass has them."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from regard.errors import LookError, ShapeError
from regard.inspection import Site, look, output_projection
from regard.inspection.adapters.activation_points import find_activations
from regard.inspection.adapters.model_calls import run_model
from regard.inspection.sites.labels import key_labels, query_labels
from regard.ops.indices import resolve_index
from regard.runs.text_model import Reading
from regard.tasks.translation.alignment import editing
from regard.web.explorer.catalog import find_head
from regard.web.explorer.edits import EditRequest, build_edits
from regard.web.explorer.explorer import Explorer, finite, pack, query
from regard.web.explorer.views.text.head import activation_name, open_text_model, read
from regard.web.jobs import Job

MAX_TOKENS = 64  # of a text that is walked through
TOP = 8  # features and neurons that are listed


class RowRequest(EditRequest):
    """One query of one head, and a key; by default telling ones. Edits change the pass."""

    site: str | None = Field(None, max_length=300)
    head: int | None = Field(None, ge=0, le=100_000)
    query: int | None = Field(None, ge=0, le=100_000)
    key: int | None = Field(None, ge=0, le=100_000)


def locate(explorer: Explorer, request: RowRequest, job: Job) -> tuple[Reading, Site, list[int]]:
    """The recorded pass, the attention, and head, query and key; what is not given is chosen.

    A language model is asked about its last position and BERT about its [MASK]; any other model
    about the row whose largest weight is nearest to 3/4, which is neither hard nor flat.
    """
    reading = read(explorer, request, job, edits=build_edits(request))
    name, head = request.site, request.head
    if name is None:
        base = request.model_dump(include={"model", "text", "to", "target"}, exclude_none=True)
        start = explorer.answer("text", base, job)["start"]
        if start is None:
            raise LookError(f"model: needs attention for this, got {request.model!r} without any")
        name, head = start["site"], start["head"] if head is None else head
    site, head = find_head(reading.sight, name, head or 0)
    if (longest := max(site.queries, site.keys)) > MAX_TOKENS:
        raise ShapeError(
            f"text: needs at most {MAX_TOKENS} tokens in a lesson, got {longest}; try the text view"
        )
    w = site.window(head)[0]
    at = _start_query(reading, site, w) if request.query is None else request.query
    at = resolve_index("query", at, site.queries)
    key = int(w[at].argmax()) if request.key is None else request.key
    return reading, site, [head, at, resolve_index("key", key, site.keys)]


def _start_query(reading: Reading, site: Site, w: Tensor) -> int:
    predictions = reading.predictions
    if predictions is not None and reading.target is None:
        predicts = predictions.kind == "next token" or predictions.at >= 0  # BERT: at its [MASK]
        if predicts and len(predictions.rows) == site.queries:
            return predictions.at % site.queries
    return int((w.amax(-1) - 0.75).abs().argmin())


@query("lesson.attention", RowRequest)
@torch.no_grad()
def answer_lesson_attention(explorer: Explorer, request: RowRequest, job: Job) -> dict[str, Any]:
    """Every number of one query of one head: vectors, scores, weights, mixture, all heads."""
    _, site, (head, at, key) = locate(explorer, request, job)
    kv_head = head // (site.heads // site.k.shape[1])
    cells = [site.breakdown(head, at, j) for j in range(site.keys)]
    chosen, keys = cells[key], _distinct(key_labels(site))
    allowed = sum(x.allowed for x in cells)
    names = [f"q {query_labels(site)[at]}", f"k {keys[key]}", f"v {keys[key]}"]
    return {
        "site": site.name,
        "kind": site.kind,
        "head": head,
        "query": at,
        "key": key,
        "query_tokens": _distinct(query_labels(site)),
        "key_tokens": keys,
        "head_dim": site.q.shape[-1],
        "heads": site.heads,
        "scale": chosen.scale,
        "lse": finite(chosen.lse),
        "allowed": allowed,
        "uniform": 1 / allowed if allowed else None,
        "names": names[: 3 if site.v.shape[-1] == site.q.shape[-1] else 2],
        "vectors": _stack(site.q[0, head, at], site.k[0, kv_head, key], site.v[0, kv_head, key]),
        "products": [] if chosen.products is None else _top(chosen.products, "f"),
        "row": [_cell(token, x) for token, x in zip(keys, cells, strict=True)],
        "mixed": _stack(chosen.contribution, chosen.out - chosen.contribution, chosen.out),
        "mixed_names": [f"w v of {keys[key]}", "all others", "sum: output"],
        "head_names": [f"head {h}" for h in range(site.heads)],
        "head_weights": pack(site.window(None, at)[0, :, 0]),
        "outputs": pack(site.out[0, :, at]),
    }


def _cell(token: str, x: Any) -> dict[str, Any]:
    """One key: what the score is made of, its weight, and what it adds to the output."""
    names = ("dot", "scaled", "bias", "score", "weight")
    numbers = {n: None if (v := getattr(x, n)) is None else finite(v) for n in names}
    size = x.contribution.norm().item()
    return {"token": token, **numbers, "allowed": "yes" if x.allowed else "no", "adds": size}


@query("lesson.projection", RowRequest)
@torch.no_grad()
def answer_lesson_projection(explorer: Explorer, request: RowRequest, job: Job) -> dict[str, Any]:
    """What each head writes through the output projection, Σ_h o_h W_h, for one query."""
    _, site, (_, at, _) = locate(explorer, request, job)
    model = explorer.catalog.run(request.model).text_model.model
    w_out = output_projection(model, site).float()
    written = torch.einsum("hv,hvd->hd", site.out[0, :, at].float(), w_out.to(site.out.device))
    names = [f"head {h}" for h in range(site.heads)]
    return {
        "sizes": [list(x) for x in zip(names, written.norm(dim=-1).tolist(), strict=True)],
        "head_names": names,
        "names": [*names, "sum of the heads"],
        "vectors": pack(torch.cat([written, written.sum(0, keepdim=True)])),
    }


# what is shown of a block: → is what a part reads, + what it adds to the stream
PARTS = {
    "residual_in": "stream before", "self.in": "→ self", "self.out": "+ self",
    "cross.in": "→ cross", "cross.out": "+ cross", "mixer.in": "→ mixer", "mixer.out": "+ mixer",
    "mlp.in": "→ feed-forward", "mlp.out": "+ feed-forward", "residual_out": "stream after",
}  # fmt: skip


@query("lesson.stream", RowRequest)
@torch.no_grad()
def answer_lesson_stream(explorer: Explorer, request: RowRequest, job: Job) -> dict[str, Any]:
    """One position of the residual stream: embedding, position, and one block part by part."""
    _, site, (_, at, _) = locate(explorer, request, job)
    text_model, inputs = open_text_model(explorer, request)
    stack, block, _ = activation_name(text_model.model, site).rsplit(".", 2)
    names = [f"{stack}.{block}.{x}" for x in (*PARTS, "mlp.hidden")]
    names += [f"{stack}.0.residual_in", f"{stack}.embedding", "encoder.embedding"]
    known = find_activations(text_model.model)
    names = [x for x in dict.fromkeys(names) if x in known]
    model, edits = text_model.model, build_edits(request)
    with job.checking(model), look(model, "", activations=names) as sight, editing(model, edits):
        run_model(model, inputs)

    def vector(name: str) -> Tensor | None:
        if name not in names:
            return None
        x = sight.activations.calls(name)[-1]  # a shared embedding reads the source first
        x = x.reshape(-1, x.shape[-1]).float().cpu()
        return x[at] if len(x) == site.queries else None

    parts = {word: vector(f"{stack}.{block}.{name}") for name, word in PARTS.items()}
    parts = {word: x for word, x in parts.items() if x is not None}
    hidden = vector(f"{stack}.{block}.mlp.hidden")
    embedding, first = vector(f"{stack}.embedding"), vector(f"{stack}.0.residual_in")
    embedding = vector("encoder.embedding") if embedding is None else embedding
    if (table := getattr(model, "get_input_embeddings", None)) is not None:
        # of BERT and GPT-2 the embedding holds the position already
        name = "decoder_input_ids" if stack == "decoder" else "input_ids"
        ids = inputs if isinstance(inputs, Tensor) else inputs[name]
        embedding = table()(ids)[0, at].float().cpu() if ids.shape[1] == site.queries else None
    start = {} if first is None else {"enters block 0": first}
    if embedding is not None and first is not None and embedding.shape == first.shape:
        start = {"embedding": embedding, "added to it": first - embedding} | start
    return {
        "block": f"{stack}.{block}",
        "dim": next((len(x) for x in parts.values()), 0),
        "start_names": list(start),
        "start": _stack(*start.values()),
        "names": list(parts),
        "parts": _stack(*parts.values()),
        "sizes": [[word, x.norm().item()] for word, x in parts.items()],
        "hidden": None if hidden is None else len(hidden),
        "active": None if hidden is None else int((hidden > 0).sum()),
        "neurons": [] if hidden is None else _top(hidden, "neuron"),
    }


def _stack(*vectors: Tensor) -> dict[str, Any]:
    """Vectors below each other; those that are not as long as the first are left out."""
    alike = [x.float().cpu() for x in vectors if x.shape == vectors[0].shape]
    return pack(torch.stack(alike) if alike else torch.zeros(0, 0))


def _top(x: Tensor, word: str) -> list[list[Any]]:
    """The largest entries by size, each with its index."""
    largest = x.abs().argsort(descending=True)[:TOP].tolist()
    return [[f"{word} {i}", float(x[i])] for i in largest]


def _distinct(labels: list[str]) -> list[str]:
    """Labels of which no two are the same.

    >>> _distinct(["a", "b", "a"])
    ['a (0)', 'b', 'a (2)']
    """
    return [f"{x} ({i})" if labels.count(x) > 1 else x for i, x in enumerate(labels)]
