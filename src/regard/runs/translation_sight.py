"""A translator of ours at work on one text and its answer, seen with their words."""

from dataclasses import replace

import torch
from torch import nn

from regard.data import Pair, Tokenizer, collate, pair_preprocessor
from regard.inspection.record.look import look
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site


@torch.no_grad()
def record_translation(model: nn.Module, tokenizer: Tokenizer, pair: Pair, at: str = "*") -> Sight:
    """What a translator looks at while it reads a source and writes a target, word by word.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> sight = record_translation(model, rg.data.ByteTokenizer(("de",)), rg.data.Pair("two", "zwei", "de"))
    >>> sight["decoder.0.cross"]
    decoder.0.cross: cross, 4 heads, 5 queries, 4 keys
    """
    batch = collate([pair_preprocessor(tokenizer)(pair)])
    source, target = batch["source"], batch["target"][:, :-1]
    words = {
        name: [tokenizer.id_to_token(i) for i in ids[0].tolist()]
        for name, ids in (("source", source), ("target", target))
    }
    device = next(model.parameters()).device
    with look(model, at, tokens=words) as sight:
        model(source.to(device), target.to(device))
    return sight


def with_output_tokens(site: Site, tokenizer: Tokenizer, pair: Pair) -> Site:
    """A decoder's site, each query named by what it writes: the token after the one it reads.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> words, pair = rg.data.ByteTokenizer(("de",)), rg.data.Pair("two", "zwei", "de")
    >>> site = record_translation(model, words, pair)["decoder.0.cross"]
    >>> site.query_tokens, with_output_tokens(site, words, pair).query_tokens
    ([['<de>', 'z', 'w', 'e', 'i']], [['z', 'w', 'e', 'i', '<end>']])
    """
    ids = pair_preprocessor(tokenizer)(pair)["target"][1:]
    return replace(site, query_tokens=[[tokenizer.id_to_token(i) for i in ids]])
