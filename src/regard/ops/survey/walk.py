"""The way over a map in tiles: bands of rows, and in each the keys that it can see."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from regard.ops.terms import Terms


class Tile(NamedTuple):
    """How large a tile is, all heads together."""

    weights: int  # at about this many the working set fits where it should
    high: int  # rows, at least
    wide: int  # keys, at most


ON_CPU = Tile(1 << 20, 256, 512)  # 4 MB of float32: smaller tiles are all overhead
IN_CACHE = Tile(1 << 19, 256, 512)  # 2 MB, for passes that come one right after the other
ON_GPU = Tile(1 << 24, 128, 4096)  # few, large launches


def tile_of(q: Tensor) -> Tile:
    """The tile for the device of q."""
    return ON_GPU if q.is_cuda else ON_CPU


def walk(q: Tensor, k: Tensor, terms: Terms) -> Iterator[tuple[range, range]]:
    """Rows and keys of every tile that holds something to see.

    >>> from regard.ops.terms import make_terms
    >>> q = torch.zeros(600, 1)
    >>> [*walk(q, q, make_terms(q, q, mask=rg.Causal()))]
    [(range(0, 600), range(0, 512)), (range(0, 600), range(512, 600))]
    """
    keys, tile = k.shape[-2], tile_of(q)
    across = q.shape[:-2].numel() * min(keys, tile.wide)
    for rows in bands(q, max(tile.high, tile.weights // max(1, across))):
        for part in cuts(terms.span(rows, keys), tile.wide):
            yield rows, part


def bands(q: Tensor, high: int) -> list[range]:
    """Cut the rows, `high` at a time.

    >>> bands(torch.zeros(5, 1), high=3)
    [range(0, 3), range(3, 5)]
    """
    queries = q.shape[-2]
    return [range(top, min(top + high, queries)) for top in range(0, queries, high)]


def cuts(keys: range, wide: int, also: Iterable[int] = ()) -> list[range]:
    """Cut a range of keys at multiples of `wide`, and where else it should be.

    >>> cuts(range(3, 10), wide=4)
    [range(3, 4), range(4, 8), range(8, 10)]
    >>> cuts(range(3, 10), wide=4, also=[5])
    [range(3, 4), range(4, 5), range(5, 8), range(8, 10)]
    """
    inside = {*range((keys.start // wide + 1) * wide, keys.stop, wide), *also}
    at = [keys.start, *sorted(a for a in inside if keys.start < a < keys.stop), keys.stop]
    return [range(a, b) for a, b in pairwise(at) if a < b]
