"""Tokenizers: what all have in common, and bytes, characters and words."""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from heapq import heappop, heappush
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from regard.data.text.normalizers import UNSPACED, check_normalizers, normalize_text
from regard.data.text.tokenizer_file import read_tokenizer, write_tokenizer
from regard.errors import ConfigError, FileError, RegardError, library_errors, suggestion

SPECIAL_TOKENS = {"pad": "<pad>", "bos": "<start>", "eos": "<end>", "unk": "<unknown>"}

# encoded once when a tokenizer is loaded: a damaged one fails there, not later on some text
PROBE = "".join(map(chr, range(32, 2048, 9))) + "\u4e09\U0001f600"


class Tokenizer(ABC):
    """Base class of tokenizers: PAD 0, BOS 1, EOS 2, UNK 3, then one token per language.

    Imported vocabularies keep their ids: what they lack of these comes after them. Text never
    encodes to a special token: "<pad>" in a text is five ordinary characters. `normalizers` are the
    steps of `data.normalize_text` that inputs pass (`encode_input`); `vocab` is the vocabulary
    size, special tokens included; `special_tokens` are their names by id.

    >>> tokenizer = ByteTokenizer(languages=("de", "fr"))
    >>> tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.language_id("fr")
    (0, 1, 2, 5)
    """

    pad_id, bos_id, eos_id, unk_id = range(4)  # unless an imported vocabulary has its own
    registry: ClassVar[dict[str, type["Tokenizer"]]] = {}
    normalizers: tuple[str, ...] = ()
    is_bpe = False  # whether it merges pairs, so that it can be used with dropout
    _drop: Callable[[], bool] | None = None

    def __init__(
        self,
        languages: Sequence[str],
        text_vocab: int,
        special_tokens: Mapping[int, str] | None = None,
        roles: Mapping[str, int] | None = None,
    ):
        """Number the tokens.

        Args:
            languages: names of languages, each with a token.
            text_vocab: number of text tokens; of all tokens of an imported vocabulary.
            special_tokens: of an imported vocabulary, by id; None puts ours before the text tokens.
            roles: which of them are "pad", "bos", "eos" and "unk".
        """
        self.languages = tuple(languages)
        if len(set(self.languages)) < len(self.languages):
            raise ConfigError(f"languages: need to differ, got {' '.join(self.languages)}")
        ids, names = dict(roles or {}), [f"<{name}>" for name in self.languages]
        missing = [role for role in SPECIAL_TOKENS if role not in ids]
        names = [*(SPECIAL_TOKENS[role] for role in missing), *names]
        self.first_text_id, first = (len(names), 0) if special_tokens is None else (0, text_vocab)
        self.vocab = text_vocab + len(names)
        numbers = range(first, first + len(names))
        self.special_tokens = {**(special_tokens or {}), **dict(zip(numbers, names, strict=True))}
        ids |= zip(missing, numbers, strict=False)
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = (ids[role] for role in SPECIAL_TOKENS)
        self._language_ids = dict(zip(self.languages, numbers[len(missing) :], strict=True))

    def __init_subclass__(cls) -> None:
        Tokenizer.registry[cls.__name__] = cls

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without BOS and EOS."""

    def encode_input(self, text: str) -> list[int]:
        """Token ids of an input, normalised as the training inputs were."""
        return self.encode(normalize_text(text, self.normalizers))

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """`encode` of each text; byte pairs are encoded several times as fast by it."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; special tokens are skipped."""

    def id_to_token(self, token_id: int) -> str:
        """Display text of one id; the name of a special token."""
        name = self.special_tokens.get(token_id)
        return self._token(token_id - self.first_text_id) if name is None else name

    def language_id(self, name: str) -> int:
        """Id of a target-language token."""
        if name in self._language_ids:
            return self._language_ids[name]
        known = " ".join(self.languages) or "none, as the tokenizer has no languages"
        hint = suggestion(name, self.languages)
        raise ConfigError(f"language: needs one of {known}, got {name!r}{hint}")

    def save(self, folder: str | Path) -> Path:
        """Write a .json file, or tokenizer.json into a folder; returns the path of the file."""
        return write_tokenizer(self._body(), folder)

    def _body(self) -> dict[str, Any]:
        kind, languages = type(self).__name__, list(self.languages)
        body = {"kind": kind, "languages": languages, "state": self._state()}
        if self.normalizers:
            body["normalizers"] = list(check_normalizers(self.normalizers))
        return body

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for tokenizers that encode alike."""
        return blake2b(json.dumps(self._body()).encode(), digest_size=16).hexdigest()

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where each token of `encode(text)` begins and ends in the text.

        >>> ByteTokenizer().offsets("aé")  # the last byte of a character covers it
        [(0, 1), (1, 1), (1, 2)]
        """
        ids = self.encode(text)
        prefixes = (self.decode(ids[:count]) for count in range(len(ids) + 1))
        ends = [
            len(prefix.rstrip("�")) if text[: len(prefix)] != prefix else len(prefix)
            for prefix in prefixes
        ]
        return list(pairwise(ends))

    def with_dropout(self, rate: float, key: str) -> "Tokenizer":
        """This tokenizer with BPE dropout (Provilkov et al. 2020), for training only.

        Each merge is skipped with probability `rate`. The same key gives the same tokens.
        """
        if not self.is_bpe:
            raise ConfigError(
                f"bpe_dropout: needs byte pairs, which merge, got {type(self).__name__}; "
                "try tokenizer_type=bpe"
            )
        if not 0 <= rate < 1:
            raise ConfigError(f"bpe_dropout: needs to be from 0 to below 1, got {rate}")
        tokenizer, random = copy(self), Random(key).random
        tokenizer._drop = lambda: random() < rate
        return tokenizer

    @staticmethod
    def load(path: str | Path, languages: Sequence[str] | None = None) -> "Tokenizer":
        """Load a tokenizer: a saved one, tokenizer.json of Hugging Face, or a SentencePiece .model.

        Args:
            path: the file, or a folder with it, such as that of a run.
            languages: names of languages, instead of those it was saved with.
        """
        body, file = read_tokenizer(path)
        kind, languages = body["kind"], body["languages"] if languages is None else languages
        for module in ("engine_tokenizers", "sentencepiece_tokenizer"):  # which register theirs
            import_module(f"regard.data.text.{module}")
        if not isinstance(kind, str) or kind not in Tokenizer.registry:
            known = ", ".join(sorted(Tokenizer.registry))
            raise FileError(f"{file}: needs a tokenizer of {known}, got {kind!r:.40}")
        try:  # a foreign state can raise anything
            with library_errors(file, f"the state of {kind}"):
                tokenizer = Tokenizer.registry[kind]._from(body["state"], languages)
                tokenizer.normalizers = check_normalizers(body.get("normalizers", []))
                tokenizer.encode(PROBE)
            return tokenizer
        except RegardError as error:
            text = str(error).removeprefix("model: ").removeprefix(f"{file}: ")
            raise FileError(f"{file}: {text}") from error

    @abstractmethod
    def _token(self, index: int) -> str:
        """Display text of a text token, counted from the first."""

    @abstractmethod
    def _state(self) -> Any: ...

    @classmethod
    def _from(cls, state: Any, languages: Any) -> "Tokenizer":
        return cls(state, languages)

    def _texts(self, ids: Iterable[int]) -> list[int]:
        """Ids without special tokens, counted from the first text token."""
        ids = [int(token_id) for token_id in ids]
        if unknown := [i for i in ids if not 0 <= i < self.vocab]:
            raise ConfigError(f"ids: need to be from 0 to {self.vocab - 1}, got {unknown[0]}")
        return [i - self.first_text_id for i in ids if i not in self.special_tokens]


class ByteTokenizer(Tokenizer):
    """One token per UTF-8 byte: no training, no unknown tokens, lossless.

    >>> ByteTokenizer().encode("Aé")
    [69, 199, 173]
    """

    def __init__(self, languages: Sequence[str] = ()):
        super().__init__(languages, text_vocab=256)

    def encode(self, text: str) -> list[int]:
        return [self.first_text_id + byte for byte in text.encode(errors="replace")]

    def decode(self, ids: Sequence[int]) -> str:
        # a model may generate part of a character
        return bytes(self._texts(ids)).decode(errors="replace")

    def _token(self, index: int) -> str:
        return chr(index) if 32 <= index < 127 else f"\\x{index:02x}"

    def _state(self) -> None:
        return None

    @classmethod
    def _from(cls, state: Any, languages: Sequence[str]) -> "ByteTokenizer":
        return cls(languages)


class CharTokenizer(Tokenizer):
    """One token per character of the training texts; others are UNK, decoded as �.

    >>> tokenizer = CharTokenizer.train(["abba"])
    >>> tokenizer.encode("bac"), tokenizer.decode(tokenizer.encode("bac"))
    ([5, 4, 3], 'ba�')
    """

    def __init__(self, tokens: Sequence[str], languages: Sequence[str] = ()):
        super().__init__(languages, len(tokens))
        self.tokens = tuple(tokens)
        self._ids = {token: self.first_text_id + i for i, token in enumerate(self.tokens)}
        if "" in self._ids or len(self._ids) < len(self.tokens):
            raise ConfigError(
                "tokens: need to be distinct and not empty, got a repeated or empty one"
            )

    @classmethod
    def train(cls, texts: Iterable[str], *, languages: Sequence[str] = ()) -> "CharTokenizer":
        """A tokenizer of every character of the texts."""
        return cls(sorted({character for text in texts for character in text}), languages)

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(character, self.unk_id) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        self._texts(ids)
        text_ids = (i for i in map(int, ids) if i >= self.first_text_id or i == self.unk_id)
        return "".join(
            "�" if i == self.unk_id else self.tokens[i - self.first_text_id] for i in text_ids
        )

    def _token(self, index: int) -> str:
        return self.tokens[index]

    def _state(self) -> Any:
        return list(self.tokens)


class WordTokenizer(CharTokenizer):
    """One token per word with its leading space; unknown words are split into characters.

    Lossless: the tokens of a text concatenate to the text. At most `max_digits` digits form a
    token, so that unseen numbers can be copied.

    >>> tokenizer = WordTokenizer.train(["two days", "two 2026"])
    >>> [tokenizer.id_to_token(i) for i in tokenizer.encode("two days 62 y")]
    ['two', ' days', ' ', '6', '2', ' ', 'y']
    """

    def __init__(
        self, tokens: Sequence[str], languages: Sequence[str] = (), *, max_digits: int = 1
    ):
        super().__init__(tokens, languages)
        if max_digits < 1:
            raise ConfigError(f"max_digits: needs 1 or more, got {max_digits}")
        self.max_digits, self._split = max_digits, _word_splitter(max_digits)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        languages: Sequence[str] = (),
        vocab_size: int | None = None,
        max_digits: int = 1,
    ) -> "WordTokenizer":
        """A tokenizer of the words of the texts, the most frequent ones up to `vocab_size` ids."""
        split, counts = _word_splitter(max_digits), Counter[str]()
        for text in texts:
            counts.update(split(text))
        letters = sorted({character for word in counts for character in word})
        words = [w for w in sorted(counts, key=lambda word: (-counts[word], word)) if len(w) > 1]
        fixed = len(SPECIAL_TOKENS) + len(languages) + len(letters)
        if vocab_size is not None and vocab_size < fixed:
            raise ConfigError(
                f"vocab_size: needs {fixed} for the characters and special tokens, got {vocab_size}"
            )
        words = words if vocab_size is None else words[: vocab_size - fixed]
        return cls([*letters, *words], languages, max_digits=max_digits)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self._split(text):
            ids += [self._ids[word]] if word in self._ids else super().encode(word)
        return ids

    def _state(self) -> Any:
        return {"tokens": list(self.tokens), "max_digits": self.max_digits}

    @classmethod
    def _from(cls, state: Any, languages: Sequence[str]) -> "WordTokenizer":
        return cls(state["tokens"], languages, max_digits=state["max_digits"])


def _word_splitter(max_digits: int):
    """Splits text into words with their leading space, punctuation, and digits.

    Chinese, Japanese and Korean are split by character; the last branch matches any character.
    """
    word = rf"(?:(?![{UNSPACED}])[^\W\d_])+"
    return re.compile(rf"\s?{word}|\d{{1,{max_digits}}}|\s?[^\w\s]|.", re.DOTALL).findall


def shorten_words(text: str) -> str:
    """A text with words of at most 1000 characters, to train byte pairs on.

    The time of training is quadratic in the length of a word, such as an embedded binary file.

    >>> len(shorten_words("a " + "b" * 10_000))
    1002
    """
    return text if len(text) <= 1000 else re.sub(r"(\S{1000})\S+", r"\1", text)


def iter_texts(examples: Iterable[Any]) -> Iterator[str]:
    """All texts of the examples, to train a tokenizer on.

    >>> from regard.data import Pair
    >>> list(iter_texts([Pair("two", "zwei", "de")]))
    ['two', 'zwei']
    """
    for example in examples:
        fields = {"text": example} if isinstance(example, str) else example._asdict()
        for name, value in fields.items():
            if name != "language" and isinstance(value, str):
                yield value


def merge_pairs(
    symbols: Sequence[str],
    rank: Callable[[tuple[str, str]], float | None],
    drop: Callable[[], bool] | None = None,
) -> list[str]:
    """Merge the adjacent pair of the lowest rank, leftmost first, until no pair has a rank.

    With `drop`, called before every merge, some merges are skipped at each step: BPE dropout
    (Provilkov et al. 2020, algorithm 1).

    >>> ranks = {("l", "o"): 0, ("lo", "w"): 1}
    >>> merge_pairs("slow", ranks.get)
    ['s', 'low']
    >>> merge_pairs("slow", ranks.get, drop=lambda: True)
    ['s', 'l', 'o', 'w']
    """
    parts, size, heap, skipped = list(symbols), len(symbols), [], []
    before, after = list(range(-1, size - 1)), list(range(1, size + 1))
    fresh: Iterable[int] = range(size)  # where a pair may be new
    while True:
        for left in fresh:
            if left >= 0 and after[left] < size:
                texts = parts[left], parts[after[left]]
                if (value := rank(texts)) is not None:
                    heappush(heap, (value, left, texts))
        while heap:
            _, left, texts = best = heappop(heap)
            right = after[left]
            if right == size or (parts[left], parts[right]) != texts:
                continue  # one of the two has been merged
            if drop is None or not drop():
                break
            skipped.append(best)
        else:
            return [part for part in parts if part]
        parts[left], parts[right], after[left] = "".join(texts), "", after[right]
        if after[left] < size:
            before[after[left]] = left
        for pair in skipped:
            heappush(heap, pair)
        skipped.clear()
        fresh = (before[left], left)
