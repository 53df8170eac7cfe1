"""How a prediction is made: the logit lens after each block, and what each part adds."""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from regard.errors import LookError
from regard.inspection import logit_attribution, logit_lens
from regard.inspection.report.report import Predictions
from regard.ops.indices import resolve_index
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
