"""The public attention function: one signature, several backends.

    out, lse = rg.attend(q, k, v, mask=rg.Causal())  # (…, head, query, value), (…, head, query)
    w = rg.window(q, k, lse, rows=slice(0, 8), mask=rg.Causal())  # any weights, when needed

Every call passes `ops.intercept`, where recorders and edits register.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import BackendError, ShapeError
from regard.ops.attend import flex, fused, reference
from regard.ops.autocast import cast_to_autocast, is_autocast
from regard.ops.intercept import AttentionCall, AttentionResult, dispatch, is_intercepted
from regard.ops.kernels import cannot_run
from regard.ops.masks import Mask
from regard.ops.maybe_none import MaybeNone
from regard.ops.terms import TermOptions, make_terms

AttendBackend = Literal["auto", "reference", "tiled", "fused", "flex"]

MAX_REFERENCE_SCORES = 1 << 22  # up to this many scores the whole map is cheaper than streaming it


def attend(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    v: Float[Tensor, "*keys_batch key value"],
    *,
    need_lse: bool = True,
    dropout: float = 0.0,
    backend: AttendBackend = "auto",
    **terms: Unpack[TermOptions],
) -> tuple[Float[Tensor, "*batch query value"], Float[Tensor, "*batch query"] | MaybeNone]:
    """Scaled dot-product attention: the output, and the log-sum-exp of each query's scores.

    out_i = Σ_j exp(s_ij - lse_i) v_j,   lse_i = log Σ_j exp(s_ij),   s_ij = scale · q_i · k_j + …

    With q, k and lse any weight can be recomputed on demand as exp(s_ij - lse_i). A query without
    visible keys gets zeros and lse = -inf.

    Args:
        q: queries; heads are the last leading axis.
        k: keys; q may have a multiple of their heads (grouped-query attention).
        v: values, one per key.
        need_lse: False returns None for lse, and lets torch's SDPA choose its kernel on a GPU.
        dropout: probability of dropping a weight.
        backend: a backend requested by name runs or raises; there is no silent fallback.
        **terms: mask, bias, scale, softcap, sinks, score, offset; see `TermOptions`.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(4, 2), torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    >>> attend(q, k, v)
    (tensor([[3.]]), tensor([1.3863]))
    """
    output_only, square = not need_lse and backend == "auto", q.shape[-2:-1] == k.shape[-2:-1]
    if (
        output_only
        and fused.can_use_sdpa(q, k, v, dropout)
        and fused.is_sdpa_mask(terms, square=square, masks=2 if q.is_cuda else 1)
        and not is_intercepted()
    ):
        mask = terms.get("mask")
        assert mask is None or isinstance(mask, Mask)
        return fused.attend_by_sdpa(q, k, v, mask, terms.get("scale"), dropout), None
    _check_values(q, k, v, dropout)
    checked = make_terms(q, k, **terms)
    if checked.score is None and is_autocast(q):
        # cast once, as SDPA does, so that recording changes no bit of a model's output
        q, k, v = cast_to_autocast(q, k, v)
        with torch.autocast(q.device.type, enabled=False):
            call = AttentionCall(q, k, v, checked, dropout, backend)
            out, lse = dispatch(call, compute_attention)
    else:
        out, lse = dispatch(AttentionCall(q, k, v, checked, dropout, backend), compute_attention)
    return out, lse if need_lse else None


def compute_attention(call: AttentionCall) -> AttentionResult:
    """Compute a call with its backend, without interceptors."""
    run = _fastest(call) if call.backend == "auto" else _requested(call)
    out, lse = run(call)
    if call.empty_out is None:
        return out, lse
    return torch.where(lse[..., None] == -torch.inf, call.empty_out.to(out.dtype), out), lse


def dispatch_output(call: AttentionCall, out: Tensor, lse: Tensor) -> Tensor:
    """The output that a model computed itself, to the last bit; recomputed if an edit changes it.

    Queries without visible keys (lse = -inf) have no weights; models return something for them too,
    such as the mean of all values. It stays under edits of the call.
    """
    visible = (lse > -torch.inf)[..., None]
    if not visible.all():
        call = replace(call, empty_out=out.masked_fill(visible, 0))

    def compute(edited: AttentionCall) -> AttentionResult:
        return (out, lse) if edited is call else compute_attention(edited)

    return dispatch(call, compute)[0]


def attend_as(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, **terms: Any
) -> Tensor:
    """As `attend` with these terms, whose output a model computed itself."""
    call = AttentionCall(q, k, v, make_terms(q, k, **terms), dropout)
    with torch.autocast(q.device.type, enabled=False) if is_autocast(q) else nullcontext():
        _, lse = compute_attention(replace(call, dropout=0.0))
        return dispatch_output(call, out, lse).to(out.dtype)


def _requested(call: AttentionCall) -> Callable[[AttentionCall], AttentionResult]:
    if call.backend in ("reference", "tiled"):
        return reference.attend if call.backend == "reference" else reference.attend_in_bands
    if call.backend not in ("fused", "flex"):
        raise BackendError(
            f"backend: needs auto, reference, tiled, fused or flex, got {call.backend!r}; try auto"
        )
    module = fused if call.backend == "fused" else flex
    if reason := module.refusal(call):
        raise cannot_run(call.backend, reason)
    return module.attend


def _fastest(call: AttentionCall) -> Callable[[AttentionCall], AttentionResult]:
    if fused.refusal(call) is None:
        return fused.attend
    scores = call.q.shape[:-1].numel() * call.k.shape[-2]
    if scores <= MAX_REFERENCE_SCORES:
        return reference.attend
    if call.q.is_cuda and flex.refusal(call) is None:
        return flex.attend
    return reference.attend_in_bands


def _check_values(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> None:
    if v.ndim != k.ndim or v.shape[:-1] != k.shape[:-1]:
        raise ShapeError(
            f"v: needs one value for each key, {tuple(k.shape[:-1])}, got {tuple(v.shape[:-1])}"
        )
    if not 0 <= dropout < 1:
        raise ShapeError(f"dropout: needs at least 0 and less than 1, got {dropout}")
    if not (q.device == k.device == v.device):
        raise ShapeError(
            f"q, k, v: need one device, got {q.device}, {k.device}, {v.device}; try .to(q.device)"
        )
