"""Induction, previous-token, duplicate-token, retrieval and sink scores of every head."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.model_calls import run_model
from regard.inspection.heads.head_table import SCORE_COLUMNS, HeadTable
from regard.inspection.heads.head_types import Thresholds, with_type
from regard.inspection.heads.measures import measure_heads, merge_layers
from regard.inspection.heads.patterns import pattern_scores
from regard.inspection.record.look import look
from regard.inspection.record.sight import Sight, format_skipped

DEFAULT_LENGTH = 32
COPIES = ("induction", "duplicate", "retrieval")


class IdTokenizer:
    """Labels token ids with their numbers, for `look(model, tokens=…)`."""

    @staticmethod
    def convert_ids_to_tokens(ids: Sequence[int]) -> list[str]:
        """The ids as strings."""
        return [str(i) for i in ids]


@torch.no_grad()
def score_heads(
    model: nn.Module,
    inputs: Any = None,
    *,
    at: str = "*",
    vocab: int | None = None,
    length: int | None = None,
    batch: int = 4,
    seed: int = 0,
    needle: slice = slice(None),
    answer: slice = slice(None),
) -> HeadTable:
    """Score every self-attention head: how far it copies, looks back or rests on the first token.

    x_i is the token at query i and w_ij its weight on key j. Each score is a mean over queries:

    induction (Olsson et al. 2022)   Σ w_ij over j < i with x_{j-1} = x_i: what followed a copy
    duplicate (Wang et al. 2022)     Σ w_ij over j < i with x_j = x_i: the copy itself
    previous                         w_{i,i-1}
    retrieval (Wu et al. 2024)       1 if j = argmax w_ij < i has x_j = x_{i+1}, the next token
    sink (Xiao et al. 2023)          weight on the first key, and on learned sinks

    A query counts if it sees such a key, and another one. Without inputs the model reads random
    tokens that are repeated once, after the `bos_token_id` of its config if that has one.

    Args:
        model: The model, ours or of transformers.
        inputs: Token ids that the model is called with: a tensor (batch, time), a tuple of
            arguments or a mapping.
        at: Glob over the names or paths of attention modules.
        vocab: Random tokens are drawn uniformly from 0 to vocab - 1; by default all tokens.
        length: Number of random tokens before the repetition; 32 by default, or as many as the
            positions of the model have room for.
        batch: Number of sequences of random tokens.
        seed: Random seed of the tokens.
        needle: Positions that retrieval may copy from; all by default.
        answer: Positions of the tokens whose prediction counts for retrieval; all by default.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=50)).eval()
    >>> heads = rg.inspection.score_heads(model, length=8)
    >>> len(heads), heads.top(1, by="induction")[0].induction < 0.5  # untrained
    (8, True)
    """
    inputs = _repeated_tokens(model, vocab, length, batch, seed) if inputs is None else inputs
    with look(model, at, tokens=IdTokenizer()) as sight:
        run_model(model, inputs)
    rows, thresholds = [], Thresholds()
    for site, layers in merge_layers(self_attentions(sight)):
        patterns = pattern_scores(site, COPIES, needle=needle, answer=answer)
        scores = {name: _means(x.score, x.counted) for name, x in patterns.items()}
        measured = measure_heads(site, frozenset(), thresholds, None, layers, scores)
        rows += [with_type(row, thresholds) for row in measured]
    return HeadTable(rows, SCORE_COLUMNS)


def self_attentions(sight: Sight) -> list:
    """The self-attentions of a sight, calls joined; an error if one could not be recorded."""
    sites = [site for site in sight.join_all() if site.kind == "self"]
    if sight.skipped or not sites:
        reasons = "; ".join(format_skipped(sight.skipped)) or "none"
        raise LookError(f"at: needs self-attentions that can be recorded, got {reasons}")
    return sites


def _means(score: Tensor, counted: Tensor) -> list[float | None]:
    """Mean over the counted queries, per head; None if there are none."""
    total, count = (score * counted).double().sum((0, 2)), counted.sum((0, 2))
    pairs = zip(total.tolist(), count.tolist(), strict=True)
    return [x / n if n else None for x, n in pairs]


def _repeated_tokens(
    model: nn.Module, vocab: int | None, length: int | None, batch: int, seed: int
) -> Tensor:
    """Random tokens repeated once, after the first token that the config names."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):  # of transformers, which may read images too
        config = config.get_text_config()
    known = getattr(config, "vocab_size", getattr(config, "vocab", None))
    vocab = known if vocab is None else vocab
    if vocab is None or getattr(config, "is_encoder_decoder", False):
        kind = type(model).__name__
        raise ShapeError(
            f"inputs: needs the token ids that {kind} is called with, got none; "
            "try score_heads(model, (source, target))"
        )
    positions = getattr(config, "max_position_embeddings", None)
    if getattr(config, "positions", None) == "learned":
        positions = config.max_positions
    if length is None:
        length = min(DEFAULT_LENGTH, (positions - 1) // 2 if positions else DEFAULT_LENGTH)
    if length < 2 or vocab < 2:
        raise ShapeError(f"length, vocab: need 2 or more, got {length} and {vocab}")
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(vocab, (batch, length), generator=generator)
    first = getattr(config, "bos_token_id", None)
    if isinstance(first, int) and 0 <= first < (known or vocab):
        tokens = torch.cat([torch.full_like(half[:, :1], first), half, half], 1)
    else:
        tokens = torch.cat([half, half], 1)
    device = next((p.device for p in model.parameters()), tokens.device)
    return tokens.to(device)
