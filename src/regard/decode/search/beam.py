"""Beam search, and the result that every search returns."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decode.sampling import TokenConstraint, constrain_logits
from regard.decode.stepper import Stepper
from regard.errors import ConfigError

TOPK_GROUP = 128  # values per group of the two-stage top-k
LOGSUMEXP_ROWS = 8  # rows of logits that fit in a CPU cache


class DecodeResult(NamedTuple):
    """Generated tokens, padded with `end`, their lengths and log-probabilities.

    `log_prob` includes the end token where it was reached; `ended` is False where the limit was.

    >>> result = DecodeResult(*map(torch.tensor, ([[4, 5, 1]], [2], [-0.5], [True])))
    >>> result.to_lists()
    [[4, 5]]
    """

    tokens: Int[Tensor, "*batch time"]
    lengths: Int[Tensor, "*batch"]
    log_prob: Float[Tensor, "*batch"]
    ended: Bool[Tensor, "*batch"]

    def to_lists(self) -> list[list[int]]:
        """The tokens of each sequence without padding."""
        rows = self.tokens.flatten(0, -2).tolist()
        return [row[:n] for row, n in zip(rows, self.lengths.flatten().tolist(), strict=True)]

    def scores(self, penalty: float) -> Float[Tensor, "*batch"]:
        """Length-normalized scores: log p(y) / ((5 + |y|) / 6)^penalty, |y| with the end token."""
        counted = (self.lengths + self.ended).to(self.log_prob)
        return self.log_prob / length_penalty(counted, penalty)


def length_penalty(tokens: Float[Tensor, "*batch"], power: float) -> Float[Tensor, "*batch"]:
    """Length penalty of Wu et al. (2016, eq. 14), which divides a log-probability.

    ((5 + tokens) / 6)^power

    >>> length_penalty(torch.tensor([1.0, 7.0, 7.0]), power=1.0)
    tensor([1., 2., 2.])
    """
    return ((5 + tokens) / 6) ** power


def check_max_new_tokens(max_new_tokens: int) -> None:
    """Raise a ConfigError for a limit below 1."""
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens: needs 1 token or more, got {max_new_tokens}")


@torch.no_grad()
def beam(
    stepper: Stepper, state: Any, first: Int[Tensor, " batch"], *, end: int, max_new_tokens: int,
    width: int = 4, length_penalty: float = 0.6, n_best: int = 1,
    constraints: Sequence[TokenConstraint] = (),
) -> DecodeResult:  # fmt: skip
    """Beam search: the `n_best` sequences, best first, with axes (batch, n_best, …).

    score(y) = log p(y) / ((5 + |y|) / 6)^length_penalty,   |y| with the end (Wu et al. 2016)

    A finished sequence keeps its place in the beam and is ranked by its score at the end: a beam of
    1 is greedy search, and one that holds every sequence is exact.

    Args:
        stepper, state, first, end, max_new_tokens, constraints: As in `stream`.
        width: Sequences per beam.
        length_penalty: Exponent of the length normalization; 0 is none.
        n_best: Sequences returned per row, at most `width`.

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
    rows = sequence[:, None] * width  # first row of each beam
    state = stepper.select(state, sequence.repeat_interleave(width))
    last = first.repeat_interleave(width)
    tokens = first.new_empty(batch, width, 0)
    lengths, ended = first.new_zeros(batch, width), first.new_zeros(batch, width).bool()
    log_prob: Tensor | None = None
    for _ in range(max_new_tokens):
        logits, state = stepper.step(last, state)
        if log_prob is None:  # all rows of a beam are still equal: only the first continues
            log_prob = logits.new_full((batch, width), -torch.inf)
            log_prob[:, 0] = 0
        total = chunked_logsumexp(logits)[:, None]  # also over tokens that constraints exclude
        if constraints:
            reached = (~ended & log_prob.isfinite()).flatten()
            logits = constrain_logits(logits, constraints, tokens.flatten(0, 1), reached)
        best, next_tokens = grouped_topk(logits, width)
        log_probs, next_tokens = (
            x.unflatten(0, (batch, width)) for x in (best - total, next_tokens)
        )
        parent, token, log_prob = _grow(log_prob, log_probs, next_tokens, ended, end)
        ended = ended.gather(1, parent)
        lengths = lengths.gather(1, parent) + (~ended & (token != end)).long()
        # an unreached place must not end: an ended one is never replaced
        ended = ended | ((token == end) & log_prob.isfinite())
        tokens = tokens.gather(1, parent[..., None].expand_as(tokens))
        tokens = torch.cat([tokens, token[..., None]], -1)
        if ended.all():
            break
        state, last = stepper.select(state, (rows + parent).flatten()), token.flatten()
    assert log_prob is not None
    return _rank(DecodeResult(tokens, lengths, log_prob, ended), length_penalty, n_best)


def chunked_logsumexp(logits: Float[Tensor, "rows vocab"]) -> Float[Tensor, " rows"]:
    """log Σ exp(logits) per row."""
    if logits.device.type != "cpu" or len(logits) <= LOGSUMEXP_ROWS:
        return logits.logsumexp(-1)
    # a few rows at a time, so that temporaries stay in the cache
    return torch.cat([part.logsumexp(-1) for part in logits.split(LOGSUMEXP_ROWS)])


def grouped_topk(
    x: Float[Tensor, "rows count"], k: int
) -> tuple[Float[Tensor, "rows top"], Int[Tensor, "rows top"]]:
    """Top-k values and indices per row, largest first; faster than `topk` for long rows.

    Rows are split into groups: the top k lie in the k groups with the largest maxima.
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
    log_prob: Tensor, log_probs: Tensor, tokens: Tensor, ended: Tensor, end: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Parents, tokens and log-probabilities of the next beam; finished sequences stay first."""
    width, count = log_probs.shape[1:]
    grown = (log_prob[..., None] + log_probs).masked_fill(ended[..., None], -torch.inf)
    grown[..., 0] = grown[..., 0].masked_fill(ended, torch.inf)
    tokens = tokens.masked_fill(ended[..., None], end)
    chosen, at = grown.flatten(1).topk(width, sorted=True)
    parent, token = at.div(count, rounding_mode="floor"), tokens.flatten(1).gather(1, at)
    stays = log_prob.gather(1, parent)
    return parent, token, torch.where(chosen == torch.inf, stays, chosen)


def _rank(result: DecodeResult, penalty: float, best: int) -> DecodeResult:
    order = result.scores(penalty).topk(best, sorted=True).indices
    tokens = result.tokens.gather(1, order[..., None].expand(-1, -1, result.tokens.shape[-1]))
    rest = (x.gather(1, order) for x in result[1:])
    return DecodeResult(tokens, *rest)
