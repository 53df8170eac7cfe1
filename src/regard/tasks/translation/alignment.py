"""Recorded attention of a translator on a pair of texts, and the word alignment it shows."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.data import Pair, Tokenizer, collate, pair_preprocessor
from regard.errors import LookError
from regard.inspection.edits.activations import ActivationEdit
from regard.inspection.edits.base import Edit
from regard.inspection.edits.what_if import what_if
from regard.inspection.record.look import look
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site


@torch.no_grad()
def record_translation(
    model: nn.Module,
    tokenizer: Tokenizer,
    pair: Pair,
    at: str = "*",
    edits: Sequence[Edit | ActivationEdit] = (),
) -> Sight:
    """Record the attention of a translator while it decodes a given target (teacher forcing).

    Args:
        model: a Translator or RecurrentTranslator, in evaluation mode.
        tokenizer: of its training.
        pair: source, target and target language.
        at: glob over attention sites.
        edits: of the forward pass, as `rg.what_if` takes them; edited maps are recorded.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> tokenizer, pair = rg.data.ByteTokenizer(("de",)), rg.data.Pair("two", "zwei", "de")
    >>> record_translation(model, tokenizer, pair)["decoder.0.cross"]
    decoder.0.cross: cross, 4 heads, 5 queries, 4 keys
    """
    batch, device = collate([pair_preprocessor(tokenizer)(pair)]), next(model.parameters()).device
    inputs = {"source": batch["source"].to(device), "target": batch["target"][:, :-1].to(device)}
    tokens = {name: list(map(tokenizer.id_to_token, x[0].tolist())) for name, x in inputs.items()}
    with look(model, at, tokens=tokens) as sight, editing(model, edits):
        model(*inputs.values())
    return sight


def editing(
    model: nn.Module, edits: Sequence[Edit | ActivationEdit]
) -> AbstractContextManager[Any]:
    """`what_if` with the edits, or nothing at all where there are none."""
    return what_if(model, *edits) if edits else nullcontext()


def with_output_tokens(site: Site, tokenizer: Tokenizer, pair: Pair) -> Site:
    """A decoder's site with each query labelled by its output token instead of its input token.

    >>> run, pair = rg.load("phrases"), rg.data.Pair("3 days", "3 Tage", "de")
    >>> site = record_translation(run.model, run.tokenizer, pair)["decoder.0.cross"]
    >>> with_output_tokens(site, run.tokenizer, pair).query_tokens[0][-1]
    '<end>'
    """
    ids = pair_preprocessor(tokenizer)(pair)["target"][1:]
    return replace(site, query_tokens=[[tokenizer.id_to_token(i) for i in ids]])


class Link(NamedTuple):
    """A target word, the source word it attends to most, and the weight on that word."""

    target: str
    source: str
    weight: float


class Alignment(NamedTuple):
    """One link per target word, and the site and head that they are read from."""

    site: Site
    head: int
    links: list[Link]


def align(model: nn.Module, tokenizer: Tokenizer, pair: Pair) -> Alignment:
    """Align each target word with the source word that it attends to most, by `alignment_head`.

    weight(word, other) = Σ_{j in other} mean_{i in word} w_ij,   i of the target, j of the source

    >>> run, pair = rg.load("phrases"), rg.data.Pair("3 days", "3 Tage", "de")
    >>> [link.source for link in align(run.model, run.tokenizer, pair).links]
    ['3', 'days']
    """
    sight = record_translation(model, tokenizer, pair)
    best = alignment_head(sight)
    site = with_output_tokens(sight[best.site], tokenizer, pair)
    ids = pair_preprocessor(tokenizer)(pair)
    weights = site.window(best.head)[0].float()
    sources = _words(tokenizer, ids["source"])
    links = []
    for word, positions in _words(tokenizer, ids["target"][1:]):
        row = weights[positions].mean(0)
        shares = [float(row[keys].sum()) for _, keys in sources]
        most = max(range(len(shares)), key=shares.__getitem__)
        # weights are recomputed from the log-sum-exp, so rounding can take them past 1
        links.append(Link(word, sources[most][0], min(shares[most], 1.0)))
    return Alignment(site, best.head, links)


def alignment_head(sight: Sight) -> Any:
    """The row of `sight.heads()` whose cross-attention is sharpest with a distinct key per query.

    >>> run, pair = rg.load("phrases"), rg.data.Pair("3 days", "3 Tage", "de")
    >>> alignment_head(record_translation(run.model, run.tokenizer, pair)).kind
    'cross'
    """
    rows = [row for row in sight.heads() if row.kind == "cross"]
    if not rows:
        raise LookError("model: needs cross-attention to align words, got a model without any")
    return max(rows, key=lambda row: row.peak * row.distinct - row.sink_share)


def _words(tokenizer: Tokenizer, ids: list[int]) -> list[tuple[str, list[int]]]:
    """Words with the positions of their tokens; in text without spaces every token is a word."""
    texts = [(at, i) for at, i in enumerate(ids) if i not in tokenizer.special_tokens]
    tokens = [(at, tokenizer.id_to_token(i)) for at, i in texts]
    has_spaces = any(token[:1].isspace() or token[-1:].isspace() for _, token in tokens)
    words: list[tuple[str, list[int]]] = []
    after_space = True
    for at, token in tokens:
        if token.isspace():
            after_space = True
            continue
        if after_space or token[0].isspace() or not has_spaces:
            words.append(("", []))
        words[-1] = words[-1][0] + token, [*words[-1][1], at]
        after_space = token[-1].isspace()
    return [(text.strip(), positions) for text, positions in words]
