"""Tokenizers on the `tokenizers` library: byte pairs, unigram, and files of Hugging Face."""

import json
import re
from collections.abc import Iterable, Sequence, Set
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, get_args

from regard.data.text.tokenizers import (
    SPECIAL_TOKENS,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
    merge_pairs,
    shorten_words,
)
from regard.errors import ConfigError, FileError, check_choice, library_errors

# Words with the white space before them, or white space at the end. To Unicode, and so to the
# pre-tokenizer, the separators U+001C to U+001F are no white space.
_spaced_words = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|\s+").findall
MAX_WORDS = 200_000  # whose ids `BPETokenizer.encode_batch` keeps
SCORE_DIGITS = 6  # of unigram scores: the library adds them in random order
MAX_PENALTY = 0.03  # that the trainer adds to the scores of bytes that no text has, in random order


class EngineTokenizer(Tokenizer):
    """A tokenizer on one of the `tokenizers` library, given as its JSON."""

    _merges: tuple[dict[tuple[str, ...], int], dict[str, int]] | None = None  # and the vocabulary
    _fixed: Set[int] = frozenset()  # ids that are not merged from characters

    def __init__(self, state: str, languages: Sequence[str] = ()):
        from tokenizers import Tokenizer as Engine  # imported on first use: slow to load

        self._engine = Engine.from_str(state)
        self._number(languages)

    def _number(self, languages: Sequence[str]) -> None:
        super().__init__(languages, self._engine.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        encoding = self._engine.encode(text, add_special_tokens=False)
        ids = encoding.ids if self._drop is None else self._merge_again(encoding)
        return [self.first_text_id + number for number in ids]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return self._engine.encode(text, add_special_tokens=False).offsets

    def decode(self, ids: Sequence[int]) -> str:
        return self._engine.decode(self._texts(ids), skip_special_tokens=False)

    def _token(self, index: int) -> str:
        return self._engine.decode([index])

    def _state(self) -> Any:
        return self._engine.to_str()

    def with_dropout(self, rate: float, key: str) -> Tokenizer:
        if self.is_bpe and self._merges is None:  # before a copy is made: it takes long
            merges = json.loads(self._engine.to_str())["model"]["merges"]
            ranks = {tuple(merge): number for number, merge in enumerate(merges)}
            self._merges = ranks, self._engine.get_vocab()
        return super().with_dropout(rate, key)

    def _merge_again(self, encoding: Any) -> list[int]:
        """Ids with BPE dropout: that of the library has no seed."""
        assert self._merges is not None
        ids, (ranks, vocab) = list[int](), self._merges
        words = zip(encoding.word_ids, encoding.ids, encoding.tokens, strict=True)
        for _, word in groupby(words, key=itemgetter(0)):
            _, numbers, tokens = zip(*word, strict=True)
            if self._fixed.isdisjoint(numbers):
                pieces = merge_pairs("".join(tokens), ranks.get, self._drop)
                numbers = [vocab.get(piece, self.unk_id) for piece in pieces]
            ids += numbers
        return ids


class BPETokenizer(EngineTokenizer):
    """Byte-level byte-pair encoding (Sennrich et al. 2016): lossless, no unknown tokens.

    >>> tokenizer = BPETokenizer.train(["low lower lowest"] * 9, vocab_size=270)
    >>> [tokenizer.id_to_token(i) for i in tokenizer.encode("low slow")]
    ['low', ' ', 's', 'low']
    """

    is_bpe = True

    def __init__(self, state: str, languages: Sequence[str] = ()):
        super().__init__(state, languages)
        self._words: dict[str, list[int]] = {}  # encoded by `encode_batch`

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        if self._drop is not None:
            return super().encode_batch(texts)
        # Merges stay within what the pre-tokenizer splits off, and it always splits before white
        # space that follows a word: each word is encoded once, with the white space before it.
        words, rows = self._words, []
        for text in texts:
            if len(words) > MAX_WORDS:
                words.clear()
            ids: list[int] = []
            for word in _spaced_words(text):
                if (word_ids := words.get(word)) is None:
                    word_ids = words[word] = self.encode(word)
                ids += word_ids
            rows.append(ids)
        return rows

    def clear_cache(self) -> None:
        """Forget the words that `encode_batch` keeps: tens of megabytes."""
        self._words.clear()

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, *, languages: Sequence[str] = ()
    ) -> "BPETokenizer":
        """Learn merges from texts, up to `vocab_size` ids in all."""
        from tokenizers import models, trainers

        engine, settings = _byte_level(models.BPE(), vocab_size, languages)
        engine.train_from_iterator(map(shorten_words, texts), trainers.BpeTrainer(**settings))
        return cls(engine.to_str(), languages)


class UnigramTokenizer(EngineTokenizer):
    """Byte-level unigram model (Kudo 2018), the most probable tokens: lossless, none unknown.

    >>> tokenizer = UnigramTokenizer.train(["low lower lowest"] * 9, vocab_size=270)
    >>> tokenizer.decode(tokenizer.encode("low slow"))
    'low slow'
    """

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, *, languages: Sequence[str] = ()
    ) -> "UnigramTokenizer":
        """Learn tokens and their probabilities from texts, up to `vocab_size` ids in all."""
        from tokenizers import models, trainers

        engine, settings = _byte_level(models.Unigram(), vocab_size, languages)
        engine.train_from_iterator(map(shorten_words, texts), trainers.UnigramTrainer(**settings))
        content = json.loads(engine.to_str())
        # what depends on the order of a hash table is removed, so that training is reproducible
        scores = {token: round(score, SCORE_DIGITS) for token, score in content["model"]["vocab"]}
        worst = min(scores.values())
        for token, score in scores.items():
            scores[token] = worst if len(token) == 1 and score < worst + MAX_PENALTY else score
        content["model"]["vocab"] = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
        return cls(json.dumps(content, ensure_ascii=False), languages)


def _byte_level(model: Any, vocab_size: int, languages: Sequence[str]) -> tuple[Any, dict]:
    """An untrained engine whose units are bytes, and the settings of its trainer."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, pre_tokenizers

    room = vocab_size - len(SPECIAL_TOKENS) - len(languages)
    if room < 256:
        raise ConfigError(
            f"vocab_size: needs {vocab_size - room + 256} for the bytes alone, got {vocab_size}"
        )
    engine = Engine(model)
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return engine, {"vocab_size": room, "initial_alphabet": alphabet, "show_progress": False}


class HuggingFaceTokenizer(EngineTokenizer):
    """A tokenizer.json of Hugging Face.

    Ids are those of the file. PAD, BOS, EOS and UNK are the tokens that its tokenizer_config.json
    names, or else special tokens of usual names such as "</s>" and "[SEP]"; what is missing comes
    after the vocabulary, as do languages. `state` holds the JSON text and those names.

    >>> json_text = BPETokenizer.train(["low lower"] * 9, vocab_size=262)._state()
    >>> tokenizer = HuggingFaceTokenizer({"json": json_text, "names": {}})
    >>> tokenizer.encode("low"), tokenizer.pad_id
    ([257], 258)
    """

    def __init__(self, state: dict[str, Any], languages: Sequence[str] = ()):
        self._names = state["names"]
        super().__init__(state["json"], languages)

    def _number(self, languages: Sequence[str]) -> None:
        engine = self._engine
        engine.no_padding()
        engine.no_truncation()
        engine.encode_special_tokens = True  # "</s>" in a text is text
        content = json.loads(engine.to_str())
        model, added = content["model"], content["added_tokens"]
        special = {token["id"]: token["content"] for token in added if token["special"]}
        unknown = model.get("unk_token")
        if model["type"] == "Unigram" and model["unk_id"] is not None:
            unknown = model["vocab"][model["unk_id"]][0]
        if (number := engine.token_to_id(unknown or "")) is not None:
            special[number] = unknown
        ids = {name: number for number, name in special.items()}
        roles = {}
        for role, names in USUAL_NAMES.items():
            name = self._names.get(role) or next(filter(ids.__contains__, names), None)
            if name is not None and name not in ids:
                raise FileError(
                    f"{role}_token: needs one of {' '.join(ids) or 'none'}, got {name!r}"
                )
            if name is not None:
                roles[role] = ids[name]
        if roles.get("pad") in [number for role, number in roles.items() if role != "pad"]:
            del roles["pad"]  # padding that is also an end token
        Tokenizer.__init__(self, languages, max(engine.get_vocab().values()) + 1, special, roles)
        self.is_bpe = model["type"] == "BPE" and not (
            model["continuing_subword_prefix"] or model["end_of_word_suffix"]
        )
        self._fixed = {token["id"] for token in added} | special.keys()
        self._is_byte_level = "ByteLevel" in json.dumps(content["decoder"])

    def encode(self, text: str) -> list[int]:
        # the names of special tokens can be pieces of a unigram model: in a text they are unknown
        with library_errors("text", "a tokenizer in its file that encodes it"):
            ids = super().encode(text)
        return [self.unk_id if i in self.special_tokens else i for i in ids]

    def _token(self, index: int) -> str:
        if self._is_byte_level:
            return super()._token(index)
        return (self._engine.id_to_token(index) or "").replace("\u2581", " ")

    def _state(self) -> Any:
        return {"json": self._engine.to_str(), "names": self._names}


# of special tokens, where no tokenizer_config.json names them; those of BERT, GPT, T5 and Llama
USUAL_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "bos": ("<s>", "<bos>", "[CLS]", "<|begin_of_text|>", "<|startoftext|>"),
    "eos": ("</s>", "<eos>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]"),
}


TokenizerType = Literal["bpe", "unigram", "words", "characters", "bytes"]


def train_tokenizer(
    kind: str, texts: Iterable[str], vocab_size: int, *, languages: Sequence[str] = ()
) -> Tokenizer:
    """A tokenizer of texts.

    Args:
        kind: a `TokenizerType`; "bytes" reads no texts.
        texts: to learn the vocabulary from.
        vocab_size: the most ids, of byte pairs, unigram and words.
        languages: names of languages, each with a token.

    >>> train_tokenizer("words", ["two days"], 99).encode("two")
    [13]
    """
    check_choice("type", kind, get_args(TokenizerType))
    if kind == "bytes":
        return ByteTokenizer(languages)
    if kind == "characters":
        return CharTokenizer.train(texts, languages=languages)
    classes = {"bpe": BPETokenizer, "unigram": UnigramTokenizer, "words": WordTokenizer}
    return classes[kind].train(texts, vocab_size=vocab_size, languages=languages)


class TokenizerStats(NamedTuple):
    """Counts over texts.

    >>> stats = measure_tokenizer(Tokenizer.registry["ByteTokenizer"](), ["two days", "one"])
    >>> stats.tokens, stats.longest, round(stats.tokens_per_word, 2)
    (11, 8, 3.67)
    """

    texts: int = 0
    words: int = 0  # separated by spaces
    bytes: int = 0
    tokens: int = 0
    unknown: int = 0
    longest: int = 0  # tokens of the longest text

    @property
    def tokens_per_word(self) -> float:
        """Tokens per word (fertility)."""
        return self.tokens / max(1, self.words)

    @property
    def tokens_per_byte(self) -> float:
        """Tokens per byte of UTF-8."""
        return self.tokens / max(1, self.bytes)

    @property
    def unknown_share(self) -> float:
        """Share of tokens that are UNK."""
        return self.unknown / max(1, self.tokens)


def measure_tokenizer(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerStats:
    """Counts of tokens, words and bytes of texts.

    >>> tokenizer = Tokenizer.registry["CharTokenizer"].train(["day"])
    >>> measure_tokenizer(tokenizer, ["days"]).unknown_share
    0.25
    """
    stats = TokenizerStats()
    for text in texts:
        ids = tokenizer.encode_input(text)
        stats = TokenizerStats(
            stats.texts + 1, stats.words + len(text.split()),
            stats.bytes + len(text.encode(errors="replace")), stats.tokens + len(ids),
            stats.unknown + ids.count(tokenizer.unk_id), max(stats.longest, len(ids)),
        )  # fmt: skip
    return stats
