"""Edits that bring numbers from another run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from regard.errors import LookError, ShapeError
from regard.inspection.edits.base import CallSite, Edit, Indices, as_indices, format_call
from regard.inspection.edits.call_terms import head_mask_column, index_mask
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.ops.terms import repeat_kv

PatchComponent = Literal["values", "keys", "queries", "out"]


def patch(
    site: str,
    source: Sight | Site,
    component: PatchComponent = "values",
    *,
    heads: Indices | None = None,
    positions: Indices | None = None,
) -> Edit:
    """Values (or keys, queries, outputs) from another run, at the same attention or a given one.

    v → v of the other run;   likewise k, q, or the output of each head before they are mixed

    From a `Sight` each attention takes its own of the other run, call by call; a `Site` serves all
    that fit. `places` are rows of what is patched, all when not given.

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
    >>> other = rg.make_site(q, k, torch.tensor([[1.0], [9.0]]))
    >>> with intercepting(rg.patch("*", other)):
    ...     rg.attend(q, k, v)[0]
    tensor([[5.]])
    """
    chosen = None if heads is None else as_indices("heads", heads)
    rows = None if positions is None else as_indices("positions", positions)
    if not isinstance(source, Sight | Site):
        raise LookError(
            f"source: needs a sight or a site of another run, got a {type(source).__name__}; "
            "try with rg.look(model) as sight: model(…)"
        )
    if component not in ("values", "keys", "queries", "out"):
        raise ShapeError(f"component: needs values, keys, queries or out, got {component!r}")

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        other = _site_for(source, place)
        other.require_tensors()
        new = {"values": other.v, "keys": other.k, "queries": other.q, "out": other.out}[component]
        if component == "out":
            out, lse = proceed(call)
            return _mixed(out, new, call, chosen, rows), lse
        if component == "queries":
            return proceed(replace(call, q=_mixed(call.q, new, call, chosen, rows)))
        if chosen is not None:  # heads that share a key part here
            new = repeat_kv(new, other.q)
            call = replace(call, k=repeat_kv(call.k, call.q), v=repeat_kv(call.v, call.q))
        if component == "keys":
            return proceed(replace(call, k=_mixed(call.k, new, call, chosen, rows)))
        return proceed(replace(call, v=_mixed(call.v, new, call, chosen, rows)))

    origin = source.name if isinstance(source, Site) else "sight"
    return Edit(
        site, format_call("patch", site, origin, component, heads=heads, positions=positions), act
    )


def _site_for(source: Sight | Site, place: CallSite) -> Site:
    if isinstance(source, Site):
        return source
    for site in source:
        if site.path == place.path and site.call == place.call:
            return site
    raise LookError(
        f"source: needs call {place.call} of {place.name!r}, got {', '.join(source.names)}; "
        "try a look at it without at="
    )


def _mixed(
    old: Tensor,
    new: Tensor,
    call: AttentionCall,
    heads: Sequence[int] | None,
    rows: Sequence[int] | None,
) -> Tensor:
    """New at the chosen rows and heads, old elsewhere."""
    if new.shape[1:] != old.shape[-3:] and old.ndim > 2 or new.shape.numel() != old.shape.numel():
        raise ShapeError(
            f"source: needs the shape {tuple(old.shape)} of this run, got {tuple(new.shape)}; "
            "try an input of as many tokens, or another component="
        )
    count = old.shape[-2]
    here = index_mask(range(count) if rows is None else rows, count, old)[:, None]
    if heads is not None:
        here = here & head_mask_column(heads, call)
    return torch.where(here, new.reshape(old.shape).to(old), old)
