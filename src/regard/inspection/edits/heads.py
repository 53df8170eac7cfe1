"""Edits of head outputs: drop, keep and scale."""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.inspection.adapters.module_tracker import Caller
from regard.inspection.edits.base import Edit, Indices, as_indices, check_finite, format_call
from regard.inspection.edits.call_terms import head_mask_column
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed


def drop_head(site: str, heads: Indices) -> Edit:
    """Zero the output of some heads, before the output projection (head ablation).

    out_h = 0

    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with rg.ops.intercept.intercepting(rg.edit.drop_head("*", 1)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([1., 0.])
    """
    description = format_call("drop_head", site, heads)
    return _edit_output(site, heads, description, lambda out, mask: out.masked_fill(mask, 0))


def keep_heads(site: str, heads: Indices) -> Edit:
    """Zero the output of all heads but some.

    out_h = 0 for every other h

    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with rg.ops.intercept.intercepting(rg.edit.keep_heads("*", 1)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([0., 2.])
    """
    description = format_call("keep_heads", site, heads)
    return _edit_output(site, heads, description, lambda out, mask: out.masked_fill(~mask, 0))


def scale_head(site: str, heads: Indices, factor: float) -> Edit:
    """Multiply the output of some heads by a factor.

    out_h = factor · out_h

    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with rg.ops.intercept.intercepting(rg.edit.scale_head("*", 1, 0.5)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([1., 1.])
    """
    check_finite("factor", factor)
    description = format_call("scale_head", site, heads, factor)
    return _edit_output(
        site, heads, description, lambda out, mask: torch.where(mask, factor * out, out)
    )


def _edit_output(
    site: str, heads: Indices, description: str, change: Callable[[Tensor, Tensor], Tensor]
) -> Edit:
    """An edit of the output; `change` gets it with a mask of the heads."""
    chosen = as_indices("heads", heads)

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        mask = head_mask_column(chosen, call)
        out, lse = proceed(call)
        return change(out, mask), lse

    return Edit(site, description, apply)
