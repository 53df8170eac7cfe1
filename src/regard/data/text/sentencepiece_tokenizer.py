"""SentencePiece models as tokenizers: the ids are those of the `sentencepiece` package."""

from base64 import b64decode
from collections.abc import Iterator, Sequence

from regard.data.text.sentencepiece_model import (
    BYTE,
    CONTROL,
    SPACE,
    UNKNOWN,
    SentencePieceModel,
)
from regard.data.text.sentencepiece_normalizer import SentencePieceNormalizer
from regard.data.text.sentencepiece_segmenter import make_segmenter
from regard.data.text.tokenizers import Tokenizer


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
