"""The what-if view: maps and predictions of a model before and after edits of its attention."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from regard.errors import LookError, ShapeError
from regard.inspection import (
    Comparison,
    Edit,
    Sight,
    Site,
    activation_names,
    compare_sights,
    what_if,
)
from regard.inspection.edits.registry import EditCall, parse_edits
from regard.inspection.figures.canvas import DIVERGING, label_axis, new_figure, show_matrix
from regard.inspection.sites.labels import WHITESPACE_MARKS, key_labels, query_labels
from regard.runs.text_model import Reading
from regard.tasks import SearchConfig, TranslationSearch
from regard.tasks.translation.alignment import alignment_head
from regard.web.explorer.catalog import find_head
from regard.web.explorer.edits import (
    EditRequest,
    Edits,
    build_edits,
    edited_output,
    list_edit_types,
    site_groups,
)
from regard.web.explorer.explorer import (
    Explorer,
    ModelRequest,
    Rows,
    TextRequest,
    finite,
    pack,
    query,
    unpack,
)
from regard.web.explorer.views.text.head import read
from regard.web.jobs import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TOKENS = 512  # of a text: every slider step reads all maps
MAX_CELLS = 192  # per side of a map; larger ones are pooled
TOP = 4  # tokens per position, before and after
NOTICEABLE = 0.001  # change of a probability that the sentence mentions
NEW_TOKENS = 12  # that a language model continues the text by


class WhatIfRequest(EditRequest):
    """A text, edits, and the head and position that are shown; by default telling ones."""

    site: str | None = Field(None, max_length=200)
    head: int | None = Field(None, ge=0, lt=100_000)
    position: int | None = Field(None, ge=0, lt=100_000)  # whose predictions are listed
    where: str | None = Field(None, max_length=200)  # of the page: where its controls act
    only: int | None = Field(None, ge=0, lt=100_000)  # and on which head


@query("what-if.output", EditRequest)
def answer_what_if_output(explorer: Explorer, request: EditRequest, job: Job) -> dict[str, Any]:
    """What the model writes under the edits: a translation, or the text continued greedily."""
    reading = _baseline(explorer, request, job)
    run, verb = explorer.catalog.run(request.model), _verb(explorer, request)
    # a text that is being written has few keys
    edits = [replace(x, last_key=-1) if isinstance(x, Edit) else x for x in build_edits(request)]
    if verb is None:
        return {"text": None}
    with what_if(run.model, *edits), job.checking(run.model, "writing under the edit"):
        if verb == "generate":
            return {"text": run.generate(request.text, max_new_tokens=NEW_TOKENS)}
        to = request.to or run.text_model.default_language
        return {"text": _translate(run.text_model, request.text, to, reading)}


@query("what-if.predictions", EditRequest)
def answer_what_if_predictions(
    explorer: Explorer, request: EditRequest, job: Job
) -> dict[str, Any]:
    """Predictions per position before and after the edits, without writing a text under them."""
    before = _baseline(explorer, request, job)
    edits = build_edits(request)
    after = read(explorer, request, job, target=before.target, edits=edits) if edits else before
    positions = _positions(explorer, request, before, after)
    return {"positions": positions, "sentence": _sentence(edits, positions, None, before)}


def _table(response: dict[str, Any]) -> Rows:
    head = "position token kl before p_before after p_after changed_most p_changed_before"
    rows: list[list[Any]] = [[*head.split(), "p_changed_after"]]
    for row in response["positions"]:
        rows.append([row["position"], row["token"], row["kl"], *row["before"], *row["after"]])
        rows[-1] += row["changed_most"].values()  # token, before, after
    return rows


def _figure(response: dict[str, Any]) -> "Figure":
    maps = unpack(response["maps"])
    figure = new_figure(12, 4.4)
    size = len(response["queries"]), len(response["keys"])
    limit = max(1e-12, float(maps[2].abs().max()))
    weights: dict[str, Any] = {"vmax": float(maps[:2].max())}
    change: dict[str, Any] = {"cmap": DIVERGING, "vmin": -limit, "vmax": limit}
    titles = {"before": weights, "after": weights, "difference": change}
    for axes, x, (title, options) in zip(figure.subplots(1, 3), maps, titles.items(), strict=True):
        show_matrix(axes, x, size, **options)
        label_axis(axes, "x", response["keys"])
        label_axis(axes, "y", response["queries"])
        axes.set_title(f"{response['site']}, head {response['head']}, {title}", fontsize=9)
    return figure


@query("what-if.edits", ModelRequest)
def answer_what_if_edits(explorer: Explorer, request: ModelRequest, job: Job) -> dict[str, Any]:
    """What can be edited: each edit with its parameters and ranges, the names of activations."""
    names = activation_names(explorer.catalog.run(request.model).model)
    return {"types": list_edit_types(), "activations": names}


def _related(request: WhatIfRequest, response: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("what-if.edits", {"model": request.model})]


@query("what-if", WhatIfRequest, table=_table, figure=_figure, related=_related)
def answer_what_if(explorer: Explorer, request: WhatIfRequest, job: Job) -> dict[str, Any]:
    """Maps, predictions and output of a model before and after edits of its attention."""
    before = _baseline(explorer, request, job)
    calls = parse_edits(request.edits)
    edits = [call.make() for call in calls]
    after = read(explorer, request, job, target=before.target, edits=edits) if edits else before
    site, head = _chosen(explorer, request, before.sight, job)
    changes = compare_sights(before.sight, after.sight)
    pool = -(-site.queries // MAX_CELLS), -(-site.keys // MAX_CELLS)
    positions = _positions(explorer, request, before, after)
    written = _written(explorer, request, before, edits, job)
    return {
        "site": site.name,
        "head": head,
        "sites": _sites(edits, before.sight, after.sight, changes.rows),
        "groups": site_groups(before.sight),
        "queries": query_labels(site),
        "keys": key_labels(site),
        "pool": list(pool),
        "maps": pack(changes.maps(site.name, head, pool)),
        "target": before.target,
        "output": written,
        "kind": None if before.predictions is None else before.predictions.kind,
        "positions": positions,
        "position": _shown_position(request, positions, before),
        "formula": _formula(explorer, request, before, calls, site, head, job),
        "edits": [repr(x) for x in edits],
        "calls": [call.to_dict() for call in calls],
        "sentence": _sentence(edits, positions, written, before),
    }


def _baseline(explorer: Explorer, request: EditRequest, job: Job) -> Reading:
    """The unedited reading; an error for what cannot be edited."""
    explorer.catalog.run(request.model)  # raises for a saved sight
    reading = read(explorer, request, job)
    if not reading.sight.sites:
        raise LookError(f"model: needs attention to edit, got {request.model!r} without any")
    longest = max(max(site.queries, site.keys) for site in reading.sight)
    if longest > MAX_TOKENS:
        raise ShapeError(f"text: needs at most {MAX_TOKENS} tokens to be edited, got {longest}")
    return reading


def _chosen(explorer: Explorer, request: WhatIfRequest, sight: Sight, job: Job) -> tuple[Site, int]:
    """The site and head to show: of a translator the sharpest cross-attention, else as in Text."""
    name, head = request.site or sight.names[-1], request.head or 0
    if request.site is None:
        if any(site.kind == "cross" for site in sight):
            row = alignment_head(sight)
            start = {"site": row.site, "head": row.head}
        else:
            text = request.model_dump(include={*TextRequest.model_fields}, exclude_unset=True)
            start = explorer.answer("text.start", text, job)
        name, head = start["site"], start["head"] if request.head is None else request.head
    return find_head(sight, name, head)


def _sites(edits: Edits, before: Sight, after: Sight, rows: list[Any]) -> list[dict[str, Any]]:
    """Per site and head: how far the map and the output moved."""
    distances = {(row.site, row.head): row.distance for row in rows}
    sites = []
    for old, new in zip(before.join_all(), after.join_all(), strict=True):
        change = (edited_output(new, edits) - old.out)[0].float().flatten(1).norm(dim=-1)
        share = change / old.out[0].float().flatten(1).norm(dim=-1)
        sites.append(
            {
                "name": old.name,
                "kind": old.kind,
                "map": [distances[old.name, h] for h in range(old.heads)],
                "output": [finite(x) for x in share.tolist()],
            }
        )
    return sites


def _positions(
    explorer: Explorer, request: EditRequest, before: Reading, after: Reading
) -> list[dict[str, Any]]:
    """Predictions per position with the same given text, before and after."""
    if before.logits is None or after.logits is None:
        return []
    comparison = Comparison(before.logits, after.logits)
    text_model = explorer.catalog.run(request.model).text_model
    old, new = (x.float().softmax(-1) for x in (before.logits, after.logits))
    old_ids, _, new_ids, _ = comparison.top(TOP)
    most = (new - old).abs().argmax(-1)
    site = before.sight.join(before.sight.names[-1])
    inputs = query_labels(site) if len(old) == site.queries else [""] * len(old)
    names = text_model.labels

    def row(i: int, token: int) -> list[Any]:
        """The name of a token, and its probability before and after."""
        name = names[token] if names else text_model.token_names([token])[0]
        shown = name if names else name.translate(WHITESPACE_MARKS)
        return [shown, float(old[i, token]), float(new[i, token])]

    positions = []
    for i, kl in enumerate(comparison.kl.tolist()):
        tops = [row(i, t) for t in dict.fromkeys(old_ids[i].tolist() + new_ids[i].tolist())]
        then = row(i, int(new_ids[i, 0]))
        positions.append(
            {
                "position": i,
                "token": inputs[i],
                "kl": finite(kl),
                "before": tops[0][:2],
                "after": [then[0], then[2]],
                "top": tops,
                "changed_most": dict(
                    zip(("token", "before", "after"), row(i, int(most[i])), strict=True)
                ),
            }
        )
    return positions


def _shown_position(
    request: WhatIfRequest, positions: list[dict[str, Any]], before: Reading
) -> int | None:
    """The position of the request, else the one whose prediction changes most; the last of none."""
    if request.position is not None or not positions:
        return request.position
    at = 0 if before.predictions is None else before.predictions.at % len(positions)
    return max(range(len(positions)), key=lambda i: (positions[i]["kl"] or 0, i == at))


def _written(
    explorer: Explorer, request: EditRequest, before: Reading, edits: Edits, job: Job
) -> dict[str, Any] | None:
    """What the model writes by itself, before and after; None where it writes nothing."""
    if _verb(explorer, request) is None:
        return None
    bare = {k: x for k in ("model", "text", "to") if (x := getattr(request, k)) is not None}
    old = before.target
    if old is None or request.target is not None:  # a language model, or a target of the user
        old = explorer.answer("what-if.output", bare, job)["text"]
    if not edits:
        return {"before": old, "after": old}
    new = explorer.answer("what-if.output", bare | {"edits": request.edits}, job)["text"]
    return {"before": old, "after": new}


def _verb(explorer: Explorer, request: EditRequest) -> str | None:
    verb = explorer.catalog.entry(request.model).verb
    return verb if verb in ("translate", "generate") else None


def _translate(text_model: Any, text: str, to: str | None, reading: Reading) -> str:
    """Greedy; at most twice as long as before, as a damaged model may never end."""
    limit = 2 * max(site.queries for site in reading.sight if site.name.startswith("decoder")) + 8
    config = SearchConfig(max_new_tokens=min(100, limit))
    search = TranslationSearch(text_model.model, text_model.tokenizer, config)
    translation = search([text], [[to]])[0][0][0]
    return translation.text + ("" if translation.ended else " …")


def _formula(
    explorer: Explorer,
    request: EditRequest,
    before: Reading,
    calls: list[EditCall],
    site: Site,
    head: int,
    job: Job,
) -> dict[str, Any] | None:
    """Change of the head's output by a closed form, beside the one measured with this site edited.

    Only this site is edited for it: the formula takes its queries, keys and values as given.
    """
    try:
        effect = calls[0].effect(site, head) if len(calls) == 1 else None
    except ShapeError:  # a key that this site does not have
        return None
    if effect is None:
        return None
    edits = [calls[0].make(site=site.name)]
    edited = read(explorer, request, job, target=before.target, edits=edits)
    measured = (edited.sight.join(site.name).out - site.out)[0, head].float()
    predicted = effect.change[0, head].float()
    first = effect.first_order
    return {
        "formula": calls[0].type.formula,
        "predicted": predicted.norm(dim=-1).tolist(),
        "measured": measured.norm(dim=-1).tolist(),
        "first_order": None if first is None else first[0, head].float().norm(dim=-1).tolist(),
        "largest_error": float((predicted - measured).abs().max()),
    }


def _sentence(
    edits: Edits, positions: list[dict[str, Any]], written: dict[str, Any] | None, before: Reading
) -> str:
    """What changed, in one sentence."""
    if not edits:
        return "Nothing is edited: move a slider, drop a head or choose keys."
    parts = []
    if written is not None:
        old, new = (" ".join(written[x].split()) for x in ("before", "after"))
        same = written["before"] == written["after"]
        parts.append(
            f"the output stays “{old}”" if same else f"the output changes from “{old}” to “{new}”"
        )
    if positions:
        kind = "" if before.predictions is None else before.predictions.kind
        changed = sum(row["before"][0] != row["after"][0] for row in positions)
        parts.append(
            f"the most likely {kind} changes at {changed} of {len(positions)} positions"
            if len(positions) > 1
            else f"the most likely {kind} {'changes' if changed else 'stays'}"
        )
        worst = max(positions, key=lambda row: row["kl"] or 0)
        place = "after" if kind == "next token" else "at"
        where = f"most of all {place} “{_bare(worst['token'])}”, where " if worst["token"] else ""
        most = worst["changed_most"]
        if abs(most["after"] - most["before"]) < NOTICEABLE:
            parts[-1] = f"no probability changes by more than {NOTICEABLE}"
        else:
            move = f"from {most['before']:.3f} to {most['after']:.3f}"
            parts.append(f"{where}“{_bare(most['token'])}” goes {move}")
    text = "; ".join(parts) or "the maps changed"
    return f"{text[0].upper()}{text[1:]}."


def _bare(token: str) -> str:
    return token.strip() or token
