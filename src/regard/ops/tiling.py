"""The way over a map in tiles: bands of rows, and in each the keys that it can see."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from regard.ops.terms import Terms


class TileSize(NamedTuple):
    """How large a tile is, all heads together."""

    weights: int  # at about this many the working set fits where it should
    rows: int  # rows, at least
    keys: int  # keys, at most


CPU_TILE = TileSize(1 << 20, 256, 512)  # 4 MB of float32: smaller tiles are all overhead
CACHE_TILE = TileSize(1 << 19, 256, 512)  # 2 MB, for passes that come one right after the other
GPU_TILE = TileSize(1 << 24, 128, 4096)  # few, large launches


def tile_size(q: Tensor) -> TileSize:
    """The tile for the device of q."""
    return GPU_TILE if q.is_cuda else CPU_TILE


def iter_tiles(q: Tensor, k: Tensor, terms: Terms) -> Iterator[tuple[range, range]]:
    """Rows and keys of every tile that holds something to see.

    >>> from regard.ops.terms import make_terms
    >>> q = torch.zeros(600, 1)
    >>> [*iter_tiles(q, q, make_terms(q, q, mask=rg.Causal()))]
    [(range(0, 600), range(0, 512)), (range(0, 600), range(512, 600))]
    """
    keys, tile = k.shape[-2], tile_size(q)
    across = q.shape[:-2].numel() * min(keys, tile.keys)
    for rows in split_rows(q, max(tile.rows, tile.weights // max(1, across))):
        for part in split_keys(terms.key_span(rows, keys), tile.keys):
            yield rows, part


def split_rows(q: Tensor, height: int) -> list[range]:
    """Cut the rows, `high` at a time.

    >>> split_rows(torch.zeros(5, 1), height=3)
    [range(0, 3), range(3, 5)]
    """
    queries = q.shape[-2]
    return [range(top, min(top + height, queries)) for top in range(0, queries, height)]


def split_keys(keys: range, width: int, boundaries: Iterable[int] = ()) -> list[range]:
    """Cut a range of keys at multiples of `wide`, and where else it should be.

    >>> split_keys(range(3, 10), width=4)
    [range(3, 4), range(4, 8), range(8, 10)]
    >>> split_keys(range(3, 10), width=4, boundaries=[5])
    [range(3, 4), range(4, 5), range(5, 8), range(8, 10)]
    """
    inside = {*range((keys.start // width + 1) * width, keys.stop, width), *boundaries}
    at = [keys.start, *sorted(a for a in inside if keys.start < a < keys.stop), keys.stop]
    return [range(a, b) for a, b in pairwise(at) if a < b]
