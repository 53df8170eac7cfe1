"""From logits to answers: caches, greedy and beam search, sampling, rules and streams."""

from regard.decode.beam import beam
from regard.decode.decoded import Decoded, length_penalty
from regard.decode.greedy import greedy
from regard.decode.rules import AtLeast, Only, OnlyWords, Prefix, Rule, Without
from regard.decode.sampling import Sampling, likely
from regard.decode.stepper import Stepper, last_tokens, make_stepper
from regard.decode.writing import Step, sample, stream

__all__ = [
    "AtLeast",
    "Decoded",
    "Only",
    "OnlyWords",
    "Prefix",
    "Rule",
    "Sampling",
    "Step",
    "Stepper",
    "Without",
    "beam",
    "greedy",
    "last_tokens",
    "length_penalty",
    "likely",
    "make_stepper",
    "sample",
    "stream",
]
