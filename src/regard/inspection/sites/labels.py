"""Labels of queries and keys for figures and sentences."""

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches

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


def strip_marks(token: str) -> str:
    """Drop the tokenizer's mark of a leading space; a token of spaces alone stays visible.

    >>> strip_marks("Ġthe"), strip_marks("Ġ")
    ('the', '␣')
    """
    text = token.translate(WHITESPACE_MARKS)
    return text.strip() or text.replace(" ", "␣")
