"""Induction and duplicate-token scores, measured on repeated random tokens."""

from dataclasses import replace

import torch
from torch import nn

from regard.errors import ShapeError
from regard.inspection.heads.head_table import HeadTable
from regard.inspection.heads.head_types import Thresholds, with_type
from regard.inspection.heads.measures import measure_heads
from regard.inspection.heads.offsets import offset_weights
from regard.inspection.record.look import look


@torch.no_grad()
def probe_induction(
    model: nn.Module,
    vocab: int,
    *,
    length: int = 32,
    batch: int = 4,
    seed: int = 0,
    thresholds: Thresholds | None = None,
) -> HeadTable:
    """Find the heads of a language model that copy, on random tokens repeated once.

    input [x_1 … x_n x_1 … x_n]
    induction = mean weight of the second x_t on the first x_{t+1},   duplicate: on the first x_t

    Args:
        model: A causal language model, called with token ids.
        vocab: Tokens are drawn uniformly from 0 to vocab - 1.
        length: Number of tokens before the repetition.
        batch: Number of sequences.
        seed: Random seed of the tokens.
        thresholds: Limits of the head types.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=50)).eval()
    >>> len(probe_induction(model, vocab=50, length=8))
    8
    """
    if length < 2 or vocab < 2:
        raise ShapeError(f"length, vocab: need 2 or more, got {length} and {vocab}")
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(vocab, (batch, length), generator=generator)
    tokens = torch.cat([half, half], 1)
    device = next((p.device for p in model.parameters()), tokens.device)
    with look(model) as sight:
        model(tokens.to(device))
    thresholds, rows = thresholds or Thresholds(), []
    for site in sight:
        scores = offset_weights(site, -length, 1 - length)[:, :, length:].mean((0, 2)).tolist()
        heads = measure_heads(site, frozenset(), thresholds)
        for row, (duplicate, induction) in zip(heads, scores, strict=True):
            row = replace(row, duplicate=duplicate, induction=induction)
            rows.append(with_type(row, thresholds))
    return HeadTable(rows)
