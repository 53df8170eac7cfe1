"""Weights along diagonals of the map and counts of visible keys, in linear memory."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.inspection.sites.site import Site
from regard.ops.survey.weight_tile import nonzero_starts
from regard.ops.terms import weights_from_scores
from regard.ops.tiling import split_keys, split_rows

BAND_ROWS = 64  # rows per tile: a tile is this wide, plus the offsets


def offset_weights(
    site: Site, low: int, high: int
) -> Float[Tensor, "batch head query {high-low+1}"]:
    """Weights of each query on the keys at offsets low … high from it; 0 where there is no key.

    >>> q = k = torch.zeros(3, 2)
    >>> offset_weights(rg.make_site(q, k, mask=rg.Causal()), -1, 0)[0, 0]
    tensor([[0.0000, 1.0000],
            [0.5000, 0.5000],
            [0.3333, 0.3333]])
    """

    def weights(rows: range, keys: range) -> Tensor:
        scores = site.terms.score_tile(site.q, site.k, rows, keys)
        return weights_from_scores(scores, site.lse[..., rows.start : rows.stop])

    return _diagonals(site, low, high, weights)


def offset_exists(site: Site, low: int, high: int) -> Bool[Tensor, "query {high-low+1}"]:
    """Whether there is a key at each offset low … high from each query.

    >>> offset_exists(rg.make_site(*torch.zeros(2, 2, 4)), -1, 0)
    tensor([[False,  True],
            [ True,  True]])
    """
    columns = _columns(site, range(site.queries), low, high)
    return (columns >= 0) & (columns < site.keys)


def visible_key_counts(site: Site) -> Int[Tensor, "batch head query"]:
    """Number of keys that each query may see.

    >>> visible_key_counts(rg.make_site(*torch.zeros(2, 3, 4), mask=rg.Causal()))
    tensor([[[1, 2, 3]]])
    """
    mask, shape = site.terms.mask, site.lse.shape
    if mask is None:
        return torch.full(shape, site.keys, device=site.q.device)
    pieces = []
    for rows in split_rows(site.q, 256):
        count = torch.zeros(*shape[:-1], len(rows), dtype=torch.long, device=site.q.device)
        for keys in split_keys(site.terms.key_span(rows, site.keys), 1024):
            grid = site.terms.grid(site.q, site.k, rows, keys)
            if mask.is_full(grid.query_positions, keys):
                count += len(keys)
            else:
                tile = mask.tile(grid)
                count += tile.expand(*tile.shape[:-2], len(rows), len(keys)).sum(-1)
        pieces.append(count)
    return torch.cat(pieces, -1)


def informative_queries(
    site: Site, visible: Int[Tensor, "batch head query"]
) -> Bool[Tensor, "b h query"]:
    """The queries that are informative about a head: not padding, with two or more visible keys.

    In self-attention a token that does not see itself is padding, unless the mask hides every
    token from itself.

    >>> site = rg.make_site(*torch.zeros(2, 3, 4), mask=rg.Causal())
    >>> informative_queries(site, visible_key_counts(site))
    tensor([[[False,  True,  True]]])
    """
    rows = visible > 1
    if site.kind == "cross" or site.terms.mask is None:
        return rows
    sees_itself = _sees_itself(site)
    return rows & (sees_itself | ~sees_itself.any(-1, keepdim=True))


def is_first_key(site: Site) -> Bool[Tensor, "batch key"]:
    """Which keys begin a sequence, after left padding, or a packed document.

    >>> left = rg.Padding(torch.tensor([3]), left_padding=torch.tensor([1]))
    >>> is_first_key(rg.make_site(*torch.zeros(2, 1, 1, 3, 4), mask=left))
    tensor([[False,  True, False]])
    """
    starts = nonzero_starts(site.q, site.k, site.terms)
    key = torch.arange(site.keys, device=site.q.device)
    return (key == (0 if starts is None else starts)).expand(site.batch, -1)


def _sees_itself(site: Site) -> Tensor:
    mask = site.terms.mask
    assert mask is not None

    def allowed(rows: range, keys: range) -> Tensor:
        tile = mask.tile(site.terms.grid(site.q, site.k, rows, keys))
        return tile.expand(*site.lse.shape[:-1], len(rows), len(keys))

    return _diagonals(site, 0, 0, allowed)[..., 0].bool()


def _diagonals(
    site: Site, low: int, high: int, tile_of: Callable[[range, range], Tensor]
) -> Tensor:
    """The entries of a map at offsets low … high from each query; 0 where there is no key."""
    pieces, offset = [], site.terms.offset
    for rows in split_rows(site.q, BAND_ROWS):
        keys = range(max(0, rows.start + offset + low), min(site.keys, rows.stop + offset + high))
        if not keys:
            pieces.append(site.lse.new_zeros(*site.lse.shape[:-1], len(rows), high - low + 1))
            continue
        tile, columns = tile_of(rows, keys), _columns(site, rows, low, high) - keys.start
        inside = (columns >= 0) & (columns < len(keys))
        index = columns.clamp(0, len(keys) - 1).expand(*tile.shape[:-1], -1)
        pieces.append(tile.gather(-1, index) * inside)
    return torch.cat(pieces, -2)


def _columns(site: Site, rows: range, low: int, high: int) -> Tensor:
    """The keys at offsets low … high from each row."""
    device, offset = site.q.device, site.terms.offset
    positions = torch.arange(rows.start + offset, rows.stop + offset, device=device)[:, None]
    return positions + torch.arange(low, high + 1, device=device)
