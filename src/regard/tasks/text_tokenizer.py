"""What tasks on text share: the tokenizer, and how training examples are encoded with it."""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from regard.data import (
    BPETokenizer,
    InMemorySource,
    NumberedSource,
    Source,
    Tokenizer,
    train_tokenizer,
)
from regard.data.batches import Encoded
from regard.data.text.engine_tokenizers import TokenizerType
from regard.data.token_cache import TokenCache, cached_examples
from regard.errors import ConfigError
from regard.models.config import check_choices, check_positive
from regard.tasks.base import EncodedCache
from regard.train.process import track

Encode = Callable[[Any], Encoded]


@dataclass(frozen=True, kw_only=True)
class TextTokenizer:
    """The tokenizer of a task on text, and how much of the train split is used.

    Args:
        tokenizer_type: byte pairs, unigram, words, characters or bytes, of the train split.
        tokenizer_file: an existing one instead: of `regard tokenizer`, a run, tokenizer.json of
            Hugging Face, or a SentencePiece .model.
        vocab_size: of byte pairs, unigram and words.
        bpe_dropout: probability that a merge of byte pairs is skipped, in training only.
        train_share: of the train split that is used: random examples, the beginning of each text.
    """

    tokenizer_type: TokenizerType = "bpe"
    tokenizer_file: str = ""
    vocab_size: int = 4000
    bpe_dropout: float = 0.0
    train_share: float = 1.0

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "vocab_size")
        if not 0 <= self.bpe_dropout < 1:
            raise ConfigError(f"bpe_dropout: needs 0 or more, below 1, got {self.bpe_dropout}")
        if not 0 < self.train_share <= 1:
            raise ConfigError(f"train_share: needs more than 0, at most 1, got {self.train_share}")
        if self.bpe_dropout and self.tokenizer_type != "bpe" and not self.tokenizer_file:
            raise ConfigError(
                f"bpe_dropout: needs tokenizer_type=bpe, got {self.tokenizer_type}; try 0"
            )

    def make_tokenizer(
        self, texts: Callable[[], Iterable[str]], languages: Sequence[str] = ()
    ) -> Tokenizer:
        """The tokenizer of the file, or one that is trained on the texts."""
        if not self.tokenizer_file:
            return train_tokenizer(
                self.tokenizer_type, texts(), self.vocab_size, languages=languages
            )
        tokenizer = Tokenizer.load(self.tokenizer_file, languages)
        if self.bpe_dropout:
            tokenizer.with_dropout(self.bpe_dropout, "")  # raises where nothing is merged
        return tokenizer

    def encoded_source(
        self,
        examples: Sequence[Any],
        encoder: Callable[[Tokenizer], Encode],
        tokenizer: Tokenizer,
        seed: int,
    ) -> tuple[Source, Encode | None]:
        """Source and encoder of `Batches`: examples encoded once, or each time with dropout.

        With dropout, the seed and the number of an example determine its tokens, so that a resumed
        training goes on with the same ones.
        """
        if not self.bpe_dropout:
            encode = encoder(tokenizer)
            rows = ({k: torch.tensor(x) for k, x in encode(row).items()} for row in examples)
            return InMemorySource(train=list(rows)), None

        def encode_numbered(numbered: tuple[int, Any]) -> Encoded:
            number, example = numbered
            return encoder(tokenizer.with_dropout(self.bpe_dropout, f"{seed}/{number}"))(example)

        return NumberedSource(InMemorySource(train=examples)), encode_numbered


CACHE_VERSION = 1  # of what a cache holds for a task; another one is written again


def encode_train_split(
    task: Any,
    tokenizer: Tokenizer,
    examples: Iterable[Encoded],
    files: Sequence[Path],
    cache: EncodedCache,
    count: Callable[[], int],
) -> TokenCache:
    """The encoded train split, from a cache of the same files, settings and tokenizer if there.

    Args:
        task: whose settings the examples depend on.
        tokenizer: of the run.
        examples: consumed only if they have to be written.
        files: that the examples are read from.
        cache: where they are written, and whether progress is printed.
        count: about the number of examples, for the progress; called only if they are written.
    """
    stamps = [(x.name, (stat := x.stat()).st_size, stat.st_mtime_ns) for x in files]
    settings = {x.name: getattr(task, x.name) for x in fields(task) if x.name not in task.paths}
    content = repr((CACHE_VERSION, task.name, settings, stamps, tokenizer.fingerprint))
    key = blake2b(content.encode(), digest_size=16).hexdigest()

    def tracked() -> Iterator[Encoded]:
        yield from track(examples, "encoding the train split", total=count())

    shown = tracked() if cache.show else examples
    _return_free_memory()
    encoded = cached_examples(cache.folder, shown, vocab=tokenizer.vocab, key=key)
    if isinstance(tokenizer, BPETokenizer):
        tokenizer.clear_cache()
    _return_free_memory()
    return encoded


def _return_free_memory() -> None:
    """Give freed memory, such as of a tokenizer's training, back to the system; glibc keeps it."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
