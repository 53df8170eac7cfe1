"""Keys and values in buffers with room for more, written in place: no step copies the past."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard.nn import KeysValues

INITIAL_CAPACITY = 32  # places that a cache starts with


@dataclass
class KVStorage:
    """Where the keys and values of every attention stand; `filled` places are taken."""

    layers: dict[nn.Module, KeysValues] = field(default_factory=dict)
    length: int = 0


@dataclass(frozen=True)
class KVCache:
    """The keys and values that each attention made so far, and how many tokens those are.

    >>> kept, layer = KVCache(), torch.nn.Identity()
    >>> for k in (torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 1, 3)):  # two tokens, then one
    ...     growing = KVCacheWriter(kept, k.shape[2])
    ...     keys, values = growing(layer, k, k)
    ...     kept = growing.new_cache()
    >>> keys[0, 0, :, 0].tolist(), kept.length
    ([1.0, 1.0, 0.0], 3)
    """

    storage: KVStorage = field(default_factory=KVStorage)
    length: int = 0

    @classmethod
    def from_layers(cls, layers: dict[nn.Module, KeysValues], length: int) -> "KVCache":
        """What was kept elsewhere, `time` of it taken."""
        return cls(KVStorage(layers, length), length)

    @property
    def layers(self) -> dict[nn.Module, KeysValues]:
        """Just the part that is taken."""
        time = self.length
        return {
            site: (k[..., :time, :], v[..., :time, :])
            for site, (k, v) in self.storage.layers.items()
        }

    def select(self, rows: Tensor) -> "KVCache":
        """The past of these rows, in this order."""
        # with the room behind it, so that the next step finds a place
        pairs = self.storage.layers.items()
        return KVCache.from_layers(
            {site: (k[rows], v[rows]) for site, (k, v) in pairs}, self.length
        )


class KVCacheWriter:
    """The `cache` of one call: puts the new keys behind the kept ones, which stay as they were.

    A place that another step has taken is not taken again: that step's past is copied instead.
    """

    def __init__(self, old: KVCache, new_tokens: int):
        self.old, self.length = old, old.length + new_tokens
        self.in_place = old.storage.length == old.length
        self.storage = old.storage if self.in_place else KVStorage()

    def __call__(self, site: nn.Module, k: Tensor, v: Tensor) -> KeysValues:
        pair = self.old.storage.layers.get(site)
        kept = tuple(self._put(n, pair, x) for n, x in enumerate((k, v)))
        self.storage.layers[site] = kept[0], kept[1]
        return kept[0][..., : self.length, :], kept[1][..., : self.length, :]

    def new_cache(self) -> KVCache:
        """All there is now."""
        self.storage.length = self.length
        return KVCache(self.storage, self.length)

    def _put(self, n: int, pair: KeysValues | None, new: Tensor) -> Tensor:
        begin = self.old.length
        past = None if pair is None else pair[n]
        if new.requires_grad:  # what a gradient goes back through cannot be written over
            return new if past is None else torch.cat([past[..., :begin, :], new], -2)
        if past is None or not self.in_place or past.shape[-2] < self.length:
            room = max(INITIAL_CAPACITY, 2 * self.length)
            wide = new.new_empty(*new.shape[:-2], room, new.shape[-1])
            if past is not None:
                wide[..., :begin, :] = past[..., :begin, :]
            past = wide
        past[..., begin : self.length, :] = new
        return past
