"""Results of a search: tokens, lengths and log-probabilities."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ConfigError


class DecodeResult(NamedTuple):
    """Generated tokens, padded with `end`, their lengths and log-probabilities.

    `log_prob` includes the end token where it was reached; `ended` is False where the limit was.

    >>> answer = DecodeResult(*map(torch.tensor, ([[4, 5, 1]], [2], [-0.5], [True])))
    >>> answer.to_lists()
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
