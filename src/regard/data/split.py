"""Splits of a data set, and the hash that assigns an example to one."""

from collections.abc import Container
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


def assign_split(split: Split, key: bytes, given: Container[str | None]) -> Split:
    """The split of an example that is in the data of `split`.

    A hash of the key moves examples of train to the splits that no data is given for.

    >>> [assign_split("train", key, given={"train", "test"}) for key in (b"63", b"64")]
    ['train', 'valid']
    """
    hashed = hash_split(key) if split == "train" else split
    return split if hashed in given else hashed


def in_share(number: int, share: float) -> bool:
    """Whether an example is in a random share of the train split; a larger share has it too.

    >>> sum(in_share(n, 0.25) for n in range(1000))
    227
    """
    return int.from_bytes(blake2b(b"%d" % number, digest_size=8).digest()) < share * 2**64
