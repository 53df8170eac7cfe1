"""Keys and values in buffers with room for more, written in place: no step copies the past."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard.nn import KeysValues

ROOM = 32  # places that a cache starts with


@dataclass
class Shelf:
    """Where the keys and values of every attention stand; `filled` places are taken."""

    layers: dict[nn.Module, KeysValues] = field(default_factory=dict)
    filled: int = 0


@dataclass(frozen=True)
class Kept:
    """The keys and values that each attention made so far, and how many tokens those are.

    >>> kept, layer = Kept(), torch.nn.Identity()
    >>> for k in (torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 1, 3)):  # two tokens, then one
    ...     growing = Growing(kept, k.shape[2])
    ...     keys, values = growing(layer, k, k)
    ...     kept = growing.kept()
    >>> keys[0, 0, :, 0].tolist(), kept.time
    ([1.0, 1.0, 0.0], 3)
    """

    shelf: Shelf = field(default_factory=Shelf)
    time: int = 0

    @classmethod
    def of(cls, layers: dict[nn.Module, KeysValues], time: int) -> "Kept":
        """What was kept elsewhere, `time` of it taken."""
        return cls(Shelf(layers, time), time)

    @property
    def layers(self) -> dict[nn.Module, KeysValues]:
        """Just the part that is taken."""
        time = self.time
        return {
            site: (k[..., :time, :], v[..., :time, :]) for site, (k, v) in self.shelf.layers.items()
        }

    def select(self, rows: Tensor) -> "Kept":
        """The past of these rows, in this order."""
        # with the room behind it, so that the next step finds a place
        pairs = self.shelf.layers.items()
        return Kept.of({site: (k[rows], v[rows]) for site, (k, v) in pairs}, self.time)


class Growing:
    """The `cache` of one call: puts the new keys behind the kept ones, which stay as they were.

    A place that another step has taken is not taken again: that step's past is copied instead.
    """

    def __init__(self, old: Kept, more: int):
        self.old, self.time = old, old.time + more
        self.free = old.shelf.filled == old.time
        self.shelf = old.shelf if self.free else Shelf()

    def __call__(self, site: nn.Module, k: Tensor, v: Tensor) -> KeysValues:
        pair = self.old.shelf.layers.get(site)
        kept = tuple(self._put(n, pair, x) for n, x in enumerate((k, v)))
        self.shelf.layers[site] = kept[0], kept[1]
        return kept[0][..., : self.time, :], kept[1][..., : self.time, :]

    def kept(self) -> Kept:
        """All there is now."""
        self.shelf.filled = self.time
        return Kept(self.shelf, self.time)

    def _put(self, n: int, pair: KeysValues | None, new: Tensor) -> Tensor:
        begin = self.old.time
        past = None if pair is None else pair[n]
        if new.requires_grad:  # what a gradient goes back through cannot be written over
            return new if past is None else torch.cat([past[..., :begin, :], new], -2)
        if past is None or not self.free or past.shape[-2] < self.time:
            room = max(ROOM, 2 * self.time)
            wide = new.new_empty(*new.shape[:-2], room, new.shape[-1])
            if past is not None:
                wide[..., :begin, :] = past[..., :begin, :]
            past = wide
        past[..., begin : self.time, :] = new
        return past
