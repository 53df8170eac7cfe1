"""Which word of a translation comes from which word of its source, by the attention across."""

from typing import NamedTuple

from torch import nn

from regard.data import Pair, Tokenizer, pair_preprocessor
from regard.errors import LookError
from regard.inspection.sites.site import Site
from regard.runs.translation_sight import record_translation, with_output_tokens


class Link(NamedTuple):
    """A word that was written, the word it looks at most, and the share of its weight there.

    >>> Link("Tage", "days", 0.9).source
    'days'
    """

    target: str
    source: str
    weight: float


class Alignment(NamedTuple):
    """The links of all words that were written, and the site and head that they were read from.

    >>> Alignment(None, 0, [Link("Tage", "days", 0.9)]).links[0].weight
    0.9
    """

    site: Site
    head: int
    links: list[Link]


def align(model: nn.Module, tokenizer: Tokenizer, pair: Pair) -> Alignment:
    """The words of a translation, each with the word of the source that it looks at most.

    weight(word, other) = Σ_{j in other} mean_{i in word} w_ij,   i writes, j is read

    Of all heads across, the one is taken whose queries look most sharply, each at another key.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> words, pair = rg.data.ByteTokenizer(("de",)), rg.data.Pair("two days", "zwei Tage", "de")
    >>> [link.target for link in align(model, words, pair).links]
    ['zwei', 'Tage']
    """
    sight = record_translation(model, tokenizer, pair)
    across = [row for row in sight.heads() if row.kind == "cross"]
    if not across:
        kind = type(model).__name__
        raise LookError(f"model: needs attention to its source, got a {kind} that has none")
    best = max(across, key=lambda row: row.peak * row.distinct - row.sink_share)
    site, ids = (
        with_output_tokens(sight[best.site], tokenizer, pair),
        pair_preprocessor(tokenizer)(pair),
    )
    weights = site.window(best.head)[0].float()
    others = _words(tokenizer, ids["source"])
    links = []
    for word, places in _words(tokenizer, ids["target"][1:]):
        row = weights[places].mean(0)
        shares = [float(row[at].sum()) for _, at in others]
        most = max(range(len(shares)), key=shares.__getitem__)
        # weights are recomputed from the log-sum-exp, so rounding can take them past 1
        links.append(Link(word, others[most][0], min(shares[most], 1.0)))
    return Alignment(site, best.head, links)


def _words(tokenizer: Tokenizer, ids: list[int]) -> list[tuple[str, list[int]]]:
    """The words of tokens, each with the places of its tokens; without spaces each is a word."""
    pieces = [
        (at, tokenizer.id_to_token(i)) for at, i in enumerate(ids) if i >= tokenizer.first_text_id
    ]
    spaced = any(piece[:1].isspace() or piece[-1:].isspace() for _, piece in pieces)
    words: list[tuple[str, list[int]]] = []
    apart = True
    for at, piece in pieces:
        if piece.isspace():
            apart = True
            continue
        if apart or piece[0].isspace() or not spaced:
            words.append(("", []))
        words[-1] = words[-1][0] + piece, [*words[-1][1], at]
        apart = piece[-1].isspace()
    return [(text.strip(), places) for text, places in words]
