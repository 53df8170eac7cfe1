"""Edits of attention as parameters of a link: what the what-if view can change."""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from pydantic import Field

from regard.errors import ConfigError, ShapeError
from regard.inspection import Edit, Sight, Site, edit
from regard.inspection.edits.closed_forms import (
    OutputChange,
    drop_key_effect,
    scale_key_effect,
    scale_scores_effect,
)
from regard.web.explorer.queries import TextRequest

MAX_INDEX = 100_000
INDICES = r"^(\d{1,6}( \d{1,6})*)?$"  # "3 5"
HEADS = r"^([^ ]+/\d{1,4}( [^ ]+/\d{1,4})*)?$"  # "decoder.0.self/2 decoder.1.cross/5"


class EditRequest(TextRequest):
    """A text, and how the attention of the model is edited while it is read.

    `where` are globs over attention sites, separated by spaces. Keys and queries are positions;
    noise without positions is added to all.
    """

    where: str = Field("*", min_length=1, max_length=400)
    only_head: int | None = Field(None, ge=0, lt=MAX_INDEX)
    beta: float = Field(1.0, ge=0, le=100)
    attention: Literal["softmax", "hardmax", "uniform"] = "softmax"
    drop_heads: str = Field("", max_length=20_000, pattern=HEADS)
    scale_heads: str = Field("", max_length=20_000, pattern=HEADS)
    head_factor: float = Field(1.0, ge=-100, le=100)
    drop_keys: str = Field("", max_length=7000, pattern=INDICES)
    scale_keys: str = Field("", max_length=7000, pattern=INDICES)
    key_factor: float = Field(1.0, ge=-100, le=100)
    jitter_keys: str = Field("", max_length=7000, pattern=INDICES)
    key_sigma: float = Field(0.0, ge=0, le=100)
    jitter_queries: str = Field("", max_length=7000, pattern=INDICES)
    query_sigma: float = Field(0.0, ge=0, le=100)
    seed: int = Field(0, ge=0, lt=1 << 31)


EDIT_FIELDS = tuple(x for x in EditRequest.model_fields if x not in TextRequest.model_fields)


class ClosedForm(NamedTuple):
    """What an edit changes in the output of one attention, by a formula, and that edit."""

    formula: str
    effect: Callable[[Site], OutputChange]
    edit: Callable[[str], Edit]  # at the site of a name


def build_edits(request: EditRequest, sight: Sight) -> list[Edit]:
    """The edits of a request, in the order in which a call passes them.

    Keys before scores before outputs: a dropped key cannot be the one that hard attention takes.
    """
    globs = _check_where(request.where, sight)
    edits = [make(glob) for make in _call_edits(request) for glob in globs]
    for site, head in parse_heads(request.drop_heads):
        edits.append(edit.drop_head(site, head))
    if request.head_factor != 1:
        for site, head in parse_heads(request.scale_heads):
            edits.append(edit.scale_head(site, head, request.head_factor))
    return edits


def _call_edits(request: EditRequest) -> list[Callable[[str], Edit]]:
    """The edits that act at `where`, each a function of the glob."""
    found: list[Callable[[str], Edit]] = []
    heads: dict[str, Any] = {"heads": request.only_head}
    if request.scale_keys and request.key_factor != 1:
        keys = parse_indices(request.scale_keys)
        found.append(lambda glob: edit.scale_key(glob, keys, request.key_factor, **heads))
    if request.key_sigma:
        noisy = parse_indices(request.jitter_keys) or None
        noise = heads | {"seed": request.seed}
        found.append(lambda glob: edit.jitter_key(glob, request.key_sigma, keys=noisy, **noise))
    if request.query_sigma:
        rows = parse_indices(request.jitter_queries) or None
        noise = heads | {"seed": request.seed}
        found.append(
            lambda glob: edit.jitter_query(glob, request.query_sigma, queries=rows, **noise)
        )
    if request.drop_keys:
        dropped = parse_indices(request.drop_keys)
        found.append(lambda glob: edit.drop_key(glob, dropped, **heads))
    if request.beta != 1:
        found.append(lambda glob: edit.scale_scores(glob, request.beta, **heads))
    if request.attention == "hardmax":
        found.append(lambda glob: edit.hardmax(glob, **heads))
    elif request.attention == "uniform":
        found.append(lambda glob: edit.uniform(glob, **heads))
    return found


def closed_form(request: EditRequest) -> ClosedForm | None:
    """The closed form where exactly one edit is active and has one, else None.

    >>> closed_form(EditRequest(model="phrases", text="3 days", drop_keys="1")).formula
    'Δh = W / (1 - W) · (h - v̄)'
    """
    active = _call_edits(request)
    if len(active) != 1 or request.key_sigma or request.query_sigma:
        return None
    (make,) = active
    if request.drop_keys:
        keys = parse_indices(request.drop_keys)
        return ClosedForm("Δh = W / (1 - W) · (h - v̄)", lambda x: drop_key_effect(x, keys), make)
    if request.scale_keys:
        keys, factor = parse_indices(request.scale_keys), request.key_factor
        if len(keys) > 1:
            return None
        text = "Δh = (w' - w) / (1 - w) · (v - h)"
        return ClosedForm(text, lambda x: scale_key_effect(x, keys[0], factor), make)
    if request.attention == "hardmax":
        return None
    factor = 0.0 if request.attention == "uniform" else request.beta
    text = "Δh = Σ (w' - w) v,  w' ∝ exp(β s)"
    return ClosedForm(text, lambda x: scale_scores_effect(x, factor), make)


def parse_indices(text: str) -> list[int]:
    """Positions of a link.

    >>> parse_indices("3 5 3")
    [3, 5]
    """
    return list(dict.fromkeys(map(int, text.split())))


def parse_heads(text: str) -> list[tuple[str, int]]:
    """Sites and heads of a link.

    >>> parse_heads("decoder.0.self/2")
    [('decoder.0.self', 2)]
    """
    parts = (re.fullmatch(r"(\S+)/(\d+)", x) for x in text.split())
    return list(dict.fromkeys((m[1], int(m[2])) for m in parts if m))


def head_factors(request: EditRequest, site: Site) -> list[float]:
    """What the output of each head is multiplied by; 0 is a dropped one."""
    dropped, scaled = parse_heads(request.drop_heads), parse_heads(request.scale_heads)
    return [
        0.0
        if (site.name, h) in dropped
        else request.head_factor
        if (site.name, h) in scaled
        else 1.0
        for h in range(site.heads)
    ]


def site_groups(sight: Sight) -> list[dict[str, str]]:
    """Groups of sites that edits can be limited to: a name, and the globs of `where`."""
    groups = [
        ("encoder", "encoder.*"),
        ("decoder self", "decoder.*.self"),
        ("cross", "decoder.*cross"),
        ("all that reads the source", "encoder.* decoder.*cross"),
    ]
    found = [{"name": "all sites", "where": "*"}]
    for name, where in groups:
        counts = [_count(sight, glob) for glob in where.split()]
        if all(counts) and sum(counts) < len(sight.names):
            found.append({"name": name, "where": where})
    return found


def _count(sight: Sight, glob: str) -> int:
    return sum(fnmatchcase(name, glob) for name in sight.names)


def _check_where(where: str, sight: Sight) -> list[str]:
    globs = where.split() or ["*"]
    for site in sight:
        if sum(fnmatchcase(site.name, glob) or fnmatchcase(site.path, glob) for glob in globs) > 1:
            raise ConfigError(
                f"where: needs globs that match no site twice, got {where!r} for {site.name}"
            )
    for glob in globs:
        if not any(fnmatchcase(x.name, glob) or fnmatchcase(x.path, glob) for x in sight):
            names = ", ".join(sight.names[:6])
            raise ShapeError(f"where: needs globs over {names} …, got {glob[:80]!r}; try *")
    return globs
