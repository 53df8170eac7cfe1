"""SentencePiece models as tokenizers: the ids are those of the `sentencepiece` package."""

import re
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from regard.data.text.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
    SentencePieceNormalizer,
    symbol_matcher,
)
from regard.data.text.tokenizers import Tokenizer, merge_pairs


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece .model file, unigram or byte pairs (Kudo and Richardson 2018).

    Ids are those of the file, whose bytes `state` holds in base64. What it lacks of PAD, BOS and
    EOS comes after them, as do languages.

    >>> SentencePieceTokenizer("aGVsbG8=")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: model: needs a SentencePiece model, got other content
    """

    def __init__(self, state: str, languages: Sequence[str] = ()):
        self._base64, self._model = state, SentencePieceModel.parse(b64decode(state))
        model = self._model
        special = {
            n: text for n, (text, _, kind) in enumerate(model.pieces) if kind in (CONTROL, UNKNOWN)
        }
        roles = {
            role: n for role, text in model.roles.items() for n in special if special[n] == text
        }
        roles["unk"] = next(n for n, piece in enumerate(model.pieces) if piece[2] == UNKNOWN)
        super().__init__(languages, len(model.pieces), special, roles)
        self._bytes = {
            n: int(text[3:5], 16) for n, (text, _, kind) in enumerate(model.pieces) if kind == BYTE
        }
        self._byte_ids = {byte: n for n, byte in self._bytes.items()}
        self._ids = {
            text: n for n, (text, _, kind) in enumerate(model.pieces)
            if n not in special and kind != BYTE
        }  # fmt: skip
        self._normalize, self._segment = SentencePieceNormalizer(model), make_segmenter(model)
        self.is_bpe = model.kind == "bpe"

    def encode(self, text: str) -> list[int]:
        return [number for number, _ in self._pieces(self._normalize(text))]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        normalized, origins = self._normalize.align(text)
        spans, at = [], 0
        for _, length in self._pieces(normalized):
            spans.append((origins[at], origins[at + length]))
            at += length
        return spans

    def _pieces(self, normalized: str) -> Iterator[tuple[int, int]]:
        """Ids with the number of characters each covers: the last byte of a character covers it."""
        unknown = 0  # characters of unknown pieces: neighbours become one token
        for piece in self._segment(normalized, self._drop):
            number = self._ids.get(piece)
            if number is None and not self._model.byte_fallback:
                unknown += len(piece)
                continue
            if unknown:
                yield self.unk_id, unknown
                unknown = 0
            if number is not None:
                yield number, len(piece)
            else:
                *first, last = (self._byte_ids[byte] for byte in piece.encode())
                yield from ((byte_id, 0) for byte_id in first)
                yield last, len(piece)
        if unknown:
            yield self.unk_id, unknown

    def decode(self, ids: Sequence[int]) -> str:
        self._texts(ids)  # raises for ids out of range
        model, texts, pending = self._model, list[str](), bytearray()
        at_start = model.dummy_prefix or model.remove_spaces
        for number in map(int, ids):
            if number in self._bytes:
                pending.append(self._bytes[number])
                at_start = False
            elif number == self.unk_id or number not in self.special_tokens:
                texts.append(pending.decode(errors="replace"))
                pending.clear()
                is_unknown = number == self.unk_id
                text = model.unknown_surface if is_unknown else self._token(number)
                if at_start and not is_unknown:
                    text = text.removeprefix(" ")
                at_start = at_start and model.remove_spaces and not text
                texts.append(text)
        return "".join([*texts, pending.decode(errors="replace")])

    def _token(self, index: int) -> str:
        return self._model.pieces[index][0].replace(SPACE, " ")

    def _state(self) -> str:
        return self._base64


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
