"""The train split of a task, encoded once into a token cache on disk."""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from regard.data import BPETokenizer, Tokenizer
from regard.data.batches import Encoded
from regard.data.token_cache import TokenCache, cached_examples
from regard.train.progress import track

CACHE_VERSION = 1  # of what a cache holds for a task; another one is written again


def encode_train_split(
    task: Any,
    tokenizer: Tokenizer,
    examples: Iterable[Encoded],
    files: Sequence[Path],
    *,
    cache: Path | None,
    show: bool = False,
    count: Callable[[], int | None] = lambda: None,
) -> TokenCache:
    """The encoded train split, from a cache of the same files, settings and tokenizer if there.

    Args:
        task: whose settings the examples depend on.
        tokenizer: of the run.
        examples: consumed only if they have to be written.
        files: that the examples are read from.
        cache: folder of the cache; None is a temporary one.
        show: print progress.
        count: about the number of examples, for the progress; called only if they are written.
    """
    stamps = [(x.name, (stat := x.stat()).st_size, stat.st_mtime_ns) for x in files]
    settings = {x.name: getattr(task, x.name) for x in fields(task) if x.name not in task.paths}
    content = repr((CACHE_VERSION, task.name, settings, stamps, tokenizer.fingerprint))
    key = blake2b(content.encode(), digest_size=16).hexdigest()

    def tracked() -> Iterator[Encoded]:
        yield from track(examples, "encoding the train split", total=count())

    shown = tracked() if show else examples
    _return_free_memory()
    encoded = cached_examples(cache, shown, vocab=tokenizer.vocab, key=key)
    if isinstance(tokenizer, BPETokenizer):
        tokenizer.clear_cache()
    _return_free_memory()
    return encoded


def _return_free_memory() -> None:
    """Give freed memory, such as of a tokenizer's training, back to the system; glibc keeps it."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
