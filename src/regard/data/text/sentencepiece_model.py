"""SentencePiece .model files, without the `sentencepiece` package."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regard.errors import FileError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
SPACE = "\u2581"  # stands for a space in pieces
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
ROLES = {"bos": (46, b"<s>"), "eos": (47, b"</s>"), "pad": (48, b"<pad>")}
FLAGS = {3: "dummy_prefix", 4: "remove_spaces", 5: "escape_spaces"}  # of the normalizer


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a .model file: pieces with their score and type, and how text is normalised.

    >>> SentencePieceModel.parse(b"hello")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: model: needs a SentencePiece model, got other content
    """

    kind: str
    pieces: tuple[tuple[str, float, int], ...]
    charsmap: bytes
    dummy_prefix: bool
    remove_spaces: bool
    escape_spaces: bool
    space_as_suffix: bool
    byte_fallback: bool
    unknown_surface: str  # what an unknown piece decodes to
    roles: dict[str, str]  # texts of the control pieces that are BOS, EOS and PAD

    @staticmethod
    def parse(data: bytes, name: str = "model") -> "SentencePieceModel":
        """Read the bytes of a .model file; raises for rules whose encoding would not be exact."""
        try:
            fields = list(_fields(data))
            pieces = tuple(_piece(value) for number, value in fields if number == 1)
            trainer, normalizer, denormalizer = (
                dict(_fields(b"".join(value for n, value in fields if n == number)))
                for number in (2, 3, 5)
            )
            kind, surface = KINDS[trainer.get(3, 1)], trainer.get(44, b" \xe2\x81\x87 ").decode()
            roles = {role: trainer.get(*field).decode() for role, field in ROLES.items()}
        except (ValueError, IndexError, KeyError, TypeError, AttributeError):
            raise FileError(f"{name}: needs a SentencePiece model, got other content") from None
        types = [piece[2] for piece in pieces]
        problems = {
            f"needs one of unigram, bpe, got {kind}": kind not in ("unigram", "bpe"),
            f"needs one unknown piece, got {types.count(UNKNOWN)}": types.count(UNKNOWN) != 1,
            "needs pieces that are all in use, got unused ones": UNUSED in types,
            "needs user-defined symbols without spaces, as versions of sentencepiece differ on "
            "them, got one with a space": kind == "unigram"
            and any(piece[2] == USER_DEFINED and SPACE in piece[0] for piece in pieces),
            "needs decoding without further rules, got a denormalizer": denormalizer.get(2),
        }
        for problem in (text for text, applies in problems.items() if applies):
            raise FileError(f"{name}: {problem}; try a tokenizer.json of the same model")
        return SentencePieceModel(
            kind, pieces, normalizer.get(2, b""),
            **{name: bool(normalizer.get(number, 1)) for number, name in FLAGS.items()},
            space_as_suffix=bool(trainer.get(24)), byte_fallback=bool(trainer.get(35)),
            unknown_surface=surface, roles=roles,
        )  # fmt: skip


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a protobuf message: integers, floats or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        if key & 7 not in (1, 2, 5) or at + size > len(data):
            raise ValueError("not a protobuf message")
        value, at = data[at : at + size], at + size
        yield key >> 3, struct.unpack("<f", value)[0] if key & 7 == 5 else value


def _piece(data: bytes) -> tuple[str, float, int]:
    values = dict(_fields(data))
    return values[1].decode(), float(values.get(2, 0.0)), int(values.get(3, NORMAL))
