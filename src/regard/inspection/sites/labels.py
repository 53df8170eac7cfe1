"""Labels of queries and keys: tokens assigned to sites, and their text in figures and sentences."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from regard.errors import LookError, ShapeError
from regard.inspection.sites.site import Site, Tokens
from regard.ops.indices import as_int, resolve_index

WHITESPACE_MARKS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "↵", "\n": "↵", "\t": "⇥"})


def query_labels(site: Site, batch: int = 0) -> list[str]:
    """The label of each query: its token, or its position if the tokens are unknown.

    >>> query_labels(rg.make_site(*torch.zeros(2, 2, 4), tokens=["Ġthe", "cat"]))
    ['the', 'cat']
    """
    _check(site, batch)
    return _labels(site.query_tokens, batch, site.queries, site.terms.offset)


def key_labels(site: Site, batch: int = 0) -> list[str]:
    """The label of each key: its token, or its position if the tokens are unknown.

    >>> key_labels(rg.make_site(*torch.zeros(2, 2, 4)))
    ['0', '1']
    """
    _check(site, batch)
    return _labels(site.key_tokens, batch, site.keys, 0)


def query_index(site: Site, query: int | str, batch: int = 0) -> int:
    """The row of a query, given by index or by a token that occurs once.

    >>> query_index(rg.make_site(*torch.zeros(2, 2, 4), tokens=["Ġthe", "cat"]), "cat")
    1
    """
    if not isinstance(query, str):
        return resolve_index("query", query, site.queries)
    labels = query_labels(site, batch)
    if site.query_tokens is None:
        raise LookError(
            f"query: needs an index from 0 to {site.queries - 1}, as the tokens are unknown, "
            f"got {query!r}; try look(model, tokens=…)"
        )
    pairs = zip(labels, site.query_tokens[batch], strict=True)
    rows = [row for row, names in enumerate(pairs) if query in names]
    if len(rows) == 1:
        return rows[0]
    if rows:
        options = ", ".join(map(str, rows[:8]))
        raise LookError(f"query: needs a token that occurs once, got {query!r}; try {options}")
    close = get_close_matches(query, labels, 1, 0)
    raise LookError(f"query: needs one of the tokens, got {query!r}; try {close[0]!r}")


def disambiguate(labels: list[str]) -> list[str]:
    """Append the position to labels that occur more than once.

    >>> disambiguate([".", "cat", "."])
    ['“.” (0)', 'cat', '“.” (2)']
    """
    count = Counter(labels)
    return [
        f"{quote_label(label)} ({i})" if count[label] > 1 else quote_label(label)
        for i, label in enumerate(labels)
    ]


@lru_cache(1 << 16)  # every site of a page has the same labels
def quote_label(label: str) -> str:
    """Quote a label without letters or digits, which would read as punctuation of the sentence.

    >>> quote_label("."), quote_label("cat")
    ('“.”', 'cat')
    """
    return label if any(letter.isalnum() for letter in label) else f"“{label}”"


def shorten_label(label: str, max_length: int = 12) -> str:
    """Truncate a label, with an ellipsis.

    >>> shorten_label("antidisestablishment", 8)
    'antidis…'
    """
    return label if len(label) <= max_length else label[: max_length - 1] + "…"


def as_site_list(sites: Site | Iterable[Site]) -> list[Site]:
    """One site or several as a list, checked."""
    site_list = [sites] if isinstance(sites, Site) or not isinstance(sites, Iterable) else [*sites]
    for site in site_list:
        check_site(site)
    return site_list


def check_site(site: object) -> None:
    """Raise unless it is a Site."""
    if not isinstance(site, Site):
        raise LookError(
            f"site: needs one attention, got a {type(site).__name__}; try sight['name'] "
            "or sight.sites[0]"
        )


def _check(site: Site, batch: int) -> None:
    check_site(site)
    if not 0 <= as_int("batch", batch) < site.batch:
        raise ShapeError(
            f"batch: needs less than {site.batch}, got {batch}; try 0 to {site.batch - 1}"
        )


def _labels(tokens: Tokens | None, batch: int, count: int, first: int) -> list[str]:
    if tokens is None:
        return [str(first + i) for i in range(count)]
    return [strip_marks(token) for token in tokens[batch][:count]]


@lru_cache(1 << 16)
def strip_marks(token: str) -> str:
    """Drop the tokenizer's mark of a leading space; a token of spaces alone stays visible.

    >>> strip_marks("Ġthe"), strip_marks("Ġ")
    ('the', '␣')
    """
    text = token.translate(WHITESPACE_MARKS)
    return text.strip() or text.replace(" ", "␣")


def label_site(
    site: Site, source: Tokens | None, target: Tokens | None, *, allow_longer: bool = False
) -> Site:
    """Label the queries and keys of a site where the number of tokens fits.

    Queries of a decoder get target tokens. Shorter sequences of a batch are padded with empty
    labels. With `allow_longer` there may be more tokens than this call has, as in generation.
    """
    query_side, key_side = _sides_of(site, source, target)
    first, last = _query_span(site)
    return replace(
        site,
        query_tokens=slice_tokens(query_side, site.batch, first, last, allow_longer),
        key_tokens=slice_tokens(key_side, site.batch, 0, site.keys, allow_longer),
    )


def label_sites(
    sites: Sequence[Site], source: Tokens | None, target: Tokens | None, *, partial: bool = False
) -> list[Site]:
    """Label every site; tokens that fit no site are an error.

    In a `partial` sight, the sites that use one of the two sides may be missing.
    """
    calls = Counter(site.path for site in sites)
    labelled = [
        label_site(site, source, target, allow_longer=calls[site.path] > 1) for site in sites
    ]
    for name, tokens in (("source", source), ("target", target)):
        if tokens is None:
            continue
        needs: dict[int, Site] = {}  # token count -> first site that has it
        fits = False
        for site in labelled:
            sides = _sides_of(site, source, target), (site.query_tokens, site.key_tokens)
            for side, labels, count in zip(*sides, (_query_span(site)[1], site.keys), strict=True):
                if side is tokens:
                    needs.setdefault(count, site)
                    fits |= labels is not None
        if fits or (partial and not needs):
            continue
        rule, got = _describe_misfit(tokens, needs)
        name = name if target else "tokens"
        raise ShapeError(f"{name}: needs {rule}, got {got}; try the tokens of the model's input")
    return labelled


def _describe_misfit(tokens: Tokens, needs: Mapping[int, Site]) -> tuple[str, str]:
    """How many tokens would fit, and how many there are."""
    counts = " or ".join(f"{count} ({site.name})" for count, site in [*needs.items()][:3])
    got = str(max(map(len, tokens)))
    if len(tokens) > 1:
        batches = dict.fromkeys(site.batch for site in needs.values())
        counts += f" for each of {' or '.join(map(str, batches))} sequences"
        got += f" for each of {len(tokens)}"
    return f"{counts} tokens" if needs else "a site that has them", got


def _sides_of(
    site: Site, source: Tokens | None, target: Tokens | None
) -> tuple[Tokens | None, Tokens | None]:
    """The tokens of the queries and of the keys."""
    decodes = target is not None and (site.kind == "cross" or "decoder" in site.path)
    queries = target if decodes else source
    return queries, source if site.kind == "cross" else queries


def _query_span(site: Site) -> tuple[int, int]:
    """The position of the first query, and one past the last."""
    last = site.terms.offset + site.queries if site.kind == "self" else site.queries
    return last - site.queries, last


def parse_tokens(tokens: Any) -> tuple[Tokens | None, Tokens | None]:
    """Source and target tokens from a list, a list per sequence, or a mapping.

    >>> parse_tokens({"source": ["a", "b"], "target": ["c"]})
    ([['a', 'b']], [['c']])
    """
    if isinstance(tokens, Mapping):
        if unknown := sorted(set(tokens) - {"source", "target"}):
            raise ShapeError(f"tokens: needs source and target, got {unknown[0]!r}")
        return _batched(tokens.get("source")), _batched(tokens.get("target"))
    return _batched(tokens), None


def _batched(tokens: Any) -> Tokens | None:
    if tokens is None:
        return None
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise ShapeError(f"tokens: needs a list of strings, got {tokens!r}; try text.split()")
    if all(isinstance(token, str) for token in tokens):
        return [list(tokens)]
    for row in tokens:
        is_list = isinstance(row, Sequence) and not isinstance(row, str)
        if not is_list or not all(isinstance(token, str) for token in row):
            raise ShapeError(f"tokens: needs strings or lists of strings, got {row!r} among them")
    return [list(row) for row in tokens]


def slice_tokens(
    tokens: Tokens | None, batch: int, first: int, last: int, allow_longer: bool
) -> Tokens | None:
    """Tokens first to last of each sequence; None if the count does not fit."""
    if tokens is None or len(tokens) not in (1, batch):
        return None
    longest = max(len(row) for row in tokens)
    if longest < last or (longest > last and not allow_longer):
        return None
    rows = tokens if len(tokens) == batch else tokens * batch
    return [(row + [""] * (longest - len(row)))[first:last] for row in rows]
