"""Several beginnings side by side, the best of which are gone on with."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decode.constraints import TokenConstraint, allowed_mask, mask_logits
from regard.decode.search.result import DecodeResult, check_max_new_tokens
from regard.decode.stepper import Stepper
from regard.errors import ConfigError

TOPK_GROUP = 128  # numbers of a row that are asked for their largest together
LOGSUMEXP_ROWS = 8  # of logits that a processor's cache has room for


@torch.no_grad()
def beam(
    stepper: Stepper,
    state: Any,
    first: Int[Tensor, " batch"],
    *,
    end: int,
    max_new_tokens: int,
    width: int = 4,
    length_penalty: float = 0.6,
    n_best: int = 1,
    constraints: Sequence[TokenConstraint] = (),
) -> DecodeResult:
    """The `best` of the answers that a search over `width` beginnings finds, the best one first.

    score(y) = log p(y) / ((5 + |y|) / 6)^penalty,   |y| counts the end (Wu et al. 2016, eq. 14)

    An answer that has ended keeps its place in the beam and is compared by its score at last; so a
    beam of 1 is greedy, and one that holds every sequence is exact. The axes are (batch, best, …).
    `rules` narrow the search; probabilities stay the model's own. `scores` of what comes back gives
    the scores, with the same penalty.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval()
    >>> stepper = rg.decode.make_stepper(model)
    >>> state = stepper.start(torch.tensor([[3, 4, 5]]))
    >>> beam(stepper, state, torch.tensor([1]), end=2, max_new_tokens=4, n_best=2).lengths.shape
    torch.Size([1, 2])
    """
    check_max_new_tokens(max_new_tokens)
    if not 1 <= n_best <= width:
        raise ConfigError(f"n_best: needs 1 to width={width}, got {n_best}; try a wider beam")
    batch, device = len(first), first.device
    sequence = torch.arange(batch, device=device)
    rows = sequence[:, None] * width  # where each one's beam starts
    state = stepper.select(state, sequence.repeat_interleave(width))
    last = first.repeat_interleave(width)
    tokens = first.new_empty(batch, width, 0)
    lengths, ended = first.new_zeros(batch, width), first.new_zeros(batch, width).bool()
    log_prob: Tensor | None = None
    for _ in range(max_new_tokens):
        logits, state = stepper.step(last, state)
        if log_prob is None:  # all beginnings are still one: only the first may go on
            log_prob = logits.new_full((batch, width), -torch.inf)
            log_prob[:, 0] = 0
        chances, next_tokens = _likeliest(logits, constraints, tokens, log_prob, ended)
        parent, token, log_prob = _grow(log_prob, chances, next_tokens, ended, end)
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
    return _ranked(DecodeResult(tokens, lengths, log_prob, ended), length_penalty, n_best)


def _likeliest(
    logits: Tensor,
    rules: Sequence[TokenConstraint],
    tokens: Tensor,
    log_prob: Tensor,
    ended: Tensor,
) -> tuple[Tensor, Tensor]:
    """The tokens that each place may go on with, as many as the beam is wide: no more can be kept.

    log p = logit - log Σ exp(logits), over all tokens; what the rules forbid has none.
    """
    total = chunked_logsumexp(logits)[:, None]
    if rules:
        reached = ~ended & log_prob.isfinite()
        may = allowed_mask(rules, tokens.flatten(0, 1), logits.shape[-1], reached.flatten())
        logits = mask_logits(logits, may)
    best, token = grouped_topk(logits, ended.shape[1])
    return (best - total).unflatten(0, ended.shape), token.unflatten(0, ended.shape)


def chunked_logsumexp(logits: Float[Tensor, "rows vocab"]) -> Float[Tensor, " rows"]:
    """log Σ exp(logits) of each row.

    >>> chunked_logsumexp(torch.zeros(1, 4))
    tensor([1.3863])
    """
    if logits.device.type != "cpu" or len(logits) <= LOGSUMEXP_ROWS:
        return logits.logsumexp(-1)
    # a few rows at a time: what is made of them on the way stays in the cache
    return torch.cat([some.logsumexp(-1) for some in logits.split(LOGSUMEXP_ROWS)])


def grouped_topk(
    x: Float[Tensor, "rows count"], k: int
) -> tuple[Float[Tensor, "rows kept"], Int[Tensor, "rows kept"]]:
    """The k largest of each row, largest first, and where they are; of all if there are fewer.

    A long row is cut into groups: the k largest are in the k groups with the largest of their own.

    >>> grouped_topk(torch.tensor([[3.0, 1.0, 2.0]]), 2)
    (tensor([[3., 2.]]), tensor([[0, 2]]))
    """
    count = x.shape[1]
    groups, rest = divmod(count, TOPK_GROUP)
    if k >= groups:
        best, at = x.topk(min(k, count), sorted=True)
        return best, at
    parts = x[:, : groups * TOPK_GROUP].unflatten(1, (groups, TOPK_GROUP))
    chosen = parts.amax(-1).topk(k, sorted=False).indices
    some = parts.gather(1, chosen[..., None].expand(-1, -1, TOPK_GROUP)).flatten(1)
    places = (chosen[..., None] * TOPK_GROUP + torch.arange(TOPK_GROUP, device=x.device)).flatten(1)
    if rest:
        last = torch.arange(count - rest, count, device=x.device).expand(len(x), rest)
        some, places = torch.cat([some, x[:, -rest:]], 1), torch.cat([places, last], 1)
    best, at = some.topk(k, sorted=True)
    return best, places.gather(1, at)


def _grow(
    log_prob: Tensor, chances: Tensor, tokens: Tensor, ended: Tensor, end: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Which beginnings go on with which tokens; those that have ended stay, before all others."""
    width, kept = chances.shape[1:]
    grown = (log_prob[..., None] + chances).masked_fill(ended[..., None], -torch.inf)
    grown[..., 0] = grown[..., 0].masked_fill(ended, torch.inf)
    tokens = tokens.masked_fill(ended[..., None], end)
    chosen, at = grown.flatten(1).topk(width, sorted=True)
    parent, token = at.div(kept, rounding_mode="floor"), tokens.flatten(1).gather(1, at)
    stays = log_prob.gather(1, parent)
    return parent, token, torch.where(chosen == torch.inf, stays, chosen)


def _ranked(found: DecodeResult, penalty: float, best: int) -> DecodeResult:
    order = found.scores(penalty).topk(best, sorted=True).indices
    tokens = found.tokens.gather(1, order[..., None].expand(-1, -1, found.tokens.shape[-1]))
    rest = (x.gather(1, order) for x in found[1:])
    return DecodeResult(tokens, *rest)
