"""How tokens and positions are written beside a picture or in a sentence."""

from collections import Counter

from regard.errors import LookError, ShapeError
from regard.look.site import Site, Tokens

SPACES = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "↵", "\n": "↵", "\t": "⇥"})


def query_labels(site: Site, batch: int = 0) -> list[str]:
    """What each query is called: its token, or its position where the tokens are not known.

    >>> query_labels(rg.site_of(*torch.zeros(2, 2, 4), tokens=["Ġthe", "cat"]))
    ['the', 'cat']
    """
    _check(site, batch)
    return _labels(site.query_tokens, batch, site.queries, site.terms.offset)


def key_labels(site: Site, batch: int = 0) -> list[str]:
    """What each key is called.

    >>> key_labels(rg.site_of(*torch.zeros(2, 2, 4)))
    ['0', '1']
    """
    _check(site, batch)
    return _labels(site.key_tokens, batch, site.keys, 0)


def told_apart(labels: list[str]) -> list[str]:
    """The labels with their position where the same one occurs twice.

    >>> told_apart(["the", "cat", "the"])
    ['the (0)', 'cat', 'the (2)']
    """
    count = Counter(labels)
    return [
        f"{label} ({at})" if count[label] > 1 else label
        for at, label in enumerate(quoted(label) for label in labels)
    ]


def quoted(label: str) -> str:
    """A label that is safe inside a sentence: marks that would read as ours are put in quotes.

    >>> quoted("."), quoted("cat")
    ('“.”', 'cat')
    """
    return label if any(letter.isalnum() for letter in label) else f"“{label}”"


def shortened(label: str, most: int = 12) -> str:
    """A label cut to fit beside a picture.

    >>> shortened("antidisestablishment", 8)
    'antidis…'
    """
    return label if len(label) <= most else label[: most - 1] + "…"


def _check(site: Site, batch: int) -> None:
    if not isinstance(site, Site):
        raise LookError(
            f"site: needs one attention, got a {type(site).__name__}; try sight['name'] "
            "or sight.sites[0]"
        )
    if not 0 <= batch < site.batch:
        raise ShapeError(
            f"batch: needs less than {site.batch}, got {batch}; try 0 to {site.batch - 1}"
        )


def _labels(tokens: Tokens | None, batch: int, count: int, first: int) -> list[str]:
    if tokens is None:
        return [str(first + at) for at in range(count)]
    return [_clean(token) for token in tokens[batch][:count]]


def _clean(token: str) -> str:
    """Tokenizers mark a space before a word; a reader sees that anyway."""
    plain = token.translate(SPACES)
    return plain.strip() or plain.replace(" ", "␣")
