"""From logits to answers: caches, greedy and beam search, sampling, rules and streams."""

from regard.data import Level
from regard.decode.beam import beam
from regard.decode.ctc import BestPath, Heard, LanguageOf, PathScore, PrefixBeam, prefix_beam
from regard.decode.decoded import Decoded, length_penalty
from regard.decode.greedy import greedy
from regard.decode.rules import AtLeast, Only, OnlyWords, Prefix, Rule, Without
from regard.decode.sampling import Sampling, likely
from regard.decode.sound_stream import SoundState, SoundStream
from regard.decode.stepper import Stepper, last_tokens, make_stepper
from regard.decode.transcriber import Transcriber
from regard.decode.writing import Step, sample, stream

__all__ = [
    "AtLeast",
    "BestPath",
    "Decoded",
    "Heard",
    "LanguageOf",
    "Level",
    "Only",
    "OnlyWords",
    "PathScore",
    "Prefix",
    "PrefixBeam",
    "Rule",
    "Sampling",
    "SoundState",
    "SoundStream",
    "Step",
    "Stepper",
    "Transcriber",
    "Without",
    "beam",
    "greedy",
    "last_tokens",
    "length_penalty",
    "likely",
    "make_stepper",
    "prefix_beam",
    "sample",
    "stream",
]
