"""Splits of a data set, and the hash that assigns an example to one."""

from hashlib import blake2b
from typing import Literal, get_args

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


def hash_split(key: bytes) -> Split:
    """Assign a key to a split: 5% test, 5% valid, 90% train, the same on every machine.

    >>> hash_split(b"one"), hash_split(b"time(15, 5)")
    ('train', 'train')
    """
    percent = int.from_bytes(blake2b(key, digest_size=8).digest()) % 100
    return "test" if percent < 5 else "valid" if percent < 10 else "train"
