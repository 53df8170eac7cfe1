"""The segmentation of SentencePiece: the most probable pieces, or merged pairs."""

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import NamedTuple

from regard.data.text.pair_merges import merge_pairs
from regard.data.text.sentencepiece_model import NORMAL, SPACE, USER_DEFINED, SentencePieceModel
from regard.data.text.sentencepiece_normalizer import symbol_matcher

UNKNOWN_PENALTY = 10.0  # an unknown character scores this much below the worst piece
FLOAT32, FLOAT32_EPSILON = struct.Struct("f"), 2.0**-23
CACHED_WORDS = 1 << 16
USER_SCORE = 0.5  # of symbols of the user, above all pieces; versions of sentencepiece differ

Drop = Callable[[], bool] | None
Segmenter = Callable[[str, Drop], list[str]]


def make_segmenter(model: SentencePieceModel) -> Segmenter:
    """Splits a normalised text into pieces; `drop` skips merges, as in `merge_pairs`.

    Words are segmented one by one, frequent ones once, where no piece reaches across words.
    """
    return _unigram(model) if model.kind == "unigram" else _bpe(model)


def _word_splitter(model: SentencePieceModel) -> Callable[[str], list[str]]:
    texts = [text for text, _, kind in model.pieces if kind in (NORMAL, USER_DEFINED)]
    for word in (f"{SPACE}*[^{SPACE}]+|{SPACE}+", f"[^{SPACE}]+{SPACE}*|{SPACE}+"):
        if all(re.fullmatch(word, text) for text in texts):
            return re.compile(word).findall
    return lambda text: [text] if text else []


def _bpe(model: SentencePieceModel) -> Segmenter:
    split, match = _word_splitter(model), symbol_matcher(model)
    scores = {text: -score for text, score, kind in model.pieces if kind == NORMAL}
    frozen = {text for text, _, kind in model.pieces if kind == USER_DEFINED}

    def rank(pair: tuple[str, str]) -> float | None:
        return scores.get("".join(pair)) if frozen.isdisjoint(pair) else None

    def merge(word: str, drop: Drop = None) -> list[str]:
        symbols, at = [], 0
        while at < len(word):
            symbols.append(match(word, at) or word[at])
            at += len(symbols[-1])
        return merge_pairs(symbols, rank, drop)

    cached = lru_cache(CACHED_WORDS)(merge)

    def segment(text: str, drop: Drop = None) -> list[str]:
        words = (cached(word) if drop is None else merge(word, drop) for word in split(text))
        return [piece for word in words for piece in word]

    return segment


class _Path(NamedTuple):
    pieces: list[str]
    score: float
    margin: float  # smallest difference between two scores that were compared


def _unigram(model: SentencePieceModel) -> Segmenter:
    scores = {text: score for text, score, kind in model.pieces if kind == NORMAL}
    unknown = _round_float32(min(scores.values()) - UNKNOWN_PENALTY)
    scores |= {text: USER_SCORE for text, _, kind in model.pieces if kind == USER_DEFINED}
    longest: dict[str, int] = {}
    for text in scores:
        longest[text[0]] = max(longest.get(text[0], 1), len(text))

    def viterbi(text: str, round_score: Callable[[float], float] = float) -> _Path:
        best, starts, margin = [0.0, *[-inf] * len(text)], [0] * (len(text) + 1), inf
        for at, character in enumerate(text):
            for end in range(at + 1, min(at + longest.get(character, 1), len(text)) + 1):
                score = scores.get(text[at:end])
                if score is None:
                    if end > at + 1:
                        continue
                    score = unknown
                score = round_score(best[at] + score)
                margin = min(margin, abs(score - best[end]))
                if score > best[end]:
                    best[end], starts[end] = score, at
        pieces, end = [], len(text)
        while end:
            pieces.append(text[starts[end] : end])
            end = starts[end]
        return _Path(pieces[::-1], best[-1], margin)

    split, cached = _word_splitter(model), lru_cache(CACHED_WORDS)(viterbi)

    def segment(text: str, drop: Drop = None) -> list[str]:
        words = split(text)
        paths = [cached(word) for word in words]
        # sentencepiece adds the scores of the whole text in float32: rounding decides near ties
        error = abs(sum(path.score for path in paths)) * FLOAT32_EPSILON
        if any(p.margin < (len(w) + 2) * error for w, p in zip(words, paths, strict=True)):
            return viterbi(text, _round_float32).pieces
        return [piece for path in paths for piece in path.pieces]

    return segment


def _round_float32(value: float) -> float:
    return FLOAT32.unpack(FLOAT32.pack(value))[0]
