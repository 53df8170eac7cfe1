"""From logits to answers: caches, greedy and beam search."""

from regard.decode.beam import beam, length_penalty
from regard.decode.greedy import Decoded, greedy
from regard.decode.stepper import Stepper, last_tokens, make_stepper

__all__ = [
    "Decoded",
    "Stepper",
    "beam",
    "greedy",
    "last_tokens",
    "length_penalty",
    "make_stepper",
]
