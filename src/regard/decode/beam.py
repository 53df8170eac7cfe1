"""Several beginnings side by side, the best of which are gone on with."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.decoded import Decoded, check_limit
from regard.decode.rules import Rule, allowed
from regard.decode.stepper import Stepper
from regard.errors import ConfigError


@torch.no_grad()
def beam(
    stepper: Stepper,
    state: Any,
    first: Int[Tensor, " batch"],
    *,
    end: int,
    limit: int,
    width: int = 4,
    penalty: float = 0.6,
    best: int = 1,
    rules: Sequence[Rule] = (),
) -> Decoded:
    """The `best` of the answers that a search over `width` beginnings finds, the best one first.

    score(y) = log p(y) / ((5 + |y|) / 6)^penalty,   |y| counts the end (Wu et al. 2016, eq. 14)

    An answer that has ended keeps its place in the beam and is compared by its score at last; so a
    beam of 1 is greedy, and one that holds every sequence is exact. The axes are (batch, best, …).
    `rules` narrow the search; probabilities stay the model's own. `scores` of what comes back gives
    the scores, with the same penalty.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval()
    >>> stepper = rg.decode.make_stepper(model)
    >>> state = stepper.start(torch.tensor([[3, 4, 5]]))
    >>> beam(stepper, state, torch.tensor([1]), end=2, limit=4, best=2).lengths.shape
    torch.Size([1, 2])
    """
    check_limit(limit)
    if not 1 <= best <= width:
        raise ConfigError(f"best: needs 1 to width={width}, got {best}; try a wider beam")
    batch, device = len(first), first.device
    sequence = torch.arange(batch, device=device)
    rows = sequence[:, None] * width  # where each one's beam starts
    state = stepper.select(state, sequence.repeat_interleave(width))
    last = first.repeat_interleave(width)
    tokens = first.new_empty(batch, width, 0)
    lengths, ended = first.new_zeros(batch, width), first.new_zeros(batch, width).bool()
    log_prob: Tensor | None = None
    for _ in range(limit):
        logits, state = stepper.step(last, state)
        chances = _ruled(logits.log_softmax(-1), rules, tokens, log_prob, ended)
        if log_prob is None:  # all beginnings are still one: only the first may go on
            log_prob = chances.new_full((batch, width), -torch.inf)
            log_prob[:, 0] = 0
        parent, token, log_prob = _grow(log_prob, chances, ended, end)
        ended = ended.gather(1, parent)
        lengths = lengths.gather(1, parent) + (~ended & (token != end)).long()
        # a place that no sequence has reached yet does not end, or it would never be given up
        ended = ended | ((token == end) & log_prob.isfinite())
        tokens = tokens.gather(1, parent[..., None].expand_as(tokens))
        tokens = torch.cat([tokens, token[..., None]], -1)
        if ended.all():
            break
        state, last = stepper.select(state, (rows + parent).flatten()), token.flatten()
    assert log_prob is not None
    return _ranked(Decoded(tokens, lengths, log_prob, ended), penalty, best)


def _ruled(
    chances: Tensor,
    rules: Sequence[Rule],
    tokens: Tensor,
    log_prob: Tensor | None,
    ended: Tensor,
) -> Tensor:
    """Log-probabilities by place of the beam; what the rules forbid has none."""
    if rules:
        reached = ~ended if log_prob is None else ~ended & log_prob.isfinite()
        may = allowed(rules, tokens.flatten(0, 1), chances.shape[-1], reached.flatten())
        chances = chances if may is None else chances.masked_fill(~may, -torch.inf)
    return chances.unflatten(0, ended.shape)


def _grow(
    log_prob: Tensor, chances: Tensor, ended: Tensor, end: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Which beginnings go on with which tokens; those that have ended stay, before all others."""
    width, vocab = chances.shape[1:]
    grown = (log_prob[..., None] + chances).masked_fill(ended[..., None], -torch.inf)
    grown[..., end] = grown[..., end].masked_fill(ended, torch.inf)
    chosen, at = grown.flatten(1).topk(width, sorted=True)
    parent, token = at.div(vocab, rounding_mode="floor"), at % vocab
    kept = log_prob.gather(1, parent)
    return parent, token, torch.where(chosen == torch.inf, kept, chosen)


def _ranked(found: Decoded, penalty: float, best: int) -> Decoded:
    order = found.scores(penalty).topk(best, sorted=True).indices
    tokens = found.tokens.gather(1, order[..., None].expand(-1, -1, found.tokens.shape[-1]))
    rest = (x.gather(1, order) for x in found[1:])
    return Decoded(tokens, *rest)
