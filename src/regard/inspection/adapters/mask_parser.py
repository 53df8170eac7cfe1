"""A mask that another library hands over as a tensor, read as the structure it was made from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.ops import biases, masks
from regard.ops.grid import Grid
from regard.ops.masks import Causal, Local, Mask, Padding

MAX_PARSED_NUMBERS = (
    1 << 28
)  # numbers compared to find a structure; beyond it a mask stays a tensor


@dataclass(frozen=True)
class ParsedMask:
    """What a tensor of a mask says: who may see whom, what is added, where the queries stand."""

    mask: Mask | None = None
    bias: biases.Bias | None = None
    offset: int = 0
    used_keys: int | None = None  # keys from here on are seen by nobody: room of a cache


def parse_attention_mask(
    mask: Tensor, q: Tensor, k: Tensor, *, same_sequence: bool = True, window: int | None = None
) -> ParsedMask:
    """Causal, local and padded patterns as such, so that no n by n mask is kept; others as given.

    A bool mask is True where a query may see a key. A float mask is added to the scores; its -inf
    are taken as hidden. `same` says that queries and keys are of one sequence, the queries last.

    >>> q, mask = torch.zeros(1, 1, 3, 2), torch.ones(3, 3, dtype=torch.bool).tril()
    >>> parse_attention_mask(mask, q, q).mask
    Causal()
    """
    mask = mask[:, None, None, :] if mask.ndim == 2 and _is_padding(mask, q) else mask
    mask = mask[..., : k.shape[-2]]
    if mask.dtype == torch.bool:
        return _structure(mask, q, k, same_sequence, window)
    if not mask.is_floating_point():
        return _structure(mask.bool(), q, k, same_sequence, window)
    hidden = mask == -torch.inf
    plain = ParsedMask(offset=max(0, k.shape[-2] - q.shape[-2]) if same_sequence else 0)
    found = _structure(~hidden, q, k, same_sequence, window) if hidden.any() else plain
    added = mask.masked_fill(hidden, 0)
    bias = biases.DenseBias(added) if mask.requires_grad or added.any() else None
    return replace(found, bias=bias)


def trim_unused_keys(x: Tensor, used_keys: int | None) -> Tensor:
    """The keys that are in use, copied: a static cache is written in place at the next step.

    >>> trim_unused_keys(torch.arange(4.0).view(1, 1, 4, 1), 2).flatten()
    tensor([0., 1.])
    """
    return x if used_keys is None or x.shape[-2] == used_keys else x[..., :used_keys, :].clone()


def _is_padding(given: Tensor, q: Tensor) -> bool:
    """Whether two axes are (batch, key); they are (query, key) where both could be meant."""
    return given.shape[0] == q.shape[0] and given.shape[0] not in (1, q.shape[-2])


def _structure(allowed: Tensor, q: Tensor, k: Tensor, same: bool, window: int | None) -> ParsedMask:
    queries, keys = q.shape[-2], k.shape[-2]
    offset = max(0, keys - queries) if same else 0
    allowed = allowed.expand(*allowed.shape[:-2], queries, keys)
    if q.ndim > 4 or allowed.ndim > 4 or allowed.numel() > MAX_PARSED_NUMBERS:
        return ParsedMask(masks.DenseMask(allowed), None, offset)
    wide = allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape))
    if not wide.numel() or wide.all():
        return ParsedMask(offset=offset)
    offset, used = _placed(wide, queries) if same else (0, None)
    if wide.shape[1] == 1 or (wide == wide[:, :1]).all():
        wide = wide[:, :1]
        for mask in _candidates(window, _padding(wide[:, 0], q.shape[0])):
            grid = Grid((q.shape[0], 1), range(queries), range(keys), offset, q.device)
            tile = mask.tile(grid)
            if torch.equal(*torch.broadcast_tensors(tile, wide)):
                return ParsedMask(mask, None, offset, used)
    return ParsedMask(masks.DenseMask(allowed), None, offset, used)


def _candidates(window: int | None, padding: Padding) -> Iterator[Mask]:
    """What masks usually are, plain ones first; a window counts the query itself, or both sides."""
    plain: list[Mask] = [Causal()]
    if window is not None:
        plain += [Causal() & Local(max(0, window - 1))]
        plain += [Local(max(0, size)) for size in (window - 1, window, window // 2)]
    yield from plain
    yield padding
    yield from (mask & padding for mask in plain)


def _placed(allowed: Tensor, queries: int) -> tuple[int, int | None]:
    """Where the first query stands, if the last one sees up to itself; and how many keys matter."""
    keys = allowed.shape[-1]
    if keys <= queries:
        return 0, None
    seen = allowed.flatten(0, 2).any(0).nonzero()
    used = max(int(seen[-1]) + 1 if len(seen) else 0, queries)
    return used - queries, used if used < keys else None


def _padding(allowed: Tensor, batch: int) -> Padding:
    """The run of keys that anyone of a sequence sees."""
    seen = allowed.any(1).expand(batch, -1)
    skip = seen.int().argmax(-1)
    lengths = skip + seen.sum(-1)
    return Padding(lengths, skip if skip.any() else None)
