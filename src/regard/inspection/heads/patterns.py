"""Weights on diagonals and on the keys of a pattern, and counts of visible keys, by tiles."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import LookError
from regard.inspection.sites.site import Site
from regard.ops.survey.statistics import nonzero_starts
from regard.ops.terms import weights_from_scores
from regard.ops.tiling import iter_tiles, split_keys, split_rows

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
    mask = site.terms.mask

    def allowed(rows: range, keys: range) -> Tensor:
        tile = mask.tile(site.terms.grid(site.q, site.k, rows, keys))
        return tile.expand(*site.lse.shape[:-1], len(rows), len(keys))

    sees_itself = _diagonals(site, 0, 0, allowed)[..., 0].bool()
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


class Cells(NamedTuple):
    """Tokens and positions of a tile, (batch, query, key); tokens are numbered from 0."""

    query: Tensor  # position of each query
    key: Tensor  # position of each key
    is_first: Tensor  # whether a key begins a sequence or document
    token: Tensor  # of each query
    next_token: Tensor  # of the position after each query; -1 where there is none
    key_token: Tensor
    before_key: Tensor  # token of the position before each key; -1 where there is none


PATTERNS: dict[str, Callable[[Cells], Tensor]] = {
    "induction": lambda c: (c.before_key == c.token) & (c.key < c.query),
    "previous": lambda c: c.key == c.query - 1,
    "duplicate": lambda c: (c.key_token == c.token) & (c.key < c.query),
    "retrieval": lambda c: (c.key_token == c.next_token) & (c.key < c.query),
    "sink": lambda c: c.is_first & (c.key < c.query),
}


class PatternScores(NamedTuple):
    """What each query does with the keys of one pattern.

    `score` is the weight on all of them; for retrieval it is 1 where the heaviest key of the query
    is one of them, else 0. `counted` says which queries see such a key; `weight` and `key` are the
    heaviest one.
    """

    score: Float[Tensor, "batch head query"]
    counted: Bool[Tensor, "batch head query"]
    weight: Float[Tensor, "batch head query"]
    key: Int[Tensor, "batch head query"]

    def totals(self) -> Float[Tensor, "two head"]:
        """Per head, the sum of the scores that count, and their number."""
        sums = (self.score * self.counted).double().sum((0, 2)), self.counted.sum((0, 2))
        return torch.stack([x.double() for x in sums])

    def means(self) -> list[float | None]:
        """Mean over the counted queries, per head; None if there are none."""
        return [total / n if n else None for total, n in self.totals().mT.tolist()]


@torch.no_grad()
def pattern_scores(
    site: Site, names: Sequence[str], *, needle: slice = slice(None), answer: slice = slice(None)
) -> dict[str, PatternScores]:
    """The scores of every query of a labelled self-attention, in tiles of the map.

    For retrieval, `needle` limits the keys and `answer` the positions that are predicted.

    >>> site = rg.make_site(*torch.zeros(2, 3, 4), tokens=["a", "b", "a"], mask=rg.Causal())
    >>> pattern_scores(site, ["induction"])["induction"].score[0, 0]  # the last a on b
    tensor([0.0000, 0.0000, 0.3333])
    """
    site.require_tensors()
    tokens, first = _token_numbers(site), is_first_key(site)
    results: dict[str, PatternScores] = {}
    for name in names:
        weight = torch.full_like(site.lse, -1.0)
        key = torch.full(site.lse.shape, -1, device=weight.device)
        counted = torch.zeros_like(key).bool()
        results[name] = PatternScores(torch.zeros_like(weight), counted, weight, key)
    for rows, keys in iter_tiles(site.q, site.k, site.terms):
        scores = site.terms.score_tile(site.q, site.k, rows, keys)
        band = slice(rows.start, rows.stop)
        w = weights_from_scores(scores, site.lse[..., band])
        cells = _cells(tokens, first, site.terms.offset, rows, keys)
        for name, totals in results.items():
            match = PATTERNS[name](cells).expand(site.batch, len(rows), len(keys))
            if name == "retrieval":  # the key in the needle, what follows the query in the answer
                copied, predicted = (range(tokens.shape[1])[span] for span in (needle, answer))
                match = match & (cells.key >= copied.start) & (cells.key < copied.stop)
                after = cells.query + 1
                match = match & (after >= predicted.start) & (after < predicted.stop)
            if not match.any():
                continue
            match = match[:, None] & (scores > -torch.inf)
            best, at = w.masked_fill(~match, -1).max(-1)
            better = best > totals.weight[..., band]
            totals.score[..., band] += (w * match).sum(-1)
            totals.counted[..., band] |= match.any(-1)
            totals.key[..., band] = torch.where(better, at + keys.start, totals.key[..., band])
            totals.weight[..., band] = torch.where(better, best, totals.weight[..., band])
    informative = informative_queries(site, visible_key_counts(site))
    for totals in results.values():
        totals.counted.logical_and_(informative)
    if "retrieval" in results:
        peak_key = site.survey(statistics=["peak_key"]).peak_key
        copies = results["retrieval"].key == peak_key
        results["retrieval"] = results["retrieval"]._replace(score=copies.to(site.lse.dtype))
    return results


def _token_numbers(site: Site) -> Int[Tensor, "batch key"]:
    """The tokens of the keys as numbers; equal tokens have equal numbers."""
    if site.kind != "self" or site.key_tokens is None:
        raise LookError(
            f"{site.name}: needs a self-attention with tokens, got {site.kind}-attention"
            f"{'' if site.key_tokens else ' without'}; try look(model, tokens=…)"
        )
    numbers: dict[str, int] = {}
    rows = [[numbers.setdefault(t, len(numbers)) for t in row] for row in site.key_tokens]
    return torch.tensor(rows, device=site.q.device)


def _cells(tokens: Tensor, first: Tensor, offset: int, rows: range, keys: range) -> Cells:
    none = torch.full_like(tokens[:, :1], -1)
    following, before = torch.cat([tokens[:, 1:], none], 1), torch.cat([none, tokens[:, :-1]], 1)
    query = torch.arange(rows.start + offset, rows.stop + offset, device=tokens.device)
    key = torch.arange(keys.start, keys.stop, device=tokens.device)
    return Cells(
        query=query[:, None],
        key=key,
        is_first=first[:, None, keys.start : keys.stop],
        token=tokens[:, query, None],
        next_token=following[:, query, None],
        key_token=tokens[:, None, keys.start : keys.stop],
        before_key=before[:, None, keys.start : keys.stop],
    )
