"""The cost view: parameters, multiply-adds and memory of a model, by part and over the length."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache, lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from pydantic import Field
from torch import nn

from regard import costs, models
from regard.costs import Cost, CostPart, Formula
from regard.costs.traced_cost import is_transformers_model
from regard.errors import ConfigError, suggestion
from regard.inspection.figures.canvas import new_figure
from regard.runs.hub_model import build_hub_model
from regard.runs.loading import build_or_load_model, preset_names
from regard.web.explorer.explorer import Explorer, QueryRequest, Rows, query, table_of
from regard.web.jobs import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT = "translator_base"
DIMS = [32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192]
LAYERS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96]
VOCABS = [256, 500, 1000, 2000, 4000, 8000, 16000, 32000, 50257, 64000, 128000, 256000]
LENGTHS = [n for power in range(4, 18) for n in (2**power, 3 * 2 ** (power - 1))][:-1]
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128]
MAX_HEADS, MAX_LENGTH, MAX_SIDE_TOKENS = 128, 1 << 20, 96
TRACED_LENGTHS = [16, 64, 256, 1024, 4096, 16384]  # a pass over shapes takes a tenth of a second
LAYER_NAMES, VOCAB_NAMES = ("layers", "decoder_layers"), ("vocab", "source_vocab", "target_vocab")
HUB_NAMES = {"dim": "hidden_size", "heads": "num_attention_heads", "layers": "num_hidden_layers",
             "vocab": "vocab_size"}  # fmt: skip
QUANTITIES = {  # by field of a part: name
    "parameters": "parameters",
    "multiply_adds": "multiply-adds",
    "bytes_moved": "bytes moved",
    "weight_bytes": "weights",
    "activation_bytes": "activations",
    "cache_bytes": "KV cache",
    "map_bytes": "attention maps",
}


class SizesRequest(QueryRequest):
    """A model and what to change of its sizes; None keeps one."""

    model: str = Field(DEFAULT, max_length=200)
    dim: int | None = Field(None, ge=1, le=1 << 16)
    heads: int | None = Field(None, ge=1, le=MAX_HEADS)
    layers: int | None = Field(None, ge=1, le=128)
    vocab: int | None = Field(None, ge=1, le=1 << 20)
    batch: int = Field(1, ge=1, le=4096)


class CostRequest(SizesRequest):
    """Sizes of a model and of its input."""

    source: int | None = Field(None, ge=1, le=MAX_LENGTH)
    target: int = Field(64, ge=1, le=MAX_LENGTH)


class SizedModel(NamedTuple):
    """A model on the meta device, and the sizes that the page shows."""

    model: nn.Module
    sizes: dict[str, int]  # dim, heads, layers, vocab; those that the model has
    is_editable: bool


def cost_table(response: dict[str, Any]) -> Rows:
    """One row per part."""
    parts = [*response["parts"], {"name": "all", "formula": ""} | response["totals"]]
    _, *rows = table_of(parts, ("name", "formula", *QUANTITIES))
    return [["part", "formula", *QUANTITIES.values()], *rows]


def cost_figure(response: dict[str, Any]) -> "Figure":
    """The share of each part in each quantity, as stacked bars."""
    figure = new_figure(8.0, 3.6)
    axes, colours = figure.subplots(), ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
    shown = [x for x in QUANTITIES if response["totals"][x]]
    left = [0.0] * len(shown)
    for n, part in enumerate(response["parts"]):
        shares = [part[x] / response["totals"][x] for x in shown]
        hatch = ["", "//", ".."][n // len(colours) % 3]
        axes.barh(
            range(len(shown)), shares, left=left, color=colours[n % 5], hatch=hatch, height=0.7,
            edgecolor="white", linewidth=0.5, label=part["name"],
        )  # fmt: skip
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(shown)), [QUANTITIES[x] for x in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_title(f"{response['name']}: {response['input_sizes']}", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


@query("cost", CostRequest, table=cost_table, figure=cost_figure)
def answer_cost(explorer: Explorer, request: CostRequest, job: Job) -> dict[str, Any]:
    """Cost of one forward pass, part by part, and what can be changed."""
    sized = _sized_model(explorer, request)
    cost = costs.cost(sized.model, request.source, request.target, request.batch)
    heads = sized.sizes.get("heads", 1)
    parts = [_as_dict(part, heads) for part in cost.parts]
    return {
        "name": request.model,
        "input_sizes": cost.input_sizes,
        "parts": parts,
        "totals": {x: sum(part[x] for part in parts) for x in QUANTITIES},
        "flops": cost.flops,
        "sizes": sized.sizes | _input_sizes(cost, sized.model, request),
        "choices": _choices(sized, request),
        "unit": _unit(cost),
        "is_editable": sized.is_editable,
        "presets": preset_names(),
        "models": [x.name for x in explorer.catalog.entries.values() if x.kind != "sight"],
    }


@query("cost.curves", SizesRequest)
def answer_cost_curves(explorer: Explorer, request: SizesRequest, job: Job) -> dict[str, Any]:
    """Multiply-adds and memory over the length, and where attention overtakes the rest."""
    sized = _sized_model(explorer, request)
    lengths, rows = _source_lengths(sized), []
    if is_transformers_model(sized.model) and lengths is LENGTHS:
        lengths = TRACED_LENGTHS
    for n, length in enumerate(lengths):
        job.report(n / len(lengths), "counting")
        rows.append(_totals(sized, length, request.batch))
    rival = next((x for x in ("feed_forward", "recurrence") if rows[0][x]), None)
    crossing = None
    if rival and rows[0]["attention"]:
        crossing = _crossing(sized, lengths, rows, rival, job)
    unit = _unit(costs.cost(sized.model, lengths[0], lengths[0]))
    return {
        "lengths": lengths,
        "unit": unit,
        **{name: [row[name] for row in rows] for name in rows[0]},
        "rival": rival,
        "crossing": crossing,
        "sentence": _sentence(rows[0], rival, crossing, unit, lengths[-1]),
    }


# ---- models


def _sized_model(explorer: Explorer, request: SizesRequest) -> SizedModel:
    presets, entries = preset_names(), explorer.catalog.entries
    if request.model in entries:
        entry = entries[request.model]
        if entry.kind == "hugging face":
            model: Any = build_hub_model(entry.path)
            return SizedModel(model, _sizes(model.config.get_text_config(), HUB_NAMES), False)
        config = explorer.catalog.run(request.model).model.config
    elif request.model in presets:
        config = _preset(request.model)
    else:
        known = [*presets, *entries]
        near = suggestion(request.model, known)
        raise ConfigError(f"model: needs one of {', '.join(known)}, got {request.model!r}{near}")
    config = _resized(config, request)
    names = {x: x for x in HUB_NAMES}
    names["vocab"] = next((x for x in VOCAB_NAMES if hasattr(config, x)), "vocab")
    return SizedModel(_shapes(config), _sizes(config, names), True)


@cache
def _preset(name: str) -> Any:
    return build_or_load_model(name).config


@lru_cache(4)  # a slider of a length builds nothing
def _shapes(config: Any) -> nn.Module:
    with torch.device("meta"):
        return models.build(config)


def _sizes(config: Any, names: dict[str, str]) -> dict[str, int]:
    sizes = {ours: getattr(config, name, None) for ours, name in names.items()}
    return {name: x for name, x in sizes.items() if isinstance(x, int)}


def _resized(config: Any, request: SizesRequest) -> Any:
    """A config with other sizes; what depends on the width keeps its ratio to it."""
    changes: dict[str, Any] = {}
    if request.dim is not None:
        changes["dim"] = request.dim
        for name in ("ffn_dim", "hidden"):
            if size := getattr(config, name, None):
                changes[name] = 2 * max(1, size * request.dim // (2 * config.dim))
    if request.heads is not None:
        changes["heads"] = request.heads
        if getattr(config, "kv_heads", None):
            changes["kv_heads"] = gcd(request.heads, config.kv_heads)
    if request.layers is not None:
        changes |= dict.fromkeys(LAYER_NAMES, request.layers)
        if isinstance(getattr(config, "window", None), tuple):
            repeated = config.window * -(-request.layers // len(config.window))
            changes["window"] = repeated[: request.layers]
    if request.vocab is not None:
        changes |= dict.fromkeys(VOCAB_NAMES, request.vocab)
    known = {field.name for field in fields(config)}
    return replace(config, **{name: x for name, x in changes.items() if name in known})


# ---- sizes of the input, and what the sliders offer


def _unit(cost: Cost) -> str:
    """What the length counts."""
    if "side" in cost.input_sizes:
        return "pixels of a side"
    return "frames" if cost.parts and cost.parts[0].name == "convolutions" else "tokens"


def _input_sizes(cost: Cost, model: nn.Module, request: CostRequest) -> dict[str, int]:
    default = getattr(getattr(model, "config", None), "image_size", 512)
    sizes = {"source": request.source or default, "batch": request.batch}
    return sizes | ({"target": request.target} if "target" in cost.input_sizes else {})


def _choices(sized: SizedModel, request: CostRequest) -> dict[str, list[int]]:
    dim = sized.sizes.get("dim", 1)
    lists = {"source": _source_lengths(sized), "target": LENGTHS, "batch": BATCHES}
    if sized.is_editable:
        heads = [n for n in range(1, MAX_HEADS + 1) if dim % n == 0 and dim // n >= 4]
        lists |= {"dim": DIMS, "heads": heads, "layers": LAYERS, "vocab": VOCABS}
    given = {"source": request.source or 0, "target": request.target, "batch": request.batch}
    current = sized.sizes | given
    return {k: sorted({*x, current[k]} - {0}) for k, x in lists.items() if k in current}


def _source_lengths(sized: SizedModel) -> list[int]:
    patch = getattr(getattr(sized.model, "config", None), "patch_size", None)
    if not isinstance(patch, int):
        return LENGTHS
    counts = (1, 2, 3, 4, 6, 8, 12, 14, 16, 24, 32, 48, 64, MAX_SIDE_TOKENS)
    return sorted({patch * n for n in counts} | {getattr(sized.model.config, "image_size", patch)})


# ---- parts and sums


def _as_dict(part: CostPart, heads: int) -> dict[str, Any]:
    counted = {x: getattr(part, x) for x in ("name", "formula", *QUANTITIES) if hasattr(part, x)}
    return counted | {
        "letters": dict(part.sizes),
        "weight_bytes": 4 * part.parameters,  # float32, as the other bytes
        "map_bytes": map_bytes(part, heads),
    }


def map_bytes(part: CostPart, heads: int) -> int:
    """Float32 bytes of the attention maps of a part, which libraries that return weights keep.

    4 · B · L · heads · queries · keys

    >>> [part] = costs.cost(rg.nn.MultiHeadAttention(8, 2), source=10).parts
    >>> map_bytes(part, heads=2)
    800
    """
    if "attention" not in part.name:
        return 0
    sizes = {"L": 1} | dict(part.sizes)
    letter = next((x for x in "nNM" if x in sizes), "n")
    pairs = "NM" if {"N", "M"} <= sizes.keys() else f"{letter}²"
    return 4 * Formula(f"BLh{pairs}").value(**sizes | {"h": heads})


def _totals(sized: SizedModel, length: int, batch: int) -> dict[str, int]:
    """Sums over the parts where source and target have the same length."""
    parts = costs.cost(sized.model, length, length, batch).parts
    sums: dict[str, int] = dict.fromkeys(("attention", "feed_forward", "recurrence", "other"), 0)
    for part in parts:
        kinds = [x for x in ("attention", "feed-forward", "recurrence") if x in part.name]
        sums[(kinds or ["other"])[0].replace("-", "_")] += part.multiply_adds
    heads = sized.sizes.get("heads", 1)
    return sums | {
        "activation_bytes": sum(part.activation_bytes for part in parts),
        "cache_bytes": sum(part.cache_bytes for part in parts),
        "map_bytes": sum(map_bytes(part, heads) for part in parts),
    }


def _crossing(
    sized: SizedModel, lengths: Sequence[int], rows: list[dict[str, int]], rival: str, job: Job
) -> int | None:
    """The smallest length at which attention needs more multiply-adds than its rival."""
    above = [row["attention"] > row[rival] for row in rows]
    if all(above) or not any(above):
        return None
    first = above.index(True)
    low, high = lengths[first - 1], lengths[first]

    def exceeds(length: int) -> bool:
        job.check()
        row = _totals(sized, length, 1)
        return row["attention"] > row[rival]

    return bisect_left(range(low, high), True, key=exceeds) + low


def _sentence(
    first: dict[str, int], rival: str | None, crossing: int | None, unit: str, longest: int
) -> str:
    if not first["attention"]:
        return "This model has no attention: its cost grows in proportion to the length."
    if rival is None:
        return "This model has no feed-forward layers to compare the attention with."
    name = rival.replace("_", "-")
    if crossing is not None:
        return f"From {crossing:,} {unit} on, attention needs more multiply-adds than the {name}."
    if first["attention"] > first[rival]:
        return f"Attention needs more multiply-adds than the {name} at every length."
    return f"Up to {longest:,} {unit} the {name} needs more multiply-adds than attention."
