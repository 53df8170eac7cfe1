"""How tokens and positions are written beside a picture or in a sentence."""

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches

from regard.errors import LookError, ShapeError
from regard.inspection.sites.site import Site, Tokens
from regard.ops.indices import as_int, resolve_index

WHITESPACE_MARKS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "↵", "\n": "↵", "\t": "⇥"})


def query_labels(site: Site, batch: int = 0) -> list[str]:
    """What each query is called: its token, or its position where the tokens are not known.

    >>> query_labels(rg.make_site(*torch.zeros(2, 2, 4), tokens=["Ġthe", "cat"]))
    ['the', 'cat']
    """
    _check(site, batch)
    return _labels(site.query_tokens, batch, site.queries, site.terms.offset)


def key_labels(site: Site, batch: int = 0) -> list[str]:
    """What each key is called.

    >>> key_labels(rg.make_site(*torch.zeros(2, 2, 4)))
    ['0', '1']
    """
    _check(site, batch)
    return _labels(site.key_tokens, batch, site.keys, 0)


def query_index(site: Site, query: int | str, batch: int = 0) -> int:
    """The row of a query, told by its number or by its token, if that stands there once.

    >>> query_index(rg.make_site(*torch.zeros(2, 2, 4), tokens=["Ġthe", "cat"]), "cat")
    1
    """
    if not isinstance(query, str):
        return resolve_index("query", query, site.queries)
    labels = query_labels(site, batch)
    if site.query_tokens is None:
        raise LookError(
            f"query: needs a number from 0 to {site.queries - 1}, as the tokens are not known, "
            f"got {query!r}; try look(model, tokens=…)"
        )
    pairs = zip(labels, site.query_tokens[batch], strict=True)
    found = [at for at, names in enumerate(pairs) if query in names]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(map(str, found[:8]))
        raise LookError(f"query: needs a token that stands there once, got {query!r}; try {some}")
    near = get_close_matches(query, labels, 1, 0)
    raise LookError(f"query: needs one of the tokens, got {query!r}; try {near[0]!r}")


def disambiguate(labels: list[str]) -> list[str]:
    """The labels with their position where the same one occurs twice.

    >>> disambiguate(["the", "cat", "the"])
    ['the (0)', 'cat', 'the (2)']
    """
    count = Counter(labels)
    return [
        f"{label} ({at})" if count[label] > 1 else label
        for at, label in enumerate(quote_label(label) for label in labels)
    ]


def quote_label(label: str) -> str:
    """A label that is safe inside a sentence: marks that would read as ours are put in quotes.

    >>> quote_label("."), quote_label("cat")
    ('“.”', 'cat')
    """
    return label if any(letter.isalnum() for letter in label) else f"“{label}”"


def shorten_label(label: str, max_length: int = 12) -> str:
    """A label cut to fit beside a picture.

    >>> shorten_label("antidisestablishment", 8)
    'antidis…'
    """
    return label if len(label) <= max_length else label[: max_length - 1] + "…"


def as_site_list(sites: Site | Iterable[Site]) -> list[Site]:
    """One site or several, as several."""
    found = [sites] if isinstance(sites, Site) or not isinstance(sites, Iterable) else [*sites]
    for site in found:
        check_site(site)
    return found


def check_site(site: object) -> None:
    """Raise unless it is one attention that ran."""
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
        return [str(first + at) for at in range(count)]
    return [_clean(token) for token in tokens[batch][:count]]


def _clean(token: str) -> str:
    """Tokenizers mark a space before a word; a reader sees that anyway."""
    plain = token.translate(WHITESPACE_MARKS)
    return plain.strip() or plain.replace(" ", "␣")
