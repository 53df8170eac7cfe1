"""Edits of what is compared: keys made longer, keys and queries shaken."""

import zlib
from dataclasses import replace

import torch
from torch import Tensor

from regard.inspection.edits.base import (
    CallSite,
    Edit,
    Indices,
    as_indices,
    check_finite,
    format_call,
)
from regard.inspection.edits.call_terms import head_mask_column, index_mask
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.ops.terms import repeat_kv

NOISE_BLOCK = 64  # positions whose noise is drawn together


def scale_key(site: str, keys: Indices, alpha: float, *, heads: Indices | None = None) -> Edit:
    """Some keys become alpha times as long, for some heads or for all.

    k_j → alpha · k_j, so scale · q_i · k_j → alpha · scale · q_i · k_j, before softcap and bias

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.tensor([[1.0]]), torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [0.0]])
    >>> with intercepting(rg.scale_key("*", 0, 0.0)):
    ...     rg.attend(q, k, v)[0]
    tensor([[0.5000]])
    """
    scaled = as_indices("keys", keys)
    chosen = None if heads is None else as_indices("heads", heads)
    check_finite("alpha", alpha)

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        call = _of_heads(call, chosen)
        here = index_mask(scaled, call.k.shape[-2], call.k)[:, None]
        return proceed(replace(call, k=_where(here, chosen, call, alpha * call.k, call.k)))

    return Edit(site, format_call("scale_key", site, keys, alpha, heads=heads), act, max(scaled))


def jitter_key(
    site: str,
    sigma: float,
    *,
    keys: Indices | None = None,
    heads: Indices | None = None,
    seed: int = 0,
) -> Edit:
    """Noise on some keys, or on all: how much rests on their exact place?

    k_j → k_j + sigma · ε,   ε ~ N(0, 1), the same for the same seed, module and position

    Heads that share a key share its noise, unless `heads` names some of them.

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.tensor([[1.0]]), torch.zeros(2, 1), torch.tensor([[1.0], [0.0]])
    >>> with intercepting(rg.jitter_key("*", 0.0)):
    ...     rg.attend(q, k, v)[0]
    tensor([[0.5000]])
    """
    shaken = None if keys is None else as_indices("keys", keys)
    chosen = None if heads is None else as_indices("heads", heads)
    check_finite("sigma", sigma, 0)

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        call = _of_heads(call, chosen)
        count = call.k.shape[-2]
        here = index_mask(range(count) if shaken is None else shaken, count, call.k)[:, None]
        moved = call.k + sigma * position_noise(call.k, f"{seed} key {place.path}")
        return proceed(replace(call, k=_where(here, chosen, call, moved, call.k)))

    said = format_call("jitter_key", site, sigma, keys=keys, heads=heads, seed=seed)
    return Edit(site, said, act, -1 if shaken is None else max(shaken))


def jitter_query(
    site: str,
    sigma: float,
    *,
    queries: Indices | None = None,
    heads: Indices | None = None,
    seed: int = 0,
) -> Edit:
    """Noise on some queries (positions), or on all; a bias that asks the query feels it too.

    q_i → q_i + sigma · ε,   ε ~ N(0, 1), the same for the same seed, module and position

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.tensor([[1.0]]), torch.zeros(2, 1), torch.tensor([[1.0], [0.0]])
    >>> with intercepting(rg.jitter_query("*", 9.0)):  # keys that are all alike do not care
    ...     rg.attend(q, k, v)[0]
    tensor([[0.5000]])
    """
    shaken = None if queries is None else as_indices("queries", queries)
    chosen = None if heads is None else as_indices("heads", heads)
    check_finite("sigma", sigma, 0)

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        first, count = call.terms.offset, call.q.shape[-2]
        end = first + count
        here = index_mask(range(end) if shaken is None else shaken, end, call.q)[first:, None]
        moved = call.q + sigma * position_noise(call.q, f"{seed} query {place.path}", first)
        return proceed(replace(call, q=_where(here, chosen, call, moved, call.q)))

    said = format_call("jitter_query", site, sigma, queries=queries, heads=heads, seed=seed)
    return Edit(site, said, act)


def position_noise(like: Tensor, name: str, first: int = 0) -> Tensor:
    """Standard normal numbers for positions `first` and after, decided by name and position alone.

    They are drawn a block of positions at a time, so that a key has the same noise at every step of
    a generation, however many came after it, and on every device.
    """
    *batch, count, head_dim = like.shape
    drawn = []
    for block in range(first // NOISE_BLOCK, -(-(first + count) // NOISE_BLOCK)):
        dice = torch.Generator().manual_seed(zlib.crc32(f"{name} {block}".encode()))
        drawn.append(torch.randn(NOISE_BLOCK, *batch, head_dim, generator=dice))
    start = first % NOISE_BLOCK
    whole = torch.cat(drawn)[start : start + count] if drawn else torch.zeros(0, *batch, head_dim)
    return whole.movedim(0, -2).to(like)


def _of_heads(call: AttentionCall, heads: tuple[int, ...] | None) -> AttentionCall:
    """Keys of their own for every head, where only some are meant."""
    if heads is None:
        return call
    return replace(call, k=repeat_kv(call.k, call.q), v=repeat_kv(call.v, call.q))


def _where(
    here: Tensor, heads: tuple[int, ...] | None, call: AttentionCall, new: Tensor, old: Tensor
) -> Tensor:
    """New at the positions `here` of the chosen heads, old elsewhere."""
    if heads is not None:
        here = here & head_mask_column(heads, call)
    return torch.where(here, new.to(old.dtype), old)
