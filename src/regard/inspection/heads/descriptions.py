"""A map read in words: a few sentences, each of which follows from its numbers."""

import torch
from torch import Tensor

from regard.inspection.heads.head_table import classify_heads
from regard.inspection.heads.head_types import HeadRow
from regard.inspection.sites.labels import disambiguate, key_labels, query_labels
from regard.inspection.sites.site import Site
from regard.ops import Survey
from regard.ops.indices import resolve_index

MAX_LISTED_QUERIES = 12  # queries that are told one by one
MIN_NAMED_WEIGHT = 0.1  # a key is named from this share of a query's weight on …
MAX_NAMED_KEYS = 3  # … and at most so many
TIE_RATIO = 0.95  # two weights closer than this are joined by "and", others by "then"

TYPE_SENTENCES = {
    "identity": "A query looks at its own place: {self_share:.2f} of its weight stays there.",
    "previous": "A query looks at the token before it: {previous_share:.2f} of its weight goes there.",
    "next": "A query looks at the token after it: {next_share:.2f} of its weight goes there.",
    "offset": "A query looks {offset:+d} places from itself: {offset_share:.2f} of its weight "
    "goes there.",
    "local": "It works like a convolution: {local_share:.2f} of the weight is within {radius} places, "
    "with the same kernel everywhere but for {residual:.2f} of it.",
    "permutation": "Each query looks at one key ({peak:.2f} of its weight), nearly each at "
    "another.",
    "hard": "Each query looks at one key ({peak:.2f} of its weight), several at the same.",
    "sink": "Most of the weight, {sink_share:.2f}, goes to the first key or to nothing.",
    "separator": "Most of the weight, {separator_share:.2f}, goes to separators.",
    "alignment": "It goes through the keys in order as the queries advance "
    "(correlation {monotone:.2f}).",
    "induction": "It looks at what followed the same token before ({induction:.2f} on repeated "
    "tokens).",
    "duplicate": "It looks at the same token before ({duplicate:.2f} on repeated tokens).",
    "diffuse": "It spreads its weight nearly evenly: {normalized_entropy:.2f} of the largest entropy.",
    "mixed": "It has no single habit: its first choice gets {peak:.2f} of the weight, and its "
    "entropy is {normalized_entropy:.2f} of the largest.",
    "forced": "No query had two keys to choose from.",
}


def describe_head(site: Site, head: int = 0, batch: int = 0) -> str:
    """Read the map of one head in words.

    A query "looks at" the keys that have at least a tenth of its weight, heaviest first, at most
    three. Long maps are told by what the head does, not query by query.

    >>> q = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    >>> rg.describe_head(rg.make_site(q, q.flip(0), tokens=["one", "two"]))
    'one looks at two, two at one. No token looks at itself.'
    """
    query_labels(site, batch)  # says so if this is no site, or has no such sequence
    return describe_heads(site, batch)[resolve_index("head", head, site.heads)]


def describe_heads(
    site: Site, batch: int = 0, rows: list[HeadRow] | None = None, survey: Survey | None = None
) -> list[str]:
    """The same for every head, from one survey; `rows` and `found` where they are known already.

    >>> len(describe_heads(rg.make_site(*torch.zeros(2, 3, 5, 4))))
    3
    """
    names, keys = disambiguate(query_labels(site, batch)), disambiguate(key_labels(site, batch))
    if survey is None or survey.top_weights is None or survey.received is None:
        with torch.no_grad():
            survey = site.survey(statistics=["top_weights", "top_keys", "received"], top_k=8)
    ends = _receivers(site, keys, _part(survey.received, batch))
    if site.queries > MAX_LISTED_QUERIES:
        rows = classify_heads([site]).rows if rows is None else rows
        return [_by_type(row) + end for row, end in zip(rows, ends, strict=True)]
    tops = zip(_part(survey.top_weights, batch), _part(survey.top_keys, batch), ends, strict=True)
    return [_by_query(site, names, keys, top, at) + end for top, at, end in tops]


def _part(x: Tensor | None, batch: int) -> list:
    assert x is not None
    return x[batch].tolist()


def _by_type(row: HeadRow) -> str:
    phrase = TYPE_SENTENCES[row.type.split()[0]]  # "offset -4" is an offset
    return phrase.format(**vars(row))


def _by_query(
    site: Site, names: list[str], keys: list[str], top: list[list[float]], at: list[list[int]]
) -> str:
    looked = [_looks_at(w, where) for w, where in zip(top, at, strict=True)]
    clauses, verb = [], " looks"
    for name, weights, chosen in zip(names, top, looked, strict=True):
        if weights[0] > 0:
            clauses.append(f"{name}{verb} {_told(chosen, keys)}")
            verb = ""  # said once
        else:
            clauses.append(f"{name} sees nothing")
    said = ", ".join(clauses) + "."
    return said + (_about_itself(site, names, looked) if site.kind == "self" else "")


def _looks_at(weights: list[float], keys: list[int]) -> list[tuple[float, int]]:
    """The keys that a query looks at, as the docstring of `describe_head` defines it."""
    # of equal weights the first key comes first
    ranked = sorted(zip(weights, keys, strict=True), key=lambda x: (-round(x[0], 5), x[1]))
    return [(weight, key) for weight, key in ranked[:MAX_NAMED_KEYS] if weight >= MIN_NAMED_WEIGHT]


def _told(chosen: list[tuple[float, int]], keys: list[str]) -> str:
    if not chosen:
        return "at nothing in particular"
    said = f"at {keys[chosen[0][1]]}"
    for (before, _), (weight, key) in zip(chosen, chosen[1:], strict=False):
        said += f" {'and' if weight >= TIE_RATIO * before else 'then'} {keys[key]}"
    return said


def _about_itself(site: Site, names: list[str], looked: list[list[tuple[float, int]]]) -> str:
    first = site.terms.offset
    own = [at for at, chosen in enumerate(looked) if any(k == at + first for _, k in chosen)]
    if not own:
        return " No token looks at itself."
    if len(own) == len(looked):
        only = all(len(chosen) == 1 for chosen in looked)
        return f" Every token looks {'only ' if only else ''}at itself."
    if len(own) == 1:
        return f" Only {names[own[0]]} looks at itself."
    listed = ", ".join(names[at] for at in own[:-1]) + f" and {names[own[-1]]}"
    return f" Only {listed} look at themselves."


def _receivers(site: Site, keys: list[str], received: list[list[float]]) -> list[str]:
    """By head, which key gets more than half of all that is given, if one does."""
    said = []
    for given in received:
        total, most = sum(given), max(given)
        if site.queries > 2 and total > 0 and most > total / 2:
            said.append(f" {keys[given.index(most)]} receives {most:.2f} of {total:.2f} in all.")
        else:
            said.append("")
    return said
