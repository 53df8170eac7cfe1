"""Edits of head outputs: drop, keep and scale."""

import torch

from regard.inspection.adapters.module_tracker import Caller
from regard.inspection.edits.base import Edit, Indices, as_indices, check_finite, format_call
from regard.inspection.edits.call_terms import head_mask_column
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed


def drop_head(site: str, heads: Indices) -> Edit:
    """Zero the output of some heads, before the output projection (head ablation).

    out_h = 0

    >>> from regard.ops.intercept import intercepting
    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with intercepting(rg.edit.drop_head("*", 1)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([1., 0.])
    """
    chosen = as_indices("heads", heads)

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        dropped = head_mask_column(chosen, call)
        out, lse = proceed(call)
        return out.masked_fill(dropped, 0), lse

    return Edit(site, format_call("drop_head", site, heads), apply)


def keep_heads(site: str, heads: Indices) -> Edit:
    """Zero the output of all heads but some.

    out_h = 0 for every other h

    >>> from regard.ops.intercept import intercepting
    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with intercepting(rg.edit.keep_heads("*", 1)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([0., 2.])
    """
    chosen = as_indices("heads", heads)

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        kept = head_mask_column(chosen, call)
        out, lse = proceed(call)
        return out.masked_fill(~kept, 0), lse

    return Edit(site, format_call("keep_heads", site, heads), apply)


def scale_head(site: str, heads: Indices, factor: float) -> Edit:
    """Multiply the output of some heads by a factor.

    out_h = factor · out_h

    >>> from regard.ops.intercept import intercepting
    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with intercepting(rg.edit.scale_head("*", 1, 0.5)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([1., 1.])
    """
    chosen = as_indices("heads", heads)
    check_finite("factor", factor)

    def apply(call: AttentionCall, proceed: Proceed, caller: Caller) -> AttentionResult:
        scaled = head_mask_column(chosen, call)
        out, lse = proceed(call)
        return torch.where(scaled, factor * out, out), lse

    return Edit(site, format_call("scale_head", site, heads, factor), apply)
