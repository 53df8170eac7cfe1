"""Always the likeliest next token."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decode.stepper import Stepper
from regard.errors import ConfigError


class Decoded(NamedTuple):
    """Answers: tokens filled up with `end`, how many are real, and how likely the model finds them.

    `log_prob` counts the end too, where it was reached; one cut at the limit has not ended.

    >>> answer = Decoded(*map(torch.tensor, ([[4, 5, 1]], [2], [-0.5], [True])))
    >>> answer.lists()
    [[4, 5]]
    """

    tokens: Int[Tensor, "*batch time"]
    lengths: Int[Tensor, "*batch"]
    log_prob: Float[Tensor, "*batch"]
    ended: Bool[Tensor, "*batch"]

    def lists(self) -> list[list[int]]:
        """The real tokens of each answer, as a tokenizer takes them."""
        rows = self.tokens.flatten(0, -2).tolist()
        return [row[:n] for row, n in zip(rows, self.lengths.flatten().tolist(), strict=True)]


@torch.no_grad()
def greedy(
    stepper: Stepper, state: Any, first: Int[Tensor, " batch"], *, end: int, limit: int
) -> Decoded:
    """From `first` on, the likeliest token each time, until `end` or `limit` tokens.

    y_t = argmax_y p(y | y_1 … y_{t-1}, what was read)

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval()
    >>> stepper = rg.decode.make_stepper(model)
    >>> state = stepper.start(torch.tensor([[3, 4, 5], [6, 7, 8]]))
    >>> answer = greedy(stepper, state, torch.tensor([1, 1]), end=2, limit=4)
    >>> bool((answer.lengths <= 4).all())
    True
    """
    check_limit(limit)
    ended = torch.zeros_like(first, dtype=torch.bool)
    lengths, log_prob, written = torch.zeros_like(first), None, []
    for _ in range(limit):
        logits, state = stepper.step(first, state)
        chances, first = logits.log_softmax(-1).max(-1)
        log_prob = torch.zeros_like(chances) if log_prob is None else log_prob
        log_prob = log_prob + chances.masked_fill(ended, 0)
        first = first.masked_fill(ended, end)
        ended = ended | (first == end)
        lengths = lengths + (~ended).long()
        written.append(first)
        if ended.all():
            break
    assert log_prob is not None
    return Decoded(torch.stack(written, 1), lengths, log_prob, ended)


def check_limit(limit: int) -> None:
    """Raise a ConfigError for a limit of no tokens."""
    if limit < 1:
        raise ConfigError(f"limit: needs 1 token or more, got {limit}")
