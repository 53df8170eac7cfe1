"""Decoding: steppers, key/value cache, greedy and beam search, sampling, CTC, streaming."""

from regard.decode.cache import KVCache
from regard.decode.sampling import (
    AllowedTokens,
    AllowedWords,
    ForcedPrefix,
    MinNewTokens,
    Sampling,
    SuppressTokens,
    TokenConstraint,
    sampling_distribution,
)
from regard.decode.search.beam import DecodeResult, beam, length_penalty
from regard.decode.search.ctc import (
    BestPath,
    CtcHypothesis,
    PathScore,
    PrefixBeam,
    StepperLanguageModel,
    prefix_beam,
)
from regard.decode.search.generation import (
    ContinuousBatch,
    GeneratedRow,
    GenerationStep,
    TokenScore,
    greedy,
    sample,
    stream,
)
from regard.decode.stepper import Stepper, last_tokens, make_stepper
from regard.decode.streaming import AudioStream, AudioStreamState, Transcriber

__all__ = [
    "AllowedTokens", "AllowedWords", "AudioStream", "AudioStreamState", "BestPath",
    "ContinuousBatch", "CtcHypothesis", "DecodeResult", "ForcedPrefix", "GeneratedRow",
    "GenerationStep", "KVCache", "MinNewTokens", "PathScore", "PrefixBeam", "Sampling",
    "Stepper", "StepperLanguageModel", "SuppressTokens", "TokenConstraint", "TokenScore",
    "Transcriber", "beam", "greedy", "last_tokens", "length_penalty", "make_stepper",
    "prefix_beam", "sample", "sampling_distribution", "stream",
]  # fmt: skip
