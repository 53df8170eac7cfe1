"""Recorded attention of a translator on one source and its target, with their tokens."""

from dataclasses import replace

import torch
from torch import nn

from regard.data import Pair, Tokenizer, collate, pair_preprocessor
from regard.inspection.record.look import look
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site


@torch.no_grad()
def record_translation(model: nn.Module, tokenizer: Tokenizer, pair: Pair, at: str = "*") -> Sight:
    """Record the attention of a translator while it decodes a given target (teacher forcing).

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> tokenizer, pair = rg.data.ByteTokenizer(("de",)), rg.data.Pair("two", "zwei", "de")
    >>> record_translation(model, tokenizer, pair)["decoder.0.cross"]
    decoder.0.cross: cross, 4 heads, 5 queries, 4 keys
    """
    batch = collate([pair_preprocessor(tokenizer)(pair)])
    source, target = batch["source"], batch["target"][:, :-1]
    tokens = {
        name: [tokenizer.id_to_token(i) for i in ids[0].tolist()]
        for name, ids in (("source", source), ("target", target))
    }
    device = next(model.parameters()).device
    with look(model, at, tokens=tokens) as sight:
        model(source.to(device), target.to(device))
    return sight


def with_output_tokens(site: Site, tokenizer: Tokenizer, pair: Pair) -> Site:
    """A decoder's site with each query labelled by its output token instead of its input token.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> tokenizer, pair = rg.data.ByteTokenizer(("de",)), rg.data.Pair("two", "zwei", "de")
    >>> site = record_translation(model, tokenizer, pair)["decoder.0.cross"]
    >>> site.query_tokens, with_output_tokens(site, tokenizer, pair).query_tokens
    ([['<de>', 'z', 'w', 'e', 'i']], [['z', 'w', 'e', 'i', '<end>']])
    """
    ids = pair_preprocessor(tokenizer)(pair)["target"][1:]
    return replace(site, query_tokens=[[tokenizer.id_to_token(i) for i in ids]])
