"""How a prediction is made: a lens after each block, what each part adds, what heads do."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.errors import LookError, RegardError
from regard.inspection import Edit, Site, logit_attribution, logit_lens, what_if
from regard.inspection.adapters.activation_points import find_activations
from regard.inspection.adapters.model_calls import get_logits, run_model
from regard.inspection.adapters.module_tracker import Caller
from regard.inspection.report.report import Predictions
from regard.ops.indices import resolve_index
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.runs.text_model import Reading, TextModel
from regard.web.explorer.catalog import find_head, recorded_sites
from regard.web.explorer.explorer import Explorer, TextRequest, pack, query
from regard.web.explorer.views.text.head import open_text_model, output_names, read
from regard.web.jobs import Job

MAX_POSITIONS = 32  # columns of the lens
MAX_LOGITS = 1 << 26  # stored by the lens: 256 MB of float32
MAX_PARTS = 400  # sent of an attribution


class LensRequest(TextRequest):
    """A text, and the position that the lens has to show; the last one by default."""

    position: int | None = Field(None, ge=0, le=10_000_000)


class AttributionRequest(LensRequest):
    """A position, and the token whose logit is split; the most probable one by default."""

    by: Literal["part", "head"] = "part"
    token: int | None = Field(None, ge=0, le=10_000_000)


@query("text.lens", LensRequest)
@torch.no_grad()
def answer_text_lens(explorer: Explorer, request: LensRequest, job: Job) -> dict[str, Any]:
    """The most probable token after each block, at up to 32 positions."""
    text_model, inputs = open_text_model(explorer, request)
    predictions = _predictions(explorer, request, job)
    count = len(predictions.rows)
    # the lens keeps the logits of all blocks at these positions
    blocks = [len(x) for x in text_model.model.modules() if isinstance(x, nn.ModuleList)]
    columns = MAX_LOGITS // (predictions.classes * (max(blocks, default=0) + 1))
    columns = min(max(columns, 1), MAX_POSITIONS)
    positions = _around(count, request.position, columns)
    with job.checking(text_model.model, "reading the layers"):
        lens = logit_lens(text_model.model, inputs, positions=positions)
    p = lens.logits[:, 0].float().softmax(-1)
    best = p.max(-1)
    final = best.indices[-1].expand_as(best.indices)[..., None]
    names = [output_names(text_model, ids) for ids in best.indices.tolist()]
    at = positions.index(count - 1 if request.position is None else request.position)
    depths = ["embedding", *(f"block {n}" for n in range(len(p) - 1))]
    return {
        "depths": depths,
        "positions": positions,
        "tokens": names,
        "course": [  # at the chosen position
            {"after": depth, "likeliest": tokens[at], "final": float(x)}
            for depth, tokens, x in zip(depths, names, p[:, at, best.indices[-1, at]], strict=True)
        ],
        "probability": pack(best.values),
        "final_probability": pack(p.gather(-1, final)[..., 0]),
        "kl": pack(lens.kl()[:, 0]),
    }


@query("text.attribution", AttributionRequest)
@torch.no_grad()
def answer_text_attribution(
    explorer: Explorer, request: AttributionRequest, job: Job
) -> dict[str, Any]:
    """What each part of the model adds to the logit of a token (direct logit attribution)."""
    text_model, inputs = open_text_model(explorer, request)
    predictions = _predictions(explorer, request, job)
    if predictions.kind == "class":
        raise LookError(
            "model: needs one prediction per position for this, got one per text; "
            "try a language model or a translator"
        )
    count = len(predictions.rows)
    at = count - 1 if request.position is None else request.position
    at = resolve_index("position", at, count)
    ids = [int(x) for x in predictions.ids[at]]
    token = ids[0] if request.token is None else request.token
    with job.checking(text_model.model, "splitting the logit"):
        attribution = logit_attribution(text_model.model, inputs, token, position=at, by=request.by)
    parts = dict(attribution.top(MAX_PARTS))
    return {
        "position": at,
        "token": token,
        "name": output_names(text_model, [token])[0],
        "choices": [(i, *pair) for i, pair in zip(ids, predictions.rows[at], strict=True)],
        "logit": attribution.logit,
        "constant": attribution.constant,
        "error": attribution.error,
        "parts": [[name, x] for name, x in attribution.parts.items() if name in parts],
        "left_out": len(attribution.parts) - len(parts),
    }


def _predictions(explorer: Explorer, request: TextRequest, job: Job) -> Predictions:
    """Those of the recorded pass, which is shared with the view: no pass of their own."""
    predictions = read(explorer, request, job).predictions
    if predictions is None:
        raise LookError(
            f"model: needs one that predicts for this, got {request.model!r} without a head"
        )
    return predictions


def _around(count: int, position: int | None, columns: int) -> list[int]:
    """The last positions up to the chosen one, and those behind it where there is room.

    >>> _around(9, 1, 4), _around(9, 7, 4)
    ([0, 1, 2, 3], [4, 5, 6, 7])
    """
    at = count - 1 if position is None else resolve_index("position", position, count)
    end = min(count, max(at + 1, columns))
    return list(range(max(0, end - columns), end))


MAX_WORK = 2e10  # parameters × tokens × heads that are tested: below a second on two free cores
Head = tuple[str, int]  # site and number


class EffectsRequest(TextRequest):
    """The position whose prediction is read, and a head that has to be among those tested."""

    position: int = Field(ge=0, le=10_000_000)
    site: str | None = Field(None, max_length=300)
    head: int = Field(0, ge=0, le=100_000)


@query("text.heads", EffectsRequest)
@torch.no_grad()
def answer_text_heads(explorer: Explorer, request: EffectsRequest, job: Job) -> Any:
    """What a prediction loses without each head; null where single heads cannot be tested."""
    reading = read(explorer, request, job)
    first = []
    if request.site is not None:
        site, head = find_head(reading.sight, request.site, request.head)
        first = [(site.name, head)]
    return head_effects(explorer, request, reading, request.position, first, job)


def start_position(reading: Reading) -> int | None:
    """The prediction to begin with: of a translation where it hesitates most, else the last."""
    predictions = reading.predictions
    if predictions is None or predictions.kind == "class":
        return None
    if reading.target is None:
        return predictions.at % len(predictions.rows)
    return min(range(len(predictions.rows)), key=lambda i: predictions.rows[i][0][1])


def head_effects(
    explorer: Explorer,
    request: TextRequest,
    reading: Reading,
    position: int | None,
    first: list[Head],
    job: Job,
) -> dict[str, Any] | None:
    """What the likeliest output at a position loses without each head, in nats and as it would be.

    log p - log p(without the head). Where all would take long, those that add most to its logit
    directly are tested; None for a model without such predictions.
    """
    predictions = reading.predictions
    if position is None or predictions is None or predictions.kind == "class":
        return None
    position = resolve_index("position", position, len(predictions.rows))
    sites = recorded_sites(reading.sight)
    heads = [(site.name, head) for site in sites for head in range(site.heads)]
    ids = [int(x) for x in predictions.ids[position][:2]]
    try:
        text_model, inputs = open_text_model(explorer, request)
        size = sum(x.numel() for x in text_model.model.parameters())
        room = int(MAX_WORK / (size * max(max(x.queries, x.keys) for x in sites)))
        with job.checking(text_model.model, "leaving out single heads"):
            if room < len(heads):
                added = _added(text_model, inputs, ids, position, sites) if room else {}
                heads = sorted(added, key=lambda x: -added[x])[:room]
            tested = list(dict.fromkeys([*first, *heads]))
            shown = {
                "position": position,
                "token": output_names(text_model, ids[:1])[0],
                "of": sum(site.heads for site in sites),
            }
            if not tested:  # of a long text: the model need not run again
                return shown | {"probability": predictions.rows[position][0][1], "heads": []}
            log_p = _without_each(text_model, inputs, tested, position).log_softmax(-1)
    except RegardError:  # a saved sight, or a model without attention
        return None
    best = log_p.argmax(-1).tolist()
    effects = (log_p[0, ids[0]] - log_p[1:, ids[0]]).tolist()
    rows = zip(tested, effects, log_p[1:, ids[0]].exp().tolist(), strict=True)
    return shown | {
        "probability": float(log_p[0, ids[0]].exp()),
        "heads": [
            {"site": site, "head": head, "effect": effect, "probability": p, "writes": name}
            for ((site, head), effect, p), name in zip(
                rows, output_names(text_model, best[1:]), strict=True
            )
        ],
    }


def _added(
    text_model: TextModel, inputs: Any, ids: list[int], position: int, sites: list[Site]
) -> dict[Head, float]:
    """What each head adds directly to the logit of the first token, above that of the second."""
    parts = logit_attribution(
        text_model.model, inputs, ids[0], against=ids[-1], position=position, by="head"
    ).parts
    points = find_activations(text_model.model)
    names = {x.path: n.rpartition(".")[0] for n, x in points.items() if n.endswith(".in")}
    added = {}
    for site in sites:
        name = next((n for p, n in names.items() if f"{site.path}.".startswith(f"{p}.")), site.name)
        for head in range(site.heads):
            if (x := parts.get(f"{name} head {head}")) is not None:
                added[site.name, head] = x
    return added


def _without_each(text_model: TextModel, inputs: Any, heads: list[Head], position: int) -> Tensor:
    """Logits of a position, (1 + heads, token): of the model, then without each head; one batch."""
    edits = [_drop_by_row(name, heads) for name in dict.fromkeys(name for name, _ in heads)]
    with what_if(text_model.model, *edits):
        logits = get_logits(run_model(text_model.model, _repeat(inputs, 1 + len(heads))))
    if logits.ndim == 2:  # packed positions of one text
        logits = logits.view(1 + len(heads), -1, logits.shape[-1])
    return logits[:, position].float()


def _drop_by_row(name: str, heads: list[Head]) -> Edit:
    """Zero the output of head n in row 1 + n of the batch, of those that belong to a site."""
    rows = torch.tensor([1 + n for n, (site, _) in enumerate(heads) if site == name])
    numbers = torch.tensor([head for site, head in heads if site == name])

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        out, lse = proceed(call)
        out = out.clone()
        out[rows, numbers] = 0
        return out, lse

    return Edit(name, f"drop_by_row({name!r})", apply)


def _repeat(inputs: Any, count: int) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _repeat(x, count) for name, x in inputs.items()}
    if isinstance(inputs, Tensor):
        return inputs.repeat_interleave(count, 0)
    return tuple(_repeat(x, count) for x in inputs)
