"""What `regard look` tells in the terminal: one weight, maps in words, where one token looks."""

from dataclasses import replace

import torch
from torch import nn

from regard.errors import LookError, ShapeError
from regard.inspection import Sight, Site, describe_head, output_projection
from regard.runs import TextModel
from regard.work import explain

MOST = 2  # keys that are named for each head


def explain_weight(model: nn.Module, sight: Sight, cell: str) -> str:
    """One weight of the one attention that was asked for, with its way through the output map."""
    if len(sight) != 1:
        names = ", ".join(sight.names[:3])
        raise LookError(f"at: needs one attention beside --cell, got {len(sight)}; try {names}")
    parts = cell.split(",")
    if len(parts) != 3 or not all(part.strip().lstrip("-").isdigit() for part in parts):
        raise LookError(f"cell: needs a head, a query and a key, got {cell!r}; try 0,1,2")
    site, (head, query, key) = sight.sites[0], map(int, parts)
    try:
        w_out = output_projection(model, site)
    except LookError:  # a map that we know no name for: the way out is left untold
        w_out = None
    return str(explain(site, head, query, key, w_out=w_out))


def describe_maps(sight: Sight) -> str:
    """Every map in a sentence or two, each of which follows from its numbers."""
    return "\n".join(
        f"{site.name}, head {head}: {describe_head(site, head)}"
        for site in sight
        for head in range(site.heads)
    )


def format_attention_table(
    reader: TextModel, text: str, query: int, target: str | None, at: str, to: str | None
) -> str:
    """Where one token looks, by layer and head: as trained, and beside it before training."""
    if target is None and reader.is_encoder_decoder and reader.tokenizer is not None:
        from regard.tasks import translate_texts  # the same words for both

        (target,) = translate_texts(reader.model, reader.tokenizer, [text], [to])
    torch.manual_seed(0)
    fresh = replace(reader, model=type(reader.model)(reader.model.config).eval())
    now, before = (one.look(text, target, at, to=to) for one in (reader, fresh))
    lines = []
    for site, other in zip(now, before, strict=True):
        if not 0 <= query < site.queries:
            continue  # an encoder reads another count of words than a decoder writes
        for head in range(site.heads):
            name = f"{site.name} {head}"
            lines.append((name, _looks(site, head, query), _looks(other, head, query)))
    if not lines:
        most = max((site.queries for site in now), default=0)
        raise ShapeError(f"query: needs less than {most}, got {query}; try 0")
    lines.insert(0, ("attention, head", "as trained", "before training"))
    wide = [max(len(line[n]) for line in lines) for n in range(2)]
    told = (f"{a:<{wide[0]}}  {b:<{wide[1]}}  {c}" for a, b, c in lines)
    asked = {_word(site.query_tokens, query) for site in now if query < site.queries}
    return f"query {query}: {' or '.join(sorted(asked))}\n" + "\n".join(told)


def _looks(site: Site, head: int, query: int) -> str:
    row = site.window(head=head, rows=slice(query, query + 1))[0, 0]
    weights, keys = row.topk(min(MOST, len(row)))
    told = zip(keys.tolist(), weights.tolist(), strict=True)
    return ", ".join(f"{_word(site.key_tokens, key)} {weight:.2f}" for key, weight in told)


def _word(tokens: list[list[str]] | None, at: int) -> str:
    return str(at) if tokens is None else repr(tokens[0][at])
