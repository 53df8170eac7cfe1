"""What the queries about a text share: requests, inputs of the model, names of outputs."""

from typing import Any

from pydantic import Field

from regard.data import Pair, collate, pair_preprocessor
from regard.inspection.sites.labels import strip_marks
from regard.runs.text_model import Reading, TextModel
from regard.web.explorer.explorer import Explorer
from regard.web.explorer.queries import TextRequest
from regard.web.explorer.recordings import check_length
from regard.web.jobs import Job


class HeadRequest(TextRequest):
    """A request about one head of one attention."""

    site: str = Field(max_length=300)
    head: int = Field(0, ge=0, le=100_000)


class WeightRequest(HeadRequest):
    """A request about one weight of a head."""

    query: int = Field(ge=0, le=10_000_000)
    key: int = Field(ge=0, le=10_000_000)


def read(explorer: Explorer, request: TextRequest, job: Job) -> Reading:
    """The recorded forward pass that a request is about."""
    return explorer.recordings.read(
        request.model, request.text, to=request.to, target=request.target, job=job
    )


def open_text_model(explorer: Explorer, request: TextRequest) -> tuple[TextModel, Any]:
    """The model of a request, and what it is called with: a tensor, a tuple or a mapping."""
    text_model = explorer.catalog.run(request.model).text_model
    check_length(text_model, request.text, request.target)
    if not text_model.is_encoder_decoder:
        return text_model, text_model.encode("text", request.text)
    reading = explorer.recordings.read(
        request.model, request.text, to=request.to, target=request.target
    )
    target = reading.target
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
