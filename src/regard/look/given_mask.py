"""A mask that another library hands over as a tensor, read as the structure it was made from."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.ops import biases, masks
from regard.ops.grid import Grid
from regard.ops.masks import Causal, Local, Mask, Padding

READ_AT_MOST = 1 << 28  # numbers compared to find a structure; beyond it a mask stays a tensor


@dataclass(frozen=True)
class GivenMask:
    """What a tensor of a mask says: who may see whom, what is added, where the queries stand."""

    mask: Mask | None = None
    bias: biases.Bias | None = None
    offset: int = 0


def read_mask(given: Tensor, q: Tensor, k: Tensor, window: int | None = None) -> GivenMask:
    """Causal, local and padded patterns as such, so that no n by n mask is kept; others as given.

    A bool mask is True where a query may see a key. A float mask is added to the scores; its -inf
    are taken as hidden.

    >>> q, mask = torch.zeros(1, 1, 3, 2), torch.ones(3, 3, dtype=torch.bool).tril()
    >>> read_mask(mask, q, q)
    GivenMask(mask=Causal(), bias=None, offset=0)
    """
    given = given[:, None, None, :] if given.ndim == 2 and _is_padding(given, q, k) else given
    given = given[..., : k.shape[-2]]
    if given.dtype == torch.bool:
        return _structure(given, q, k, window)
    if not given.is_floating_point():
        return _structure(given.bool(), q, k, window)
    hidden = given == -torch.inf
    found = _structure(~hidden, q, k, window) if hidden.any() else GivenMask()
    added = given.masked_fill(hidden, 0)
    bias = biases.Dense(added) if given.requires_grad or added.any() else None
    return GivenMask(found.mask, bias, found.offset)


def _is_padding(given: Tensor, q: Tensor, k: Tensor) -> bool:
    """Whether two axes are (batch, key); they are (query, key) where both could be meant."""
    return given.shape[0] == q.shape[0] and given.shape[0] not in (1, q.shape[-2])


def _structure(allowed: Tensor, q: Tensor, k: Tensor, window: int | None) -> GivenMask:
    queries, keys = q.shape[-2], k.shape[-2]
    allowed = allowed.expand(*allowed.shape[:-2], queries, keys)
    if q.ndim > 4 or allowed.ndim > 4 or allowed.numel() > READ_AT_MOST:
        return GivenMask(masks.Dense(allowed), None, max(0, keys - queries))
    wide = allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape))
    if not wide.numel() or wide.all():
        return GivenMask(None, None, 0 if queries == keys else max(0, keys - queries))
    offset = _offset(wide, queries)
    if wide.shape[1] == 1 or (wide == wide[:, :1]).all():
        wide = wide[:, :1]
        padding = _padding(wide[:, 0], q.shape[0])
        for mask, place in _candidates(window, padding, offset):
            grid = Grid((q.shape[0], 1), range(queries), range(keys), place, q.device)
            if torch.equal(mask.tile(grid).expand_as(wide), wide):
                return GivenMask(mask, None, place)
    return GivenMask(masks.Dense(allowed), None, offset)


def _candidates(window: int | None, padding: Padding, offset: int) -> Iterator[tuple[Mask, int]]:
    """What masks usually are, plain ones first; a window counts the query itself, or both sides."""
    plain: list[tuple[Mask, int]] = [(Causal(), offset)]
    if window is not None:
        plain += [(Causal() & Local(max(0, window - 1)), offset)]
        plain += [(Local(max(0, size)), offset) for size in (window - 1, window, window // 2)]
    yield from plain
    yield padding, 0
    for mask, place in plain:
        yield mask & padding, place


def _offset(allowed: Tensor, queries: int) -> int:
    """Where the first query stands, if the last one sees up to itself."""
    seen = allowed[:, :, -1].flatten(0, 1).any(0).nonzero()
    return max(0, int(seen[-1]) - (queries - 1)) if len(seen) else 0


def _padding(allowed: Tensor, batch: int) -> Padding:
    """The run of keys that anyone of a sequence sees."""
    seen = allowed.any(1).expand(batch, -1)
    skip = seen.int().argmax(-1)
    lengths = skip + seen.sum(-1)
    return Padding(lengths, skip if skip.any() else None)
