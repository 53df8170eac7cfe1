"""Edits of keys and queries: drop, scale, add noise, and patch them from another run."""

import zlib
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.module_tracker import Caller
from regard.inspection.edits.base import (
    Edit,
    EditFunction,
    Indices,
    KeyDropMask,
    Selection,
    as_indices,
    as_selection,
    check_finite,
    edit_rows,
    head_mask,
    index_mask,
    where_rows,
    with_mask,
)
from regard.inspection.edits.closed_forms import OutputChange, drop_key_effect, scale_key_effect
from regard.inspection.edits.registry import Range, register_edit
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.ops.terms import repeat_kv

NOISE_BLOCK = 64  # positions per random generator
FIELDS = {"values": "v", "keys": "k", "queries": "q"}  # of a call and of a site


@register_edit(formula="Δh = W / (1 - W) · (h - v̄)", effect=drop_key_effect)
def drop_key(
    site: str, keys: Indices, *, heads: Selection = None, queries: Selection = None
) -> Edit:
    """Mask some keys, for some heads and query positions or for all.

    w_ij = 0 for these j;   the others grow to w_ij / (1 - Σ dropped)

    A query position is the row plus the offset. A query without visible keys gets zeros. One key
    and one query: attention knockout of a single edge.

    Args:
        site: Glob over the names or paths of attention modules.
        keys: Keys to mask.
        heads: Heads to edit; all by default.
        queries: Query positions to edit; all by default.

    >>> q, k, v = torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
    >>> with rg.ops.intercept.intercepting(rg.edit.drop_key("*", 0, queries=1)):
    ...     rg.attend(q, k, v)[0].flatten()
    tensor([2., 3.])
    """
    dropped = as_indices("keys", keys)
    chosen = as_selection("heads", heads)
    positions = as_selection("queries", queries)

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        mask = KeyDropMask(
            index_mask(dropped, call.k.shape[-2], call.k),
            head_mask(chosen, call),
            index_mask(positions, call.terms.offset + call.q.shape[-2], call.k),
        )
        return proceed(with_mask(call, mask))

    return Edit(site, "", apply, max(dropped))


def _scale_key_effect(site: Site, keys: Indices, alpha: float) -> OutputChange | None:
    """The formula is that of one key."""
    scaled = as_indices("keys", keys)
    return scale_key_effect(site, scaled[0], alpha) if len(scaled) == 1 else None


@register_edit(
    alpha=Range(-2, 4, 1), formula="Δh = (w' - w) / (1 - w) · (v - h)", effect=_scale_key_effect
)
def scale_key(site: str, keys: Indices, alpha: float, *, heads: Selection = None) -> Edit:
    """Multiply some keys by alpha, for some heads or for all.

    k_j → alpha · k_j, so scale · q_i · k_j → alpha · scale · q_i · k_j, before softcap and bias

    >>> q, k, v = torch.tensor([[1.0]]), torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [0.0]])
    >>> with rg.ops.intercept.intercepting(rg.edit.scale_key("*", 0, 0.0)):
    ...     rg.attend(q, k, v)[0]
    tensor([[0.5000]])
    """
    scaled = as_indices("keys", keys)
    chosen = as_selection("heads", heads)
    check_finite("alpha", alpha)

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        return proceed(edit_rows(call, "k", lambda k: alpha * k, scaled, chosen))

    return Edit(site, "", apply, max(scaled))


@register_edit(sigma=Range(0, 4, 0))
def jitter_key(
    site: str, sigma: float, *, keys: Selection = None, heads: Selection = None, seed: int = 0
) -> Edit:
    """Add Gaussian noise to some keys, or to all.

    k_j → k_j + sigma · ε,   ε ~ N(0, 1), fixed by seed, module and position

    Args:
        site: Glob over the names or paths of attention modules.
        sigma: Standard deviation of the noise.
        keys: Keys to edit; all by default.
        heads: Query heads to edit; with None, heads that share a key share its noise.
        seed: Random seed.

    >>> q, k, v = torch.tensor([[1.0]]), torch.zeros(2, 1), torch.tensor([[1.0], [0.0]])
    >>> with rg.ops.intercept.intercepting(rg.edit.jitter_key("*", 0.0)):
    ...     rg.attend(q, k, v)[0]
    tensor([[0.5000]])
    """
    rows = as_selection("keys", keys)
    last_key = -1 if rows is None else max(rows)
    return Edit(site, "", _add_noise("key", sigma, rows, heads, seed), last_key)


@register_edit(sigma=Range(0, 4, 0))
def jitter_query(
    site: str, sigma: float, *, queries: Selection = None, heads: Selection = None, seed: int = 0
) -> Edit:
    """Add Gaussian noise to some queries, or to all; biases that depend on the query see it too.

    q_i → q_i + sigma · ε,   ε as in `jitter_key`; all queries and heads by default

    >>> q, k, v = torch.tensor([[1.0]]), torch.zeros(2, 1), torch.tensor([[1.0], [0.0]])
    >>> with rg.ops.intercept.intercepting(rg.edit.jitter_query("*", 9.0)):  # equal keys: no effect
    ...     rg.attend(q, k, v)[0]
    tensor([[0.5000]])
    """
    rows = as_selection("queries", queries)
    return Edit(site, "", _add_noise("query", sigma, rows, heads, seed))


def _add_noise(
    name: str, sigma: float, rows: Sequence[int] | None, heads: Selection, seed: int
) -> EditFunction:
    """Noise on the keys or queries at some positions."""
    chosen = as_selection("heads", heads)
    check_finite("sigma", sigma, 0)

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        first = call.terms.offset if name == "query" else 0

        def change(x: Tensor) -> Tensor:
            return x + sigma * _position_noise(x, f"{seed} {name} {caller.path}", first)

        return proceed(edit_rows(call, name[0], change, rows, chosen, first))

    return apply


def _position_noise(like: Tensor, name: str, first: int) -> Tensor:
    """Normal noise of positions `first` and after: the same at every generation step and device."""
    *batch, count, head_dim = like.shape
    blocks = [torch.zeros(0, *batch, head_dim)]
    for block in range(first // NOISE_BLOCK, -(-(first + count) // NOISE_BLOCK)):
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {block}".encode()))
        blocks.append(torch.randn(NOISE_BLOCK, *batch, head_dim, generator=generator))
    start = first % NOISE_BLOCK
    return torch.cat(blocks)[start : start + count].movedim(0, -2).to(like)


PatchComponent = Literal["values", "keys", "queries", "out"]


@register_edit()
def patch(
    site: str,
    source: Sight | Site,
    component: PatchComponent = "values",
    *,
    heads: Selection = None,
    positions: Selection = None,
) -> Edit:
    """Replace values, keys, queries or head outputs by those of another run (activation patching).

    v → v of the other run;   likewise k, q, or the output of each head before the output projection

    Args:
        site: Glob over the names or paths of attention modules.
        source: A `Sight`, from which each attention takes its tensors call by call, or a `Site`
            for all attentions that match.
        component: What to replace: values, keys, queries or out.
        heads: Heads to edit; all by default.
        positions: Rows of the component to replace; all by default.

    >>> q, k, v = torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
    >>> other = rg.make_site(q, k, torch.tensor([[1.0], [9.0]]))
    >>> with rg.ops.intercept.intercepting(rg.edit.patch("*", other)):
    ...     rg.attend(q, k, v)[0]
    tensor([[5.]])
    """
    chosen = as_selection("heads", heads)
    rows = as_selection("positions", positions)
    if not isinstance(source, Sight | Site):
        raise LookError(
            f"source: needs a sight or a site of another run, got a {type(source).__name__}; "
            "try with rg.look(model) as sight: model(…)"
        )
    if component not in ("out", *FIELDS):
        raise ShapeError(f"component: needs values, keys, queries or out, got {component!r}")

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        other = _find_site(source, caller)
        other.require_tensors()
        if component == "out":
            out, lse = proceed(call)
            return where_rows(call, out, _reshape(other.out, out), rows, chosen), lse
        name = FIELDS[component]
        new = getattr(other, name)
        if chosen is not None and name != "q":
            new = repeat_kv(new, other.q)
        return proceed(edit_rows(call, name, lambda old: _reshape(new, old), rows, chosen))

    return Edit(site, "", apply)


def _find_site(source: Sight | Site, caller: Caller) -> Site:
    if isinstance(source, Site):
        return source
    for site in source:
        if (site.path, site.call) == (caller.path, caller.call):
            return site
    raise LookError(
        f"source: needs call {caller.call} of {caller.name!r}, got {', '.join(source.names)}; "
        "try look(model) without at="
    )


def _reshape(new: Tensor, old: Tensor) -> Tensor:
    """New in the shape of old, which may lack the batch or head axis."""
    if new.shape[1:] != old.shape[-3:] and old.ndim > 2 or new.shape.numel() != old.shape.numel():
        raise ShapeError(
            f"source: needs the shape {tuple(old.shape)} of this run, got {tuple(new.shape)}; "
            "try an input with as many tokens, or another component="
        )
    return new.reshape(old.shape).to(old)
