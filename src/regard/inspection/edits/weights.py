"""Edits of attention weights and of head outputs."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.adapters.module_tracker import Caller
from regard.inspection.edits.base import (
    Edit,
    Indices,
    Selection,
    as_indices,
    as_selection,
    attend_without_keys,
    check_finite,
    head_mask,
    head_mask_column,
    peak_mask,
    with_mask,
    with_scaled_scores,
)
from regard.inspection.edits.closed_forms import scale_scores_effect
from regard.inspection.edits.registry import Range, register_edit
from regard.ops.grid import slice_axis
from regard.ops.indices import resolve_slice
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.ops.terms import repeat_kv, upcast


@register_edit(
    factor=Range(0, 4, 1), formula="Δh = Σ (w' - w) v,  w' ∝ exp(β s)", effect=scale_scores_effect
)
def scale_scores(site: str, factor: float, *, heads: Selection = None) -> Edit:
    """Multiply all scores by a factor, the inverse of a temperature: above 1 is sharper.

    w_ij ∝ exp(factor · s_ij), s with bias and softcap; sinks are multiplied too

    >>> q, k, v = torch.ones(1, 1), torch.tensor([[0.0], [1.0]]).log1p(), torch.tensor([[0.0], [1]])
    >>> with rg.ops.intercept.intercepting(rg.edit.scale_scores("*", 2.0)):  # 1 : 2 becomes 1 : 4
    ...     rg.attend(q, k, v)[0]
    tensor([[0.8000]])
    """
    chosen = as_selection("heads", heads)
    check_finite("factor", factor, 0)

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        return proceed(with_scaled_scores(call, chosen, factor))

    return Edit(site, "", apply)


@register_edit(
    formula="Δh = v̄ - h,  v̄ the mean of the visible values",
    effect=lambda site: scale_scores_effect(site, 0.0),
)
def uniform(site: str, *, heads: Selection = None) -> Edit:
    """Give all visible keys equal weight.

    w_ij = 1 / number of keys visible to i (a sink counts as one more)

    >>> q, k, v = torch.ones(1, 1), torch.tensor([[0.0], [9.0]]), torch.tensor([[0.0], [1.0]])
    >>> with rg.ops.intercept.intercepting(rg.edit.uniform("*")):
    ...     rg.attend(q, k, v)[0]
    tensor([[0.5000]])
    """
    return scale_scores(site, 0.0, heads=heads)


@register_edit()
def hardmax(site: str, *, heads: Selection = None) -> Edit:
    """Give all weight of each query to its key with the largest score; ties share it.

    w_ij = 1 / number of ties where s_ij is the largest of row i, else 0

    Scores that differ by rounding only are ties. If a sink has the largest score, the output is 0.

    >>> q, k, v = torch.ones(1, 1), torch.tensor([[0.0], [2], [2]]), torch.tensor([[0.0], [1], [4]])
    >>> with rg.ops.intercept.intercepting(rg.edit.hardmax("*")):
    ...     rg.attend(q, k, v)[0]
    tensor([[2.5000]])
    """
    chosen = as_selection("heads", heads)

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        edited = head_mask(chosen, call)
        peaks = peak_mask(call, edited)
        call = with_scaled_scores(with_mask(call, peaks), chosen, 0.0)
        sinks = call.terms.sinks
        if sinks is not None:  # the sink lost, or the mask hides all keys
            sinks = sinks.masked_fill(edited, torch.finfo(sinks.dtype).min)
            call = replace(call, terms=replace(call.terms, sinks=sinks))
        return proceed(call)

    return Edit(site, "", apply)


@register_edit()
def replace_window(
    site: str, rows: slice | int, keys: slice | int, weights: Float[Tensor, "*batch row column"],
    *, heads: Selection = None, renormalise: bool = True,
) -> Edit:  # fmt: skip
    """Replace a rectangle of the attention map by given weights.

    w'_ij = weights inside;   outside w'_ij = w_ij · (1 - Σ weights) / (1 - Σ replaced)

    Sinks belong to the outside. Given weights apply to masked keys too. lse does not change.

    Args:
        site: Glob over the names or paths of attention modules.
        rows: Queries of the rectangle.
        keys: Keys of the rectangle.
        weights: The new weights; broadcast to (batch, head, rows, keys).
        heads: Heads to edit; all by default.
        renormalise: Rescale the rest of each row, so that it sums to 1; else it stays.

    >>> q, k, v = torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
    >>> edit = rg.edit.replace_window("*", 0, 0, torch.tensor([[0.25]]))
    >>> with rg.ops.intercept.intercepting(edit):
    ...     rg.attend(q, k, v)[0]
    tensor([[2.5000]])
    """
    chosen = as_selection("heads", heads)
    if not isinstance(weights, Tensor) or not weights.is_floating_point() or weights.ndim < 2:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ShapeError(
            f"weights: needs a float tensor, (rows, keys) or more axes, got {got}; "
            "try torch.tensor(…)"
        )
    for name, span in (("rows", rows), ("keys", keys)):
        if not isinstance(span, slice | int):
            raise ShapeError(f"{name}: needs a slice, got {span!r}; try slice(0, 1)")
    if renormalise and bool((weights.sum(-1) > 1 + 1e-6).any()):
        raise ShapeError(
            f"weights: needs rows of at most 1 in sum, got {float(weights.sum(-1).max()):g}; "
            "try renormalise=False"
        )

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        row_range = resolve_slice(rows, call.q.shape[-2], "rows")
        key_range = resolve_slice(keys, call.k.shape[-2], "keys")
        out, lse = proceed(call)
        shape = (*call.q.shape[:-2], len(row_range), len(key_range))
        try:
            w = weights.to(lse.device, lse.dtype).expand(shape)
        except RuntimeError:
            raise ShapeError(
                f"weights: needs a shape that broadcasts to {shape}, (batch, head, rows, keys), "
                f"got {tuple(weights.shape)}"
            ) from None
        # the rest is recomputed: subtracting from the output would cancel
        rest, rest_lse = attend_without_keys(call, row_range, key_range)
        if renormalise:
            share = 1 - w.sum(-1)
        else:
            share = torch.exp(rest_lse - slice_axis(lse, -1, row_range)).nan_to_num(nan=0.0)
        v = upcast(repeat_kv(slice_axis(call.v, -2, key_range), call.q)).to(w.dtype)
        new = share[..., None] * rest + w @ v
        out = out.clone()
        old = slice_axis(out, -2, row_range)
        old.copy_(torch.where(head_mask_column(chosen, call), new, old))
        return out, lse

    return Edit(site, "", apply)


@register_edit()
def drop_head(site: str, heads: Indices) -> Edit:
    """Zero the output of some heads, before the output projection (head ablation).

    out_h = 0

    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with rg.ops.intercept.intercepting(rg.edit.drop_head("*", 1)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([1., 0.])
    """
    return _edit_output(site, heads, lambda out, mask: out.masked_fill(mask, 0))


@register_edit()
def keep_heads(site: str, heads: Indices) -> Edit:
    """Zero the output of all heads but some.

    out_h = 0 for every other h

    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with rg.ops.intercept.intercepting(rg.edit.keep_heads("*", 1)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([0., 2.])
    """
    return _edit_output(site, heads, lambda out, mask: out.masked_fill(~mask, 0))


@register_edit(factor=Range(-2, 4, 1))
def scale_head(site: str, heads: Indices, factor: float) -> Edit:
    """Multiply the output of some heads by a factor.

    out_h = factor · out_h

    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with rg.ops.intercept.intercepting(rg.edit.scale_head("*", 1, 0.5)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([1., 1.])
    """
    check_finite("factor", factor)
    return _edit_output(site, heads, lambda out, mask: torch.where(mask, factor * out, out))


def _edit_output(site: str, heads: Indices, change: Callable[[Tensor, Tensor], Tensor]) -> Edit:
    """An edit of the output; `change` gets it with a mask of the heads."""
    chosen = as_indices("heads", heads)

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        mask = head_mask_column(chosen, call)
        out, lse = proceed(call)
        return change(out, mask), lse

    return Edit(site, "", apply)
