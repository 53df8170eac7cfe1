"""Attention masks given as tensors, parsed back into causal, local and padding masks."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.ops import biases, masks
from regard.ops.grid import Grid
from regard.ops.masks import Causal, Local, Mask, Padding

HIDDEN_SCORE = -9999.0  # models add -10000, -1e30 or the lowest float: in float32 the weight is 0
MAX_PARSED_NUMBERS = 1 << 28  # a larger mask stays a tensor: comparing it would take too long


@dataclass(frozen=True)
class ParsedMask:
    """A mask tensor as structured terms of attention."""

    mask: Mask | None = None
    bias: biases.Bias | None = None
    offset: int = 0
    used_keys: int | None = None  # no query sees later keys: unused capacity of a cache


def parse_attention_mask(
    mask: Tensor, q: Tensor, k: Tensor, *, same_sequence: bool = True, window: int | None = None
) -> ParsedMask:
    """Recognise causal, local and padding masks, so that no n × n mask is stored.

    Other masks stay dense. `mask` is (query, key), (batch, key), or broadcasts to (batch, head,
    query, key). A bool mask is True where a query may attend to a key. A float mask is added to the
    scores; its -inf entries become a mask. With `same_sequence` the queries are the last positions
    of the keys' sequence. `window` is the width of the sliding window that the model declares.

    >>> q, mask = torch.zeros(1, 1, 3, 2), torch.ones(3, 3, dtype=torch.bool).tril()
    >>> parse_attention_mask(mask, q, q).mask
    Causal()
    """
    if mask.ndim == 2 and len(mask) == q.shape[0] and len(mask) not in (1, q.shape[-2]):
        mask = mask[:, None, None, :]  # (batch, key); ambiguous shapes are (query, key)
    mask = mask[..., : k.shape[-2]]
    if not mask.is_floating_point():
        return _structure(mask.bool(), q, k, same_sequence, window)
    hidden = mask == -torch.inf
    unmasked = ParsedMask(offset=max(0, k.shape[-2] - q.shape[-2]) if same_sequence else 0)
    parsed = _structure(~hidden, q, k, same_sequence, window) if hidden.any() else unmasked
    added = mask.masked_fill(hidden, 0)
    bias = biases.DenseBias(added) if mask.requires_grad or added.any() else None
    return replace(parsed, bias=bias)


def trim_unused_keys(x: Tensor, used_keys: int | None) -> Tensor:
    """Copy the keys in use; a static cache is overwritten in place at the next step.

    >>> trim_unused_keys(torch.arange(4.0).view(1, 1, 4, 1), 2).flatten()
    tensor([0., 1.])
    """
    return x if used_keys is None or x.shape[-2] == used_keys else x[..., :used_keys, :].clone()


def chosen_keys(module: Any, kwargs: dict[str, Any], keys: int) -> Tensor | None:
    """Where an indexer lets a query attend, (batch, 1 or head, query, key); None without one.

    Takes what it chose from the arguments of an attention: `indices` of keys, (batch, query, top),
    as in DeepSeek V3.2, or `block_indices`, (batch, group, query, top), -1 for none, as in MiniMax.
    """
    indices, blocks = (kwargs.pop(name, None) for name in ("indices", "block_indices"))
    if blocks is not None:
        chosen, size = blocks, module.indexer.block_size
    elif indices is not None:
        chosen, size = indices[:, None], 1
    else:
        return None
    chosen, count = chosen.long(), -(-keys // size)
    allowed = torch.zeros(*chosen.shape[:-1], count + 1, dtype=torch.bool, device=chosen.device)
    allowed.scatter_(-1, chosen.masked_fill(chosen < 0, count), True)
    allowed = allowed[..., :count].repeat_interleave(size, -1)[..., :keys]
    if blocks is None:
        return allowed
    heads = module.config.num_attention_heads
    return allowed.repeat_interleave(heads // allowed.shape[1], 1)


def hide_others(mask: Tensor | None, chosen: Tensor | None, query: Tensor) -> Tensor | None:
    """The mask for SDPA or eager attention without the keys that an indexer did not choose."""
    if chosen is None:
        return mask
    if mask is not None and chosen.shape[1] == 1:
        if mask.dtype == torch.bool:
            return mask & chosen
        return mask.masked_fill(~chosen, torch.finfo(query.dtype).min)
    queries, keys = chosen.shape[-2:]
    if mask is None:
        visible = torch.ones(queries, keys, dtype=torch.bool, device=chosen.device)
        visible = visible.tril(keys - queries)
    else:
        visible = mask if mask.dtype == torch.bool else mask == 0
    hidden = ~(visible & chosen)
    zeros = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device)
    return zeros.masked_fill(hidden, torch.finfo(query.dtype).min)


def _structure(allowed: Tensor, q: Tensor, k: Tensor, same: bool, window: int | None) -> ParsedMask:
    queries, keys = q.shape[-2], k.shape[-2]
    offset = max(0, keys - queries) if same else 0
    allowed = allowed.expand(*allowed.shape[:-2], queries, keys)
    if q.ndim > 4 or allowed.ndim > 4 or allowed.numel() > MAX_PARSED_NUMBERS:
        return ParsedMask(masks.DenseMask(allowed), None, offset)
    wide = allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape))
    if not wide.numel() or wide.all():
        return ParsedMask(offset=offset)
    offset, used = _offset_and_used_keys(wide, queries) if same else (0, None)
    if wide.shape[1] == 1 or (wide == wide[:, :1]).all():
        wide = wide[:, :1]
        for mask in _candidates(window, _padding(wide[:, 0], q.shape[0])):
            grid = Grid((q.shape[0], 1), range(queries), range(keys), offset, q.device)
            tile = mask.tile(grid)
            if torch.equal(*torch.broadcast_tensors(tile, wide)):
                return ParsedMask(mask, None, offset, used)
    return ParsedMask(masks.DenseMask(allowed), None, offset, used)


def _candidates(window: int | None, padding: Padding) -> list[Mask]:
    """Common masks, simplest first; libraries count a window with or without the query itself."""
    simple: list[Mask] = [Causal()]
    if window is not None:
        local = [Local(max(0, size)) for size in (window - 1, window, window // 2)]
        simple += [Causal() & local[0], *local]
    return [*simple, padding, *(mask & padding for mask in simple)]


def _offset_and_used_keys(allowed: Tensor, queries: int) -> tuple[int, int | None]:
    """The position of the first query, given that the last one sees itself; and the used keys."""
    keys = allowed.shape[-1]
    if keys <= queries:
        return 0, None
    visible = allowed.flatten(0, 2).any(0).nonzero()
    used = max(int(visible[-1]) + 1 if len(visible) else 0, queries)
    return used - queries, used if used < keys else None


def _padding(allowed: Tensor, batch: int) -> Padding:
    """The contiguous run of keys that some query of each sequence sees."""
    visible = allowed.any(1).expand(batch, -1)
    left = visible.int().argmax(-1)
    lengths = left + visible.sum(-1)
    return Padding(lengths, left if left.any() else None)
