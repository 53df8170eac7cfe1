"""Reports about the attention of a model on a text: HTML page, one weight, prose, or a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from regard.errors import FileError, LookError, ShapeError, counted
from regard.files import is_stream
from regard.inspection import (
    Sight,
    SightComparison,
    Site,
    compare_sights,
    describe_head,
    output_projection,
    score_heads,
    write_report,
)
from regard.inspection.edits.registry import parse_edits
from regard.inspection.record.sight import layer_of
from regard.runs.text_model import TextModel

TOP_KEYS = 2  # keys listed per head


class LookReport(NamedTuple):
    """The text of a report, and the sites that could not be recorded with the reasons."""

    text: str
    skipped: dict[str, str] = {}


def look_report(
    model: TextModel,
    text: str,
    *,
    target: str | None = None,
    to: str | None = None,
    at: str = "*",
    out: Path = Path("report.html"),
    cell: tuple[int, int, int] | None = None,
    describe: bool = False,
    query: int | None = None,
    probe: bool = False,
    name: str | None = None,
    around: Sequence[int] = (),
    edits: str = "",
) -> LookReport:
    """Record the attention of a model on a text and report about it.

    Args:
        model: with its tokenizer.
        text: what the model reads; token ids if it has no tokenizer.
        target: what an encoder-decoder writes; a run's translator decodes its own if None.
        to: target language of a run's translator.
        at: glob over attention sites.
        out: HTML page to write, unless one of the next three is set.
        cell: (head, query, key) of one weight to explain.
        describe: describe every head in words.
        query: list the top keys of this query, trained and untrained.
        probe: also score induction heads on repeated random tokens.
        name: of the model on the page, such as its folder; its class if None.
        around: queries of a long text around which the page has the exact weights.
        edits: of the model, written as in Python: "drop_head('*.self', 2); uniform('*.cross')".

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> report = look_report(rg.runs.TextModel(model, vocab=10), "3 1 4", describe=True)
    >>> len(report.text.splitlines())  # two layers of four heads
    8
    """
    if not out.resolve().parent.is_dir():  # raised now, not after the forward pass
        raise FileError(f"out: needs a folder that exists, got {out.parent}; try another path")
    calls = [call.make() for call in parse_edits(edits)]
    if query is not None:
        if calls:
            raise LookError("edit: needs a page, a cell or prose, got a query; try without --query")
        return LookReport(format_attention_table(model, query, text, target, at, to))
    reading = model.read(text, target, at, to=to, edits=calls)
    sight, target = reading.sight, reading.target
    if cell is not None:
        return LookReport(explain_weight(model.model, sight, *cell))
    if describe:
        if not sight.sites:
            raise LookError(f"describe: needs attention, got {sight.mixer_names}; try without it")
        heads = ((site, head) for site in sight for head in range(site.heads))
        lines = (f"{site.name}, head {head}: {describe_head(site, head)}" for site, head in heads)
        return LookReport("\n".join(lines))
    scores = score_heads(model.model) if probe else None
    kind = type(model.model).__name__
    facts = {"Model": kind if name is None else f"{name} ({kind})", "Input": text}
    facts |= {} if target is None else {"Output": target}
    facts["Layers"] = layers_recorded(sight)
    facts |= {"Edits": "; ".join(map(repr, calls))} if calls else {}
    write_report(
        sight,
        out,
        title=f"Attention of {kind if name is None else Path(name).name or name}",
        separators=model.separators,
        probe=scores,
        facts=facts,
        queries=around,
        predictions=reading.predictions,
    )
    sites = counted(len(sight), "attention site")
    size = "" if is_stream(out) else f", {out.stat().st_size / 1e6:.1f} MB"
    text = f"{out}: {sites}, {counted(sum(x.heads for x in sight), 'head')}{size}\n"
    text += "; ".join(filter(None, (facts["Layers"], sight.missing)))
    return LookReport(text, dict(sight.skipped))


def layers_recorded(sight: Sight) -> str:
    """How many layers were recorded, and why others were not; with at= nothing is known of those.

    >>> layers_recorded(Sight([rg.make_site(*torch.zeros(2, 3, 4), name="layers.0.attn")]))
    '1 of 1 layers recorded'
    """
    if sight.coverage:
        return sight.coverage
    count = len({layer_of(name) for name in (*sight.names, *sight.mixer_names)})
    mixers = f", {counted(len(sight.mixer_names), 'linear mixer')}" if sight.mixers else ""
    if sight.unmatched:
        return counted(count, "layer")
    return f"{count} of {count} layers recorded{mixers}"


def compare_texts(
    models: tuple[TextModel, TextModel],
    texts: tuple[str, str],
    *,
    names: tuple[str, str] | None = None,
    target: str | None = None,
    to: str | None = None,
    at: str = "*",
) -> SightComparison:
    """Compare the attention of a model on two texts, or of two models on one text.

    Args:
        models: the model of each text.
        texts: what each model reads; token ids if it has no tokenizer.
        names: of the two, for figures; the texts by default.
        target: what an encoder-decoder writes; a run's translator decodes its own if None.
        to: target language of a run's translator.
        at: glob over attention sites.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> model = rg.runs.TextModel(model, vocab=10)
    >>> len(compare_texts((model, model), ("3 1 4", "3 1 5")).rows)
    8
    """
    pairs = zip(models, texts, strict=True)
    first, second = (model.look(text, target, at, to=to) for model, text in pairs)
    return compare_sights(first, second, names=names or texts)


def parse_cell(text: str) -> tuple[int, int, int]:
    """A cell given as "head,query,key".

    >>> parse_cell("0,1,2")
    (0, 1, 2)
    """
    parts = text.split(",")
    if len(parts) != 3 or not all(map(_is_index, parts)):
        raise LookError(f"cell: needs a head, a query and a key, got {text!r}; try 0,1,2")
    head, query, key = map(int, parts)
    return head, query, key


def parse_queries(text: str) -> list[int]:
    """Queries given as "12,400".

    >>> parse_queries("12,400")
    [12, 400]
    """
    if not all(map(_is_index, text.split(","))):
        raise LookError(f"around: needs indices of queries, got {text!r}; try 0,100")
    return [int(part) for part in text.split(",")]


def _is_index(text: str) -> bool:
    return text.strip().lstrip("-").isdigit()


def explain_weight(model: nn.Module, sight: Sight, head: int, query: int, key: int) -> str:
    """The arithmetic of one weight of the only recorded site, with its output projection."""
    from regard.work import explain

    if len(sight) != 1:
        names = ", ".join(sight.names[:3])
        raise LookError(f"at: needs one attention site for a cell, got {len(sight)}; try {names}")
    (site,) = sight.sites
    try:
        w_out = output_projection(model, site)
    except LookError:  # a module whose output projection has an unknown name: leave that step out
        w_out = None
    return str(explain(site, head, query, key, w_out=w_out))


def format_attention_table(
    model: TextModel, query: int, text: str, target: str | None, at: str, to: str | None
) -> str:
    """The top keys of one query by site and head, of the trained and of an untrained model."""
    target = model.complete_target(text, target, to)  # the same for both models
    trained, untrained = (m.look(text, target, at, to=to) for m in (model, model.untrained()))
    rows = [("attention, head", "trained", "untrained")]
    for site, other in zip(trained, untrained, strict=True):
        if 0 <= query < site.queries:  # source and target differ in length
            rows += [
                (f"{site.name} {head}", _top_keys(site, head, query), _top_keys(other, head, query))
                for head in range(site.heads)
            ]
    if len(rows) == 1:
        longest = max((site.queries for site in trained), default=0)
        raise ShapeError(f"query: needs less than {longest}, got {query}; try 0")
    widths = [max(len(row[n]) for row in rows) for n in range(2)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
    names = {_token(site.query_tokens, query) for site in trained if query < site.queries}
    return "\n".join([f"query {query}: {' or '.join(sorted(names))}", *lines])


def _top_keys(site: Site, head: int, query: int) -> str:
    row = site.window(head=head, rows=slice(query, query + 1))[0, 0]
    weights, keys = row.topk(min(TOP_KEYS, len(row)))
    pairs = zip(keys.tolist(), weights.tolist(), strict=True)
    return ", ".join(f"{_token(site.key_tokens, key)} {weight:.2f}" for key, weight in pairs)


def _token(tokens: list[list[str]] | None, at: int) -> str:
    return str(at) if tokens is None else repr(tokens[0][at])
