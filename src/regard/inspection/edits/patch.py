"""Activation patching: values, keys, queries or outputs from another run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.module_tracker import Caller
from regard.inspection.edits.base import Edit, Indices, as_optional_indices, format_call
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
    """Replace values, keys, queries or head outputs by those of another run (activation patching).

    v → v of the other run;   likewise k, q, or the output of each head before the output projection

    Args:
        site: Glob over the names or paths of attention modules.
        source: A `Sight`, from which each attention takes its own tensors call by call, or a `Site`
            for all attentions that match.
        component: What to replace: values, keys, queries or out.
        heads: Heads to edit; all by default.
        positions: Rows of the component to replace; all by default.

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
    >>> other = rg.make_site(q, k, torch.tensor([[1.0], [9.0]]))
    >>> with intercepting(rg.edit.patch("*", other)):
    ...     rg.attend(q, k, v)[0]
    tensor([[5.]])
    """
    chosen = as_optional_indices("heads", heads)
    rows = as_optional_indices("positions", positions)
    if not isinstance(source, Sight | Site):
        raise LookError(
            f"source: needs a sight or a site of another run, got a {type(source).__name__}; "
            "try with rg.look(model) as sight: model(…)"
        )
    if component not in ("values", "keys", "queries", "out"):
        raise ShapeError(f"component: needs values, keys, queries or out, got {component!r}")

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        other = _find_site(source, caller)
        other.require_tensors()
        new = {"values": other.v, "keys": other.k, "queries": other.q, "out": other.out}[component]
        if component == "out":
            out, lse = proceed(call)
            return _replace_rows(out, new, call, chosen, rows), lse
        if component == "queries":
            return proceed(replace(call, q=_replace_rows(call.q, new, call, chosen, rows)))
        if chosen is not None:  # heads that share a key get copies
            new = repeat_kv(new, other.q)
            call = replace(call, k=repeat_kv(call.k, call.q), v=repeat_kv(call.v, call.q))
        if component == "keys":
            return proceed(replace(call, k=_replace_rows(call.k, new, call, chosen, rows)))
        return proceed(replace(call, v=_replace_rows(call.v, new, call, chosen, rows)))

    origin = source.name if isinstance(source, Site) else "sight"
    description = format_call("patch", site, origin, component, heads=heads, positions=positions)
    return Edit(site, description, apply)


def _find_site(source: Sight | Site, caller: Caller) -> Site:
    if isinstance(source, Site):
        return source
    for site in source:
        if site.path == caller.path and site.call == caller.call:
            return site
    raise LookError(
        f"source: needs call {caller.call} of {caller.name!r}, got {', '.join(source.names)}; "
        "try look(model) without at="
    )


def _replace_rows(
    old: Tensor,
    new: Tensor,
    call: AttentionCall,
    heads: Sequence[int] | None,
    rows: Sequence[int] | None,
) -> Tensor:
    """New at the given rows and heads, old elsewhere."""
    if new.shape[1:] != old.shape[-3:] and old.ndim > 2 or new.shape.numel() != old.shape.numel():
        raise ShapeError(
            f"source: needs the shape {tuple(old.shape)} of this run, got {tuple(new.shape)}; "
            "try an input with as many tokens, or another component="
        )
    count = old.shape[-2]
    edited = index_mask(range(count) if rows is None else rows, count, old)[:, None]
    if heads is not None:
        edited = edited & head_mask_column(heads, call)
    return torch.where(edited, new.reshape(old.shape).to(old), old)
