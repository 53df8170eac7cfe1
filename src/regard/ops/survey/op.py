"""The public survey function: one signature, several backends."""

from collections.abc import Collection
from dataclasses import replace
from typing import Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import BackendError
from regard.ops.autocast import without_autocast
from regard.ops.survey import gradient, reference, tiled
from regard.ops.survey.statistics import (
    DEFAULT_STATISTICS,
    KERNEL_STATISTICS,
    Survey,
    make_survey_options,
)
from regard.ops.survey.weight_tile import SurveyOptions, is_first_key, nonzero_starts
from regard.ops.terms import TermOptions, Terms, check_lse, make_terms, weights_from_scores
from regard.ops.tiling import row_bands

SurveyBackend = Literal["auto", "reference", "tiled", "kernel"]


def survey(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    lse: Float[Tensor, "*batch query"],
    *,
    statistics: Collection[str] = DEFAULT_STATISTICS,
    first_keys: int = 4,
    radius: int = 8,
    top_k: int = 8,
    pooled_size: int | tuple[int, int] = 256,
    backend: SurveyBackend = "auto",
    **terms: Unpack[TermOptions],
) -> Survey:
    """Statistics of the attention weights, in one streaming pass with memory linear in n.

    w_ij = exp(s_ij - lse_i);   entropy_i = -Σ_j w log w,   received_j = Σ_i w,   …

    With sinks the weights of a row sum to less than one; the statistics are of those weights.

    Args:
        q: queries of the attention.
        k: its keys.
        lse: its log-sum-exp, the second result of `attend`.
        statistics: names of fields of `Survey`; entropy, peak, received, means and shares have
            gradients.
        first_keys: number of first tokens counted by first_share.
        radius: largest distance counted by local_share.
        top_k: number of top_weights and top_keys.
        pooled_size: rows and columns of pooled_map.
        backend: a backend requested by name runs or raises; there is no silent fallback.
        **terms: the terms of the attention: mask, bias, …; see `TermOptions`.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(4, 2), torch.zeros(4, 2)
    >>> _, lse = rg.attend(q, k, v)
    >>> rg.survey(q, k, lse, statistics=["entropy", "received"]).received
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    options = make_survey_options(statistics, first_keys, radius, top_k, pooled_size)
    checked = make_terms(q, k, **terms)
    check_lse(q, lse)
    return compute_survey(q, k, lse, checked, options, backend)


@without_autocast
def compute_survey(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    terms: Terms,
    options: SurveyOptions,
    backend: SurveyBackend = "auto",
) -> Survey:
    """`survey` with checked terms and options."""
    with torch.no_grad():
        upcast_lse = lse.to(torch.promote_types(lse.dtype, torch.float32))
        result = _compute(q, k, upcast_lse, terms, options, backend)
        if "first_share" in options.statistics and backend != "reference":
            result = _first_share_after_padding(result, q, k, lse, terms, options)
    return gradient.differentiable_survey(result, q, k, lse, terms, options)


def _compute(
    q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions, backend: SurveyBackend
) -> Survey:
    if not q.shape[:-1].numel() or not k.shape[-2]:
        return tiled.survey(q, k, lse, terms, options)  # no tiles: the initial values
    match backend:
        case "reference":
            return reference.survey(q, k, lse, terms, options)
        case "tiled":
            return tiled.survey(q, k, lse, terms, options)
        case "auto" if not q.is_cuda:
            return tiled.survey(q, k, lse, terms, options)
        case "auto" | "kernel":
            return _by_kernel(q, k, lse, terms, options, is_required=backend == "kernel")
        case other:
            raise BackendError(f"backend: needs auto, reference, tiled or kernel, got {other!r}")


def _by_kernel(
    q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions, is_required: bool
) -> Survey:
    from regard.ops.survey import kernel  # imports Triton, so only when it will run

    reason = kernel.refusal(q, k, terms)
    others = options.statistics - KERNEL_STATISTICS
    if is_required and (reason or others):
        reason = reason or f"the kernel does not compute {', '.join(sorted(others))}"
        raise BackendError(f"backend: kernel cannot run here, {reason}; try backend='auto'")
    if reason:
        return tiled.survey(q, k, lse, terms, options)
    supported = options._replace(statistics=options.statistics & KERNEL_STATISTICS)
    result = kernel.survey(q, k, lse, terms, supported)
    if not others:
        return result
    rest = tiled.survey(q, k, lse, terms, options._replace(statistics=others))
    return replace(result, **{name: getattr(rest, name) for name in others})


def _first_share_after_padding(
    result: Survey, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions
) -> Survey:
    """Correct first_share for left-padded sequences: streaming backends count from key 0."""
    starts = nonzero_starts(q, terms)
    if starts is None or result.first_share is None or not result.first_share.numel():
        return result
    keys = range(int(starts.min()), min(k.shape[-2], int(starts.max()) + options.first_keys))
    shares = []
    for rows in row_bands(q.shape[-2], q.shape[:-2].numel() * len(keys)):
        band = lse[..., rows.start : rows.stop]
        w = weights_from_scores(terms.score_tile(q, k, rows, keys), band)
        shares.append((w * is_first_key(terms.grid(q, k, rows, keys), options, starts)).sum(-1))
    return replace(result, first_share=torch.cat(shares, -1).to(result.first_share.dtype))
