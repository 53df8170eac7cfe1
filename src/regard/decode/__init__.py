"""From logits to answers: caches, greedy and beam search, sampling, rules and streams."""

from regard.data import PeakNormalizer
from regard.decode.beam import beam
from regard.decode.ctc import BestPath, CtcHypothesis, StepperLanguageModel, PathScore, PrefixBeam, prefix_beam
from regard.decode.decoded import DecodeResult, length_penalty
from regard.decode.greedy import greedy
from regard.decode.rules import MinNewTokens, AllowedTokens, AllowedWords, ForcedPrefix, TokenConstraint, SuppressTokens
from regard.decode.sampling import Sampling, sampling_distribution
from regard.decode.sound_stream import AudioStreamState, AudioStream
from regard.decode.stepper import Stepper, last_tokens, make_stepper
from regard.decode.transcriber import Transcriber
from regard.decode.writing import GenerationStep, sample, stream

__all__ = [
    "MinNewTokens",
    "BestPath",
    "DecodeResult",
    "CtcHypothesis",
    "StepperLanguageModel",
    "PeakNormalizer",
    "AllowedTokens",
    "AllowedWords",
    "PathScore",
    "ForcedPrefix",
    "PrefixBeam",
    "TokenConstraint",
    "Sampling",
    "AudioStreamState",
    "AudioStream",
    "GenerationStep",
    "Stepper",
    "Transcriber",
    "SuppressTokens",
    "beam",
    "greedy",
    "last_tokens",
    "length_penalty",
    "sampling_distribution",
    "make_stepper",
    "prefix_beam",
    "sample",
    "stream",
]
