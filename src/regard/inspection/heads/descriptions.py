"""Descriptions of attention maps in sentences, each derived from measured numbers."""

import torch

from regard.inspection.heads.head_table import HeadRow
from regard.inspection.heads.measures import classify_heads
from regard.inspection.sites.labels import disambiguate, key_labels, query_labels
from regard.inspection.sites.site import Site
from regard.ops import Survey
from regard.ops.indices import resolve_index

MAX_LISTED_QUERIES = 12  # longer maps are described by head type, not per query
MIN_NAMED_WEIGHT = 0.1  # keys with less weight are not named
MAX_NAMED_KEYS = 3  # per query
TIE_RATIO = 0.95  # weights at least this close are joined by "and", others by "then"

TYPE_SENTENCES = {
    "identity": "A query looks at its own position: {self_share:.2f} of its weight stays there.",
    "previous": "A query looks at the token before it: {previous_share:.2f} of its weight goes "
    "there.",
    "next": "A query looks at the token after it: {next_share:.2f} of its weight goes there.",
    "offset": "A query looks {offset:+d} positions from itself: {offset_share:.2f} of its weight "
    "goes there.",
    "local": "It works like a convolution: {local_share:.2f} of the weight is within {radius} "
    "positions, with the same kernel everywhere but for {residual:.2f} of it.",
    "permutation": "Each query looks at one key ({peak:.2f} of its weight), nearly each at "
    "another.",
    "hard": "Each query looks at one key ({peak:.2f} of its weight), several at the same.",
    "sink": "Most of the weight, {sink_share:.2f}, goes to the first key or to nothing.",
    "separator": "Most of the weight, {separator_share:.2f}, goes to separators.",
    "alignment": "It moves through the keys in order as the queries advance "
    "(correlation {monotone:.2f}).",
    "induction": "It looks at what followed the same token before ({induction:.2f} on repeated "
    "tokens).",
    "duplicate": "It looks at the same token before ({duplicate:.2f} on repeated tokens).",
    "diffuse": "It spreads its weight nearly evenly: {normalized_entropy:.2f} of the largest "
    "entropy.",
    "mixed": "No single pattern: its first choice gets {peak:.2f} of the weight, and its "
    "entropy is {normalized_entropy:.2f} of the largest.",
    "forced": "No query had more than one visible key.",
}


def describe_head(site: Site, head: int = 0, batch: int = 0) -> str:
    """Describe the attention map of one head in sentences.

    A query "looks at" the keys with at least a tenth of its weight, heaviest first, at most three.
    Maps of more than 12 queries are described by head type, not per query.

    >>> q = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    >>> rg.inspection.describe_head(rg.make_site(q, q.flip(0), tokens=["one", "two"]))
    'one looks at two, two at one. No token looks at itself.'
    """
    query_labels(site, batch)  # checks site and batch
    return describe_heads(site, batch)[resolve_index("head", head, site.heads)]


def describe_heads(
    site: Site, batch: int = 0, rows: list[HeadRow] | None = None, survey: Survey | None = None
) -> list[str]:
    """Describe every head, from one survey.

    `rows`, and a `survey` with `received`, may be given if known.
    """
    lists_queries = site.queries <= MAX_LISTED_QUERIES
    names = disambiguate(query_labels(site, batch)) if lists_queries else []
    keys = disambiguate(key_labels(site, batch))
    if survey is None or (lists_queries and survey.top_weights is None):
        with torch.no_grad():
            survey = site.survey(statistics=["top_weights", "top_keys", "received"], top_k=8)

    def values(name: str) -> list:
        return getattr(survey, name)[batch].tolist()

    ends = [_describe_receiver(site, keys, masses) for masses in values("received")]
    if not lists_queries:
        rows = classify_heads([site]).rows if rows is None else rows
        return [_describe_type(row) + end for row, end in zip(rows, ends, strict=True)]
    return [
        _describe_queries(site, names, keys, [*zip(*tops, strict=True)]) + end
        for *tops, end in zip(values("top_weights"), values("top_keys"), ends, strict=True)
    ]


def _describe_type(row: HeadRow) -> str:
    sentence = TYPE_SENTENCES[row.type.split()[0]]  # "offset -4" has the sentence of "offset"
    return sentence.format(**vars(row))


def _describe_queries(
    site: Site, names: list[str], keys: list[str], tops: list[tuple[list[float], list[int]]]
) -> str:
    named_keys = [_named_keys(weights, top_keys) for weights, top_keys in tops]
    clauses, verb = [], " looks"
    for name, (weights, _), named in zip(names, tops, named_keys, strict=True):
        if weights[0] > 0:
            clauses.append(f"{name}{verb} {_list_keys(named, keys)}")
            verb = ""  # in the first clause only
        else:
            clauses.append(f"{name} sees nothing")
    text = ", ".join(clauses) + "."
    return text + (_describe_self(site, names, named_keys) if site.kind == "self" else "")


def _named_keys(weights: list[float], keys: list[int]) -> list[tuple[float, int]]:
    """Weights and keys that a query looks at, as `describe_head` defines it; ties in key order."""
    ranked = sorted(zip(weights, keys, strict=True), key=lambda x: (-round(x[0], 5), x[1]))
    return [(weight, key) for weight, key in ranked[:MAX_NAMED_KEYS] if weight >= MIN_NAMED_WEIGHT]


def _list_keys(named: list[tuple[float, int]], keys: list[str]) -> str:
    if not named:
        return "at nothing in particular"
    text = f"at {keys[named[0][1]]}"
    for (previous, _), (weight, key) in zip(named, named[1:], strict=False):
        text += f" {'and' if weight >= TIE_RATIO * previous else 'then'} {keys[key]}"
    return text


def _describe_self(site: Site, names: list[str], named: list[list[tuple[float, int]]]) -> str:
    first = site.terms.offset
    own = [row for row, pairs in enumerate(named) if any(k == row + first for _, k in pairs)]
    if not own:
        return " No token looks at itself."
    if len(own) == len(named):
        only = all(len(pairs) == 1 for pairs in named)
        return f" Every token looks {'only ' if only else ''}at itself."
    if len(own) == 1:
        return f" Only {names[own[0]]} looks at itself."
    listed = ", ".join(names[row] for row in own[:-1]) + f" and {names[own[-1]]}"
    return f" Only {listed} look at themselves."


def _describe_receiver(site: Site, keys: list[str], received: list[float]) -> str:
    """The key that receives more than half of all weight of a head, if there is one."""
    total, most = sum(received), max(received)
    if site.queries > 2 and total > 0 and most > total / 2:
        return f" {keys[received.index(most)]} receives {most:.2f} of {total:.2f} in all."
    return ""
