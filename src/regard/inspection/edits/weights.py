"""Edits of the weights themselves: sharper, hard, flat, or told."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.edits.base import (
    CallSite,
    Edit,
    Indices,
    as_indices,
    check_finite,
    format_call,
)
from regard.inspection.edits.call_terms import (
    attend_without_keys,
    head_mask,
    head_mask_column,
    peak_mask,
    with_mask,
    with_scaled_scores,
)
from regard.ops.grid import slice_axis
from regard.ops.indices import resolve_slice
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.ops.terms import repeat_kv, upcast


def scale_scores(site: str, factor: float, *, heads: Indices | None = None) -> Edit:
    """Sharper for beta above 1, flatter below; beta is one over the temperature.

    w_ij ∝ exp(beta · s_ij), with bias and softcap in s, and the sinks times beta too

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.ones(1, 1), torch.tensor([[0.0], [1.0]]).log1p(), torch.tensor([[0.0], [1]])
    >>> with intercepting(rg.scale_scores("*", 2.0)):  # 1 : 2 becomes 1 : 4
    ...     rg.attend(q, k, v)[0]
    tensor([[0.8000]])
    """
    chosen = None if heads is None else as_indices("heads", heads)
    check_finite("factor", factor, 0)

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        return proceed(with_scaled_scores(call, chosen, factor))

    return Edit(site, format_call("scale_scores", site, factor, heads=heads), act)


def uniform(site: str, *, heads: Indices | None = None) -> Edit:
    """Every key that may be seen counts the same: the limit of no sharpness at all.

    w_ij = 1 / number of keys that i may see (a sink counts as one more)

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.ones(1, 1), torch.tensor([[0.0], [9.0]]), torch.tensor([[0.0], [1.0]])
    >>> with intercepting(rg.uniform("*")):
    ...     rg.attend(q, k, v)[0]
    tensor([[0.5000]])
    """
    chosen = None if heads is None else as_indices("heads", heads)

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        return proceed(with_scaled_scores(call, chosen, 0.0))

    return Edit(site, format_call("uniform", site, heads=heads), act)


def hardmax(site: str, *, heads: Indices | None = None) -> Edit:
    """Every query takes its best key alone, the limit of endless sharpness; ties share.

    w_ij = 1 / number of ties where s_ij is the largest of row i, else 0

    Scores that differ by rounding only are ties. Where a sink beats every key nothing is taken.

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.ones(1, 1), torch.tensor([[0.0], [2], [2]]), torch.tensor([[0.0], [1], [4]])
    >>> with intercepting(rg.hardmax("*")):
    ...     rg.attend(q, k, v)[0]
    tensor([[2.5000]])
    """
    chosen = None if heads is None else as_indices("heads", heads)

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        hard = head_mask(chosen, call)
        best = peak_mask(call, hard)
        call = with_scaled_scores(with_mask(call, best), chosen, 0.0)
        sinks = call.terms.sinks
        if sinks is not None:  # a sink has lost, or the mask has taken all keys away
            sinks = sinks.masked_fill(hard, torch.finfo(sinks.dtype).min)
            call = replace(call, terms=replace(call.terms, sinks=sinks))
        return proceed(call)

    return Edit(site, format_call("hardmax", site, heads=heads), act)


def replace_window(
    site: str,
    rows: slice | int,
    keys: slice | int,
    weights: Float[Tensor, "*batch row column"],
    *,
    heads: Indices | None = None,
    renormalise: bool = True,
) -> Edit:
    """A part of the map as told; the rest of each row shares what is left, as it did before.

    w'_ij = told inside;   outside w'_ij = w_ij · (1 - Σ told) / (1 - Σ replaced)

    With `renormalise=False` the rest stays as it was, and rows need not sum to one. Sinks belong to
    the rest. What is told counts even where the mask says no. The log-sum-exp is left as it was.

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
    >>> with intercepting(rg.replace_window("*", slice(0, 1), slice(0, 1), torch.tensor([[0.25]]))):
    ...     rg.attend(q, k, v)[0]
    tensor([[2.5000]])
    """
    chosen = None if heads is None else as_indices("heads", heads)
    if not isinstance(weights, Tensor) or not weights.is_floating_point() or weights.ndim < 2:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ShapeError(
            f"weights: needs a tensor of numbers, (rows, keys) or more axes, got {got}; "
            "try torch.tensor(…)"
        )
    for name, part in (("rows", rows), ("keys", keys)):
        if not isinstance(part, slice | int):
            raise ShapeError(f"{name}: needs a slice, got {part!r}; try slice(0, 1)")
    if renormalise and bool((weights.sum(-1) > 1 + 1e-6).any()):
        raise ShapeError(
            f"weights: needs rows of at most 1 in sum, got {float(weights.sum(-1).max()):g}; "
            "try renormalise=False"
        )

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        down = resolve_slice(rows, call.q.shape[-2], "rows")
        across = resolve_slice(keys, call.k.shape[-2], "keys")
        out, lse = proceed(call)
        told = _fitted(weights, (*call.q.shape[:-2], len(down), len(across)), lse)
        # recomputed, since a difference would cancel
        rest, rest_lse = attend_without_keys(call, down, across)
        if renormalise:
            share = 1 - told.sum(-1)
        else:
            share = torch.exp(rest_lse - slice_axis(lse, -1, down)).nan_to_num(nan=0.0)
        v = upcast(repeat_kv(slice_axis(call.v, -2, across), call.q)).to(told.dtype)
        new = share[..., None] * rest + told @ v
        part = slice_axis(out, -2, down)
        out = out.clone()
        slice_axis(out, -2, down).copy_(torch.where(head_mask_column(chosen, call), new, part))
        return out, lse

    said = format_call("replace_window", site, rows, keys, tuple(weights.shape), heads=heads)
    return Edit(site, said, act)


def _fitted(told: Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    try:
        return told.to(like.device, like.dtype).expand(shape)
    except RuntimeError:
        raise ShapeError(
            f"weights: needs a shape that fits {shape}, (batch, head, rows, keys), "
            f"got {tuple(told.shape)}"
        ) from None
