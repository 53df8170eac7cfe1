"""Key/value cache of incremental decoding: immutable handles on shared, preallocated storage.

A step appends in place and copies nothing. A handle whose next slot another step has already
written continues on a copy, so that every state stays valid.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from regard.nn import KeysValues

INITIAL_CAPACITY = 32  # steps of newly allocated storage


@dataclass
class KVStorage:
    """Tensors of all layers, (source, 2 · kv_head, capacity, head_dim): keys, then values.

    `length` is the number of steps written.
    """

    layers: list[Tensor] = field(default_factory=list)
    length: int = 0


@dataclass(frozen=True)
class KVCache:
    """Keys and values of the first `length` steps.

    With several rows per source (a beam), each step holds one key per row, side by side, and a beam
    that continues from other rows moves nothing: `history` masks what belongs to a row's past.
    With `max_length`, only the last steps are kept (a stream).

    >>> cache, layer = KVCache(), torch.nn.Identity()
    >>> for k in (torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 1, 3)):  # two tokens, then one
    ...     writer = cache.append(k.shape[2])
    ...     keys, values = writer(layer, k, k)
    ...     cache = writer.new_cache()
    >>> keys[0, 0, :, 0].tolist(), cache.length
    ([1.0, 1.0, 0.0], 3)
    """

    storage: KVStorage = field(default_factory=KVStorage)
    length: int = 0
    rows_per_source: int = 1
    history: Tensor | None = None  # (source, row, step · row), bool; None: everything
    max_length: int | None = None

    def keys_values(self, layer: int) -> KeysValues:
        """Keys and values of one layer, each (source, kv_head, step · row, head_dim)."""
        return _split(self.storage.layers[layer], self.length * self.rows_per_source)

    def append(self, new_tokens: int) -> "KVCacheWriter":
        """The `cache` argument of a model call that adds this many tokens."""
        return KVCacheWriter(self, new_tokens)

    def select(self, rows: Tensor) -> "KVCache":
        """The past of these rows, in this order, one row per source."""
        layers, each = self.storage.layers, self.rows_per_source
        if self.history is None:  # with the free capacity, so that the next step need not grow
            layers = [x[rows // each] for x in layers]
        else:  # of every step, one key is of the row's past
            source, row = rows // each, rows % each
            at = self.history[source, row].nonzero()[:, 1].view(len(rows), 1, self.length, 1)
            layers = [
                x[source].gather(2, at.expand(-1, x.shape[1], -1, x.shape[3])) for x in layers
            ]
        storage = KVStorage(layers, self.length)
        return replace(self, storage=storage, rows_per_source=1, history=None)

    def reorder(self, rows: Tensor) -> "KVCache":
        """Like `select` for rows that stay with their source: nothing is copied."""
        if self.history is None:
            return self
        history = self.history.flatten(0, 1)[rows].unflatten(0, (-1, self.rows_per_source))
        return replace(self, history=history)


class KVCacheWriter:
    """Adds tokens to a cache; layers write in the order in which they are called."""

    def __init__(self, old: KVCache, new_tokens: int):
        self.old, self.length, self.layer = old, old.length + new_tokens, 0
        self.in_place = old.storage.length == old.length and old.max_length is None
        self.storage = old.storage if self.in_place else KVStorage()

    def __call__(self, site: nn.Module, k: Tensor, v: Tensor) -> KeysValues:
        if k.requires_grad or self.old.max_length is not None:
            # a gradient needs the past unchanged; a bounded cache is small
            x = torch.cat([k, v], -3)
            if (past := self._past()) is not None:
                x = torch.cat([past[:, :, : self.old.length], x], -2)
            extra = 0 if self.old.max_length is None else x.shape[-2] - self.old.max_length
            # a copy: a view would keep the whole tensor alive
            self._put(x if extra <= 0 else x[..., extra:, :].clone())
            return _split(x, x.shape[-2])
        rows, heads, _, head_dim = k.shape
        x = self.reserve((rows, 2 * heads, head_dim), k)
        x[:, :heads, self.old.length : self.length] = k
        x[:, heads:, self.old.length : self.length] = v
        return _split(x, self.length)

    def reserve(self, shape: tuple[int, int, int], like: Tensor) -> Tensor:
        """The next layer's tensor, with the past and capacity for the new steps."""
        each, x = self.old.rows_per_source, self._past()
        used, needed = self.old.length * each, self.length * each
        if x is None or not self.in_place or x.shape[2] < needed:
            capacity = max(INITIAL_CAPACITY, 2 * self.length) * each
            wide = like.new_empty(*shape[:2], capacity, shape[2])
            if x is not None:
                wide[:, :, :used] = x[:, :, :used]
            x = wide
        self._put(x)
        return x

    def new_cache(self, history: Tensor | None = None) -> KVCache:
        """The cache with the new tokens; `history` replaces the mask of several rows per source."""
        limit = self.old.max_length
        self.storage.length = self.length if limit is None else min(limit, self.length)
        length = self.storage.length
        return replace(self.old, storage=self.storage, length=length, history=history)

    def _past(self) -> Tensor | None:
        layers = self.old.storage.layers
        return layers[self.layer] if self.layer < len(layers) else None

    def _put(self, x: Tensor) -> None:
        if self.layer == len(self.storage.layers):
            self.storage.layers.append(x)
        else:
            self.storage.layers[self.layer] = x
        self.layer += 1


def _split(x: Tensor, length: int) -> KeysValues:
    heads = x.shape[1] // 2
    return x[:, :heads, :length], x[:, heads:, :length]
