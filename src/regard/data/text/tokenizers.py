"""Text to numbers and back: characters, bytes, words, byte pairs; one file beside the model."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from regard.data.text.normalizers import check_normalizers, normalize_text
from regard.data.text.tokenizer_file import read_tokenizer, write_tokenizer
from regard.errors import ConfigError, FileError, suggestion

SPECIAL_TOKENS = ("<pad>", "<start>", "<end>", "<unknown>")


class Tokenizer(ABC):
    """What all tokenizers share: pad 0, start 1, end 2, unknown 3, then a token a language.

    Text never becomes one of these: "<pad>" in a text is five characters like any others.
    `normalize` names the steps of `data.normalize_text` that every text passes before it is read.

    >>> tokenizer = ByteTokenizer(languages=("de", "fr"))
    >>> tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.language_id("fr")
    (0, 1, 2, 5)
    """

    pad_id, bos_id, eos_id, unk_id = range(4)
    registry: ClassVar[dict[str, type["Tokenizer"]]] = {}
    normalizers: tuple[str, ...] = ()

    def __init__(self, languages: Sequence[str] = ()):
        self.languages = tuple(languages)
        if len(set(self.languages)) < len(self.languages):
            raise ConfigError(f"languages: need to differ, got {' '.join(self.languages)}")
        self.first_text_id = len(SPECIAL_TOKENS) + len(
            self.languages
        )  # the id of the first piece of text

    def __init_subclass__(cls) -> None:
        Tokenizer.registry[cls.__name__] = cls

    @property
    @abstractmethod
    def vocab(self) -> int:
        """How many ids there are, those of the special tokens included."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end."""

    def encode_input(self, text: str) -> list[int]:
        """The ids of an input, normalised as the training texts were.

        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.normalizers = ("lower",)
        >>> tokenizer.encode_input("A") == tokenizer.encode("a")
        True
        """
        return self.encode(normalize_text(text, self.normalizers))

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens are left out."""

    @abstractmethod
    def id_to_token(self, token_id: int) -> str:
        """What one id shows, for a figure or a table; a special one shows its name."""

    def language_id(self, name: str) -> int:
        """The id that asks the decoder for a language."""
        if name in self.languages:
            return len(SPECIAL_TOKENS) + self.languages.index(name)
        known = " ".join(self.languages) or "none: it was made without languages"
        hint = suggestion(name, self.languages)
        raise ConfigError(f"language: needs one of {known}, got {name!r}{hint}")

    def save(self, folder: str | Path) -> Path:
        """Write it as one JSON file into a folder; the file's path comes back."""
        kind, steps = type(self).__name__, check_normalizers(self.normalizers)
        return write_tokenizer(kind, self.languages, self._state(), folder, normalizers=steps)

    @staticmethod
    def load(path: str | Path) -> "Tokenizer":
        """Read what `save` wrote, as the class it was."""
        kind, languages, state, steps, file = read_tokenizer(path)
        if not isinstance(kind, str) or kind not in Tokenizer.registry:
            known = ", ".join(sorted(Tokenizer.registry))
            raise FileError(f"{file}: needs a tokenizer of {known}, got {kind!r:.40}")
        try:
            tokenizer = Tokenizer.registry[kind]._from(state, languages)
            tokenizer.normalizers = check_normalizers(steps)
            return tokenizer
        except Exception as error:  # whatever a foreign state does to a constructor
            raise FileError(f"{file}: needs the state of {kind}, got {error}") from error

    @abstractmethod
    def _state(self) -> Any: ...

    @classmethod
    @abstractmethod
    def _from(cls, state: Any, languages: Sequence[str]) -> "Tokenizer": ...

    def _texts(self, ids: Iterable[int]) -> list[int]:
        """The ids of text, counted from 0."""
        inside = [int(number) for number in ids]
        if wrong := [number for number in inside if not 0 <= number < self.vocab]:
            raise ConfigError(f"ids: need to be from 0 to {self.vocab - 1}, got {wrong[0]}")
        return [number - self.first_text_id for number in inside if number >= self.first_text_id]

    def _special(self, number: int) -> str:
        return (*SPECIAL_TOKENS, *(f"<{language}>" for language in self.languages))[number]


class ByteTokenizer(Tokenizer):
    """UTF-8, one id a byte: nothing to train, nothing unknown, any text comes back.

    >>> ByteTokenizer().encode("Aé")
    [69, 199, 173]
    """

    @property
    def vocab(self) -> int:
        return self.first_text_id + 256

    def encode(self, text: str) -> list[int]:
        return [self.first_text_id + byte for byte in text.encode(errors="replace")]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(self._texts(ids)).decode(errors="replace")  # a model may write half a letter

    def id_to_token(self, token_id: int) -> str:
        if token_id < self.first_text_id:
            return self._special(token_id)
        byte = token_id - self.first_text_id
        return chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"

    def _state(self) -> None:
        return None

    @classmethod
    def _from(cls, state: Any, languages: Sequence[str]) -> "ByteTokenizer":
        return cls(languages)


class CharTokenizer(Tokenizer):
    """One id a character of the texts it was trained on; others are unknown, and shown as �.

    >>> tokenizer = CharTokenizer.train(["abba"])
    >>> tokenizer.encode("bac"), tokenizer.decode(tokenizer.encode("bac"))
    ([5, 4, 3], 'ba�')
    """

    def __init__(self, tokens: Sequence[str], languages: Sequence[str] = ()):
        super().__init__(languages)
        self.tokens = tuple(tokens)
        self._ids = {piece: self.first_text_id + i for i, piece in enumerate(self.tokens)}
        if "" in self._ids or len(self._ids) < len(self.tokens):
            raise ConfigError("pieces: need to differ and to hold text, got some twice or empty")

    @classmethod
    def train(cls, texts: Iterable[str], *, languages: Sequence[str] = ()) -> "CharTokenizer":
        """A tokenizer that knows every character of some texts."""
        return cls(sorted({character for text in texts for character in text}), languages)

    @property
    def vocab(self) -> int:
        return self.first_text_id + len(self.tokens)

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(character, self.unk_id) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        self._texts(ids)
        shown = (number for number in map(int, ids) if number >= self.first_text_id or number == 3)
        return "".join("�" if n == 3 else self.tokens[n - self.first_text_id] for n in shown)

    def id_to_token(self, token_id: int) -> str:
        return (
            self._special(token_id)
            if token_id < self.first_text_id
            else self.tokens[token_id - self.first_text_id]
        )

    def _state(self) -> Any:
        return list(self.tokens)

    @classmethod
    def _from(cls, state: Any, languages: Sequence[str]) -> "CharTokenizer":
        return cls(state, languages)


class WordTokenizer(CharTokenizer):
    """One id a word, with the space before it; a word it does not know is spelled out.

    Cutting loses nothing: the pieces of a text, put together, are the text. Digits stand alone
    (`digits` of them together at most), so that a number never seen can still be copied.

    >>> tokenizer = WordTokenizer.train(["two days", "two 2026"])
    >>> [tokenizer.id_to_token(i) for i in tokenizer.encode("two days 62 y")]
    ['two', ' days', ' ', '6', '2', ' ', 'y']
    """

    def __init__(
        self, tokens: Sequence[str], languages: Sequence[str] = (), *, max_digits: int = 1
    ):
        super().__init__(tokens, languages)
        if max_digits < 1:
            raise ConfigError(f"digits: needs 1 or more, got {max_digits}")
        self.max_digits, self._cut = max_digits, _cutter(max_digits)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        languages: Sequence[str] = (),
        vocab_size: int | None = None,
        max_digits: int = 1,
    ) -> "WordTokenizer":
        """A tokenizer of the words of some texts, the most frequent ones if `size` is short."""
        cut, seen = _cutter(max_digits), Counter[str]()
        for text in texts:
            seen.update(cut(text))
        letters = sorted({character for word in seen for character in word})
        words = [w for w, _ in sorted(seen.items(), key=lambda item: (-item[1], item[0]))]
        words = [word for word in words if len(word) > 1]
        room = (
            len(words)
            if vocab_size is None
            else vocab_size - len(SPECIAL_TOKENS) - len(languages) - len(letters)
        )
        if room < 0:
            raise ConfigError(
                f"size: needs room for {vocab_size and vocab_size - room} characters and specials, got {vocab_size}"
            )
        return cls([*letters, *words[:room]], languages, max_digits=max_digits)

    def encode(self, text: str) -> list[int]:
        ids = self._ids
        found = []
        for word in self._cut(text):
            if word in ids:
                found.append(ids[word])
            else:
                found += [ids.get(character, self.unk_id) for character in word]
        return found

    def _state(self) -> Any:
        return {"pieces": list(self.tokens), "max_digits": self.max_digits}

    @classmethod
    def _from(cls, state: Any, languages: Sequence[str]) -> "WordTokenizer":
        return cls(state["pieces"], languages, max_digits=state["max_digits"])


class BPETokenizer(Tokenizer):
    """Byte pairs, merged by how often they meet: any text comes back, frequent words are short.

    >>> tokenizer = BPETokenizer.train(["low lower lowest"] * 9, vocab_size=270)
    >>> [tokenizer.id_to_token(i) for i in tokenizer.encode("low slow")]
    ['low', ' ', 's', 'low']
    """

    def __init__(self, state: str, languages: Sequence[str] = ()):
        from tokenizers import Tokenizer as Engine  # only who asks for byte pairs waits for it

        super().__init__(languages)
        self._engine = Engine.from_str(state)

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, *, languages: Sequence[str] = ()
    ) -> "BPETokenizer":
        """Byte pairs of some texts, up to `size` ids in all."""
        from tokenizers import Tokenizer as Engine
        from tokenizers import decoders, models, pre_tokenizers, trainers

        room = vocab_size - len(SPECIAL_TOKENS) - len(languages)
        if room < 256:
            raise ConfigError(
                f"size: needs {vocab_size - room + 256} for the bytes alone, got {vocab_size}"
            )
        engine = Engine(models.BPE())
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        engine.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=room, initial_alphabet=alphabet, show_progress=False
        )
        engine.train_from_iterator(texts, trainer)
        return cls(engine.to_str(), languages)

    @property
    def vocab(self) -> int:
        return self.first_text_id + self._engine.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return [self.first_text_id + number for number in self._engine.encode(text).ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self._engine.decode(self._texts(ids), skip_special_tokens=False)

    def id_to_token(self, token_id: int) -> str:
        if token_id < self.first_text_id:
            return self._special(token_id)
        return self._engine.decode([token_id - self.first_text_id])

    def _state(self) -> Any:
        return self._engine.to_str()

    @classmethod
    def _from(cls, state: Any, languages: Sequence[str]) -> "BPETokenizer":
        return cls(state, languages)


def _cutter(digits: int):
    """Words with the space before them, signs, digits; Chinese, Japanese, Korean by the character.

    Every character is in one piece: the last branch takes whatever the others left.
    """
    alone = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
    word = rf"(?:(?![{alone}])[^\W\d_])+"
    return re.compile(rf"\s?{word}|\d{{1,{digits}}}|\s?[^\w\s]|.", re.DOTALL).findall


def iter_texts(examples: Iterable[Any]) -> Iterator[str]:
    """Every text of some examples, to train a tokenizer on.

    >>> from regard.data import Pair
    >>> list(iter_texts([Pair("two", "zwei", "de")]))
    ['two', 'zwei']
    """
    for example in examples:
        if isinstance(example, str):
            yield example
            continue
        named = example._asdict()
        yield from (text for name, text in named.items() if name != "language" and _is_text(text))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
