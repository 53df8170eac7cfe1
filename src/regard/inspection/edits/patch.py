"""Activation patching: values, keys, queries or outputs from another run."""

from typing import Literal

from torch import Tensor

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.module_tracker import Caller
from regard.inspection.edits.base import (
    Edit,
    Indices,
    as_optional_heads,
    as_optional_indices,
    edit_rows,
    format_call,
    where_rows,
)
from regard.inspection.edits.registry import register_edit
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.ops.terms import repeat_kv

PatchComponent = Literal["values", "keys", "queries", "out"]
FIELDS = {"values": "v", "keys": "k", "queries": "q"}  # of a call and of a site


@register_edit()
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

    >>> q, k, v = torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
    >>> other = rg.make_site(q, k, torch.tensor([[1.0], [9.0]]))
    >>> with rg.ops.intercept.intercepting(rg.edit.patch("*", other)):
    ...     rg.attend(q, k, v)[0]
    tensor([[5.]])
    """
    chosen = as_optional_heads(heads)
    rows = as_optional_indices("positions", positions)
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

    origin = source.name if isinstance(source, Site) else "sight"
    description = format_call("patch", site, origin, component, heads=heads, positions=positions)
    return Edit(site, description, apply)


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
