"""The time view: gates, states and gradients of recurrent layers, step by step."""

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.data import Pair, pair_preprocessor
from regard.errors import ConfigError, FileError, ShapeError, check_choice
from regard.inspection import draw, gradient_norms, look, memory_retention, record_gates
from regard.models import RecurrentTranslator, RecurrentTranslatorConfig
from regard.models.config import get_config
from regard.ops.recurrence import CellStep, GRUStep, LSTMStep
from regard.runs.contents import read_recipe
from regard.runs.text_model import TextModel
from regard.web.explorer.catalog import check_length
from regard.web.explorer.explorer import (
    Explorer,
    QueryRequest,
    Rows,
    TextRequest,
    pack,
    query,
    unpack,
)
from regard.web.explorer.recall_models import (
    KEYS,
    KINDS,
    LENGTH,
    NOISE,
    STEPS,
    WIDTH,
    Kind,
    RecallModel,
    Trained,
    parse_sequence,
    trained_model,
)
from regard.web.jobs import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TOKENS, MAX_LETTERS = 256, 64
SEQUENCE = "fgCabehdgafbehcdagfhbcae"  # what the small models read at first
GATE_NAMES = {
    "z": "update gate z", "r": "reset gate r", "i": "input gate i", "f": "forget gate f",
    "o": "output gate o", "candidate": "candidate", "c": "cell c", "h": "state h",
}  # fmt: skip
SIGNED = ("candidate", "c", "h")
MODEL_NAMES = {
    "rnn": "RNN", "gru": "GRU", "lstm": "LSTM", "transformer": "Transformer",
    "linear": "linear attention",
}  # fmt: skip


class RecallRequest(QueryRequest):
    """Letters that small models read, by default four."""

    sequence: str = Field(SEQUENCE, max_length=2 * MAX_LETTERS)
    seed: int = Field(0, ge=0, le=1000)
    kinds: str = Field(" ".join(KINDS), max_length=60)


class TimeRequest(TextRequest):
    """A text that a recurrent model reads, and the cell and unit that are shown."""

    cell: str | None = Field(None, max_length=200)
    position: int | None = Field(None, ge=0, lt=MAX_TOKENS)  # of the output that is explained
    unit: int | None = Field(None, ge=0, lt=100_000)
    order: Literal["index", "mean"] = "index"  # of the units
    show: Literal["units", "quantiles"] = "units"
    compare: bool = False  # train the four small models
    sequence: str | None = Field(None, max_length=2 * MAX_LETTERS)
    seed: int = Field(0, ge=0, le=1000)


@query("time.models", QueryRequest, is_cached=False, priority=-1)
def answer_time_models(explorer: Explorer, request: QueryRequest, job: Job) -> dict[str, Any]:
    """The names of the models that have recurrent layers."""
    names = []
    for name, entry in explorer.catalog.entries.items():
        try:
            if entry.kind == "run":
                config: Any = read_recipe(entry.path).model
            elif entry.kind == "model":
                config = get_config(explorer.catalog.run(name).model)
            else:
                continue
        except FileError:  # damaged, or just being written
            continue
        if isinstance(config, RecurrentTranslatorConfig):
            names.append(name)
    return {"models": names}


def _table(response: dict[str, Any]) -> Rows:
    """One row per step and unit of the shown cell."""
    strips = {strip["name"]: unpack(strip["values"]).tolist() for strip in response["strips"]}
    rows: list[list[Any]] = [["cell", "step", "token", "unit", *strips]]
    for t, token in enumerate(response["tokens"]):
        for unit in range(len(next(iter(strips.values()))[t])):
            values = [x[t][unit] for x in strips.values()]
            rows.append([response["cell"], t, token, unit, *values])
    return rows


def _figure(response: dict[str, Any]) -> "Figure":
    strips = {strip["name"]: unpack(strip["values"]) for strip in response["strips"]}
    return draw.gates(strips, tokens=response["tokens"])


def _related(request: TimeRequest, response: Any) -> list[tuple[str, dict[str, Any]]]:
    body = {"sequence": request.sequence or SEQUENCE, "seed": request.seed}
    return [("time.models", {}), *([("time.compare", body)] if request.compare else [])]


@query("time", TimeRequest, table=_table, figure=_figure, related=_related)
def answer_time(explorer: Explorer, request: TimeRequest, job: Job) -> dict[str, Any]:
    """Gates, states and gradients through time of a recurrent model on a text."""
    run = explorer.catalog.run(request.model)
    model, text_model = run.model, run.text_model
    if not isinstance(model, RecurrentTranslator):
        raise ConfigError(
            f"model: needs recurrent layers, got {type(model).__name__}; try phrases-gru"
        )
    to = request.to or text_model.default_language
    check_length(text_model, request.text, request.target)
    target = text_model.complete_target(request.text, request.target, to)
    source, full = _encode(text_model, request.text, target or "", to)
    inputs, names = (source, full[:, :-1]), text_model.token_names
    longest = max(x.shape[1] for x in inputs)
    if longest > MAX_TOKENS:
        raise ShapeError(f"text: needs at most {MAX_TOKENS} tokens, got {longest}")
    with torch.no_grad(), record_gates(model) as gates:
        model(*inputs)
    job.report(0.5, "gradients through time")
    tokens = {"source": names(source[0].tolist()), "target": names(inputs[1][0].tolist())}
    cell = next(iter(gates)) if request.cell is None else request.cell
    check_choice("cell", cell, list(gates))
    step, last = gates[cell], inputs[1].shape[1] - 1
    position = last if request.position is None else min(request.position, last)
    return {
        "target": target,
        "outputs": names(full[0, 1:].tolist()),
        "cells": [
            {"name": n, "kind": type(x).__name__.removesuffix("Step"), "units": x.h.shape[-1]}
            for n, x in gates.items()
        ],
        "cell": cell,
        "tokens": tokens["source" if cell.startswith("encoder") else "target"],
        "source": tokens["source"],
        "inputs": tokens["target"],
        "strips": _strips(step),
        "order": _order(step, request.order),
        "position": position,
        "gradients": _gradients(model, inputs, position, int(full[0, position + 1])),
    }


def _encode(text_model: TextModel, text: str, target: str, to: str | None) -> tuple[Tensor, Tensor]:
    """Ids of the source, and of the target with its first and last special token."""
    if text_model.tokenizer is None:
        return text_model.encode("text", text), text_model.encode("target", target)
    ids = pair_preprocessor(text_model.tokenizer)(Pair(text, target, to))
    return tuple(torch.tensor([ids[x]], device=text_model.device) for x in ("source", "target"))  # pyright: ignore[reportReturnType]


def _strips(step: CellStep) -> list[dict[str, Any]]:
    """Every gate and state, (time, unit), and what remains of the memory at the end."""
    strips = [
        _strip(GATE_NAMES[name], x[0], signed=name in SIGNED) for name, x in step._asdict().items()
    ]
    if isinstance(step, GRUStep | LSTMStep):
        strips.append(_strip("memory kept to the end", memory_retention(step)[0]))
    return strips


def _strip(name: str, x: Tensor, *, signed: bool = False) -> dict[str, Any]:
    """Values (time, unit), and their mean and 10% and 90% quantiles over the units."""
    low, high = torch.quantile(x.float(), torch.tensor([0.1, 0.9], device=x.device), -1).tolist()
    units = {"mean": x.float().mean(-1).tolist(), "low": low, "high": high}
    return {"name": name, "signed": signed, "values": pack(x)} | units


def _order(step: CellStep, order: str) -> list[int]:
    """Units from top to bottom; by mean, those whose first gate is most open come first."""
    if order == "index":
        return list(range(step.h.shape[-1]))
    return step[0][0].mean(0).argsort(descending=True).tolist()


def _gradients(
    model: nn.Module, inputs: tuple[Tensor, Tensor], position: int, token: int
) -> dict[str, Any]:
    """Norm of the derivative of one output's logit by each state; a logit does not saturate."""
    norms = gradient_norms(model, lambda: model(*inputs)[0, position, token])
    return {
        name: {"h": x.h[0].tolist(), "c": None if x.c is None else x.c[0].tolist(), "rate": x.rate}
        for name, x in norms.time.items()
    }


def _compare_table(response: dict[str, Any]) -> Rows:
    rows: list[list[Any]] = [["distance", *(x["name"] for x in response["models"])]]
    columns = [x["accuracy"] for x in response["models"]]
    return [*rows, *([d, *values] for d, values in enumerate(zip(*columns, strict=True)))]


@query("time.compare", RecallRequest, table=_compare_table)
def answer_time_compare(explorer: Explorer, request: RecallRequest, job: Job) -> dict[str, Any]:
    """RNN, GRU, LSTM and Transformer, trained alike to recall one letter, on the same letters."""
    tokens = parse_sequence(request.sequence)
    if tokens.shape[1] > MAX_LETTERS:
        raise ShapeError(f"sequence: needs at most {MAX_LETTERS} letters, got {tokens.shape[1]}")
    for kind in (names := request.kinds.split()):
        check_choice("kinds", kind, MODEL_NAMES)
    kinds: list[Kind] = [kind for kind in get_args(Kind) if kind in names]
    trained = {kind: trained_model(kind, request.seed, job) for kind in kinds}
    letters = [(KEYS + NOISE)[i] for i in tokens[0].tolist()]
    key = int((tokens[0] < len(KEYS)).nonzero()[0])
    return {
        "letters": letters,
        "key": key,
        "distance": len(letters) - 1 - key,
        "keys": list(KEYS),
        "trained": {"length": LENGTH, "steps": STEPS, "width": WIDTH, "seed": request.seed},
        "models": [
            {"kind": kind, "name": MODEL_NAMES[kind], **_small_model(x, tokens, key)}
            for kind, x in trained.items()
        ],
    }


def _small_model(trained: Trained, tokens: Tensor, key: int) -> dict[str, Any]:
    model, label = trained.model, int(tokens[0, key])
    with torch.no_grad():
        probabilities = model(tokens)[0].softmax(-1)
    return {
        "parameters": sum(x.numel() for x in model.parameters()),
        "accuracy": trained.accuracy,
        "probabilities": pack(probabilities),
        # before the capital letter there was nothing to learn
        "right": [None] * key + probabilities[key:, label].tolist(),
        "guess": KEYS[int(probabilities[-1].argmax())],
        "reach": input_gradients(model, tokens, label).tolist(),
        "strips": _inside(model, tokens),
    }


def input_gradients(model: RecallModel, tokens: Tensor, label: int) -> Tensor:
    """‖∂ logit of the label at the end / ∂ embedding of each letter‖, (time)."""
    embedded = model.input_embedding(tokens).detach().requires_grad_()
    # a hook that returns a value replaces the output
    with model.input_embedding.register_forward_hook(lambda *_: embedded), torch.enable_grad():
        (gradient,) = torch.autograd.grad(model(tokens)[0, -1, label], embedded)
    return gradient[0].norm(dim=-1)


@torch.no_grad()
def _inside(model: RecallModel, tokens: Tensor) -> list[dict[str, Any]]:
    """Gates and states of a recurrent model, or the attention of the Transformer's last letter."""
    if model.kind not in ("linear", "transformer"):
        with record_gates(model) as gates:
            model(tokens)
        return _strips(gates[next(iter(gates))])
    with look(model) as sight:
        model(tokens)
    if model.kind == "linear":
        site = sight.mixers[-1]
        strips = {"map": site.window(0)[0], "decay": site.decay[0, ..., 0].mT}
        return [_strip(name, x, signed=name == "map") for name, x in strips.items()]
    rows = torch.cat([site.window(None, -1)[0, :, 0] for site in sight])
    return [_strip("attention of the last letter, one row per head", rows.mT)]
