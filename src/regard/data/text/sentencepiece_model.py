"""SentencePiece .model files, without the `sentencepiece` package: content and normalisation."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

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


class SentencePieceNormalizer:
    """Normalises a text.

    The longest rule that matches applies, left to right. Rules are a double-array trie (Darts) over
    UTF-8, followed by their results.

    >>> model = SentencePieceModel("bpe", (), b"", True, True, True, False, False, "", {})
    >>> SentencePieceNormalizer(model)(" two  days ")
    '▁two▁days'
    """

    def __init__(self, model: SentencePieceModel):
        self.model, self._space = model, SPACE if model.escape_spaces else " "
        self.match_symbol = symbol_matcher(model)
        self._has_symbols = any(kind == USER_DEFINED for _, _, kind in model.pieces)
        size = struct.unpack_from("<I", model.charsmap)[0] if model.charsmap else 0
        self._trie = np.frombuffer(model.charsmap, "<u4", size // 4, 4).tolist() if size else []
        self._results = model.charsmap[4 + size :]
        self._plain_pairs: set[tuple[str, str]] = set()  # neighbours that no rule begins with

    def __call__(self, text: str) -> str:
        text = text.encode(errors="replace").decode()  # lone surrogates
        if not self._is_plain(text):
            return self.align(text)[0]
        model, space = self.model, self._space
        body = re.sub("  +", " ", text).strip(" ") if model.remove_spaces else text
        if not body:
            return ""
        prefix, suffix = (space * model.dummy_prefix, "")[:: -1 if model.space_as_suffix else 1]
        body = prefix + body.replace(" ", space)
        return (body.rstrip(space) if model.remove_spaces else body) + suffix

    def align(self, text: str) -> tuple[str, list[int]]:
        """The result, and where each of its characters, and its end, comes from in the text.

        >>> model = SentencePieceModel("bpe", (), b"", True, True, True, False, False, "", {})
        >>> SentencePieceNormalizer(model).align(" a  b")
        ('▁a▁b', [1, 1, 2, 4, 5])
        """
        model, out, origins = self.model, list[str](), list[int]()
        has_begun, after_space = False, model.remove_spaces
        text = text.encode(errors="replace").decode()
        for start, part in self._parts(text):
            if not has_begun:
                if model.remove_spaces and part == " ":
                    continue
                has_begun = True
                if model.dummy_prefix and not model.space_as_suffix:
                    out.append(self._space)
                    origins.append(start)
            part = part.lstrip(" ") if after_space else part
            out += part.replace(" ", self._space)
            origins += [start] * len(part)
            if part:
                after_space = model.remove_spaces and part[-1] == " "
        while model.remove_spaces and out and out[-1] == self._space:
            out.pop()
            origins.pop()
        if has_begun and model.dummy_prefix and model.space_as_suffix:
            out.append(self._space)
            origins.append(len(text))
        return "".join(out), [*origins, len(text)]

    def _is_plain(self, text: str) -> bool:
        """Whether no rule and no symbol of the user can match in the text."""
        if not self._trie or self._has_symbols:
            return not self._has_symbols
        new = set(zip(text, f"{text[1:]} ", strict=False)) - self._plain_pairs
        self._plain_pairs |= {pair for pair in new if self._walk("".join(pair), 0) == (0, 0, False)}
        return new <= self._plain_pairs

    def _parts(self, text: str) -> Iterator[tuple[int, str]]:
        """Positions and what stands there after the rules; symbols of the user stay as they are."""
        at = 0
        while at < len(text):
            size, part = 1, text[at]
            if symbol := self.match_symbol(text, at):
                size, part = len(symbol), symbol
            elif self._trie and (match := self._walk(text, at))[0]:
                size, value, _ = match
                part = self._results[value : self._results.index(0, value)].decode()
            yield at, part
            at += size

    def _walk(self, text: str, at: int) -> tuple[int, int, bool]:
        """Length and value of the longest rule, and whether a longer text could match another."""
        trie, length, value, has_value = self._trie, 0, 0, 0
        node = _child(0, trie[0])
        for end in range(at, len(text)):
            for byte in text[end].encode():
                node ^= byte
                if node >= len(trie) or trie[node] & 0x800000FF != byte:
                    return length, value, False
                has_value, node = trie[node] >> 8 & 1, _child(node, trie[node])
            if has_value:
                length, value = end + 1 - at, trie[node] & 0x7FFFFFFF
        return length, value, True


def _child(node: int, unit: int) -> int:
    return node ^ (unit >> 10 << ((unit & 512) >> 6))


def symbol_matcher(model: SentencePieceModel):
    """Finds the longest symbol that the user has defined at a position of a text, or ""."""
    symbols = {text for text, _, kind in model.pieces if kind == USER_DEFINED}
    sizes = sorted({len(symbol) for symbol in symbols}, reverse=True)
    return lambda text, at: next((s for n in sizes if (s := text[at : at + n]) in symbols), "")
