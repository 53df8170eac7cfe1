"""The normalisation of SentencePiece: rules of the model, then its treatment of spaces."""

import struct
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from regard.data.text.sentencepiece_model import SPACE, USER_DEFINED, SentencePieceModel


class SentencePieceNormalizer:
    """Normalises a text; also returns the position of each result character, and of the end.

    The longest rule that matches applies, left to right. Rules are a double-array trie (Darts) over
    UTF-8, followed by their results.

    >>> model = SentencePieceModel("bpe", (), b"", True, True, True, False, False, "", {})
    >>> SentencePieceNormalizer(model)(" two  days ")
    ('▁two▁days', [1, 1, 2, 3, 4, 6, 7, 8, 9, 11])
    """

    def __init__(self, model: SentencePieceModel):
        self.model = model
        self.match_symbol = symbol_matcher(model)
        size = struct.unpack_from("<I", model.charsmap)[0] if model.charsmap else 0
        self._trie = np.frombuffer(model.charsmap, "<u4", size // 4, 4).tolist() if size else []
        self._results = model.charsmap[4 + size :]
        self._starts_rule = lru_cache(None)(lambda character: bool(self._walk(character, 0)[1]))

    def __call__(self, text: str) -> tuple[str, list[int]]:
        model, out, origins = self.model, list[str](), list[int]()
        space = SPACE if model.escape_spaces else " "
        has_begun, after_space = False, model.remove_spaces
        text = text.encode(errors="replace").decode()  # lone surrogates
        for start, part in self._parts(text):
            if not has_begun:
                if model.remove_spaces and part == " ":
                    continue
                has_begun = True
                if model.dummy_prefix and not model.space_as_suffix:
                    out.append(space)
                    origins.append(start)
            part = part.lstrip(" ") if after_space else part
            out += part.replace(" ", space)
            origins += [start] * len(part)
            if part:
                after_space = model.remove_spaces and part[-1] == " "
        while model.remove_spaces and out and out[-1] == space:
            out.pop()
            origins.pop()
        if has_begun and model.dummy_prefix and model.space_as_suffix:
            out.append(space)
            origins.append(len(text))
        return "".join(out), [*origins, len(text)]

    def _parts(self, text: str) -> Iterator[tuple[int, str]]:
        """Positions and what stands there after the rules; symbols of the user stay as they are."""
        at = 0
        while at < len(text):
            size, part = 1, text[at]
            if symbol := self.match_symbol(text, at):
                size, part = len(symbol), symbol
            elif self._trie and self._starts_rule(part):
                (length, value), _ = self._walk(text, at)
                if length:
                    size = length
                    part = self._results[value : self._results.index(0, value)].decode()
            yield at, part
            at += size

    def _walk(self, text: str, at: int) -> tuple[tuple[int, int], bool]:
        """Length and value of the longest rule, and whether the walk got past the text."""
        trie, longest = self._trie, (0, 0)
        node = _child(0, trie[0])
        for end in range(at, len(text)):
            for byte in text[end].encode():
                node ^= byte
                if node >= len(trie) or trie[node] & 0x800000FF != byte:
                    return longest, False
                has_value, node = trie[node] >> 8 & 1, _child(node, trie[node])
            if has_value:
                longest = end + 1 - at, trie[node] & 0x7FFFFFFF
        return longest, True


def _child(node: int, unit: int) -> int:
    return node ^ (unit >> 10 << ((unit & 512) >> 6))


def symbol_matcher(model: SentencePieceModel):
    """Finds the longest symbol that the user has defined at a position of a text, or ""."""
    symbols = {text for text, _, kind in model.pieces if kind == USER_DEFINED}
    sizes = sorted({len(symbol) for symbol in symbols}, reverse=True)
    return lambda text, at: next((s for n in sizes if (s := text[at : at + n]) in symbols), "")
