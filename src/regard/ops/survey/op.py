"""The public survey function: one signature, several backends."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.autocast import without_autocast
from regard.ops.kernels import load_kernel, prepare_kernel
from regard.ops.survey import tiled
from regard.ops.survey.statistics import (
    DEFAULT_STATISTICS,
    DIFFERENTIABLE_STATISTICS,
    KERNEL_STATISTICS,
    STATISTICS,
    Survey,
    SurveyOptions,
    WeightTile,
    make_survey_options,
    nonzero_starts,
)
from regard.ops.terms import TermOptions, Terms, check_lse, make_terms
from regard.ops.tiling import attach_gradients, row_bands

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
        q, k, lse: queries and keys of an attention, and the second result of `attend`.
        statistics: names of fields of `Survey`; entropy, peak, received, means and shares have
            gradients.
        first_keys: number of first tokens of a sequence or document counted by first_share.
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
    return _differentiable(result, q, k, lse, terms, options)


def _compute(
    q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions, backend: SurveyBackend
) -> Survey:
    if not q.shape[:-1].numel() or not k.shape[-2]:
        return tiled.survey(q, k, lse, terms, options)  # no tiles: the initial values
    if backend == "reference":  # every statistic by its formula, from the whole map
        starts = nonzero_starts(q, k, terms)
        tile = WeightTile(terms.score_tile(q, k), lse, terms.grid(q, k), options, starts)
        return Survey(**{name: STATISTICS[name].formula(tile) for name in options.statistics})
    others = options.statistics - KERNEL_STATISTICS

    def prepare() -> Any:
        prepared = load_kernel("survey.kernel").prepare(q, k, terms)
        if isinstance(prepared, str) or backend == "auto" or not others:
            return prepared
        return f"the kernel does not compute {', '.join(sorted(others))}"

    kernel_terms = prepare_kernel(backend, q.is_cuda, prepare)
    if kernel_terms is None:
        return tiled.survey(q, k, lse, terms, options)
    supported = options._replace(statistics=options.statistics - others)
    result = load_kernel("survey.kernel").survey(q, k, lse, terms.offset, kernel_terms, supported)
    if not others:
        return result
    rest = tiled.survey(q, k, lse, terms, options._replace(statistics=others))
    return replace(result, **{name: getattr(rest, name) for name in others})


def _first_share_after_padding(
    result: Survey, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions
) -> Survey:
    """Correct first_share for padding and documents: streaming backends count from key 0."""
    starts = nonzero_starts(q, k, terms)
    if starts is None or result.first_share is None or not result.first_share.numel():
        return result
    position = torch.arange(k.shape[-2], device=starts.device) - starts
    first = ((position >= 0) & (position < options.first_keys)).any(0).nonzero()
    keys = range(int(first.min()), int(first.max()) + 1) if len(first) else range(1)
    shares = []
    for rows in row_bands(q.shape[-2], q.shape[:-2].numel() * len(keys)):
        band = lse[..., rows.start : rows.stop]
        scores, grid = terms.score_tile(q, k, rows, keys), terms.grid(q, k, rows, keys)
        tile = WeightTile(scores, band, grid, options, starts)
        shares.append(STATISTICS["first_share"].formula(tile))
    return replace(result, first_share=torch.cat(shares, -1).to(result.first_share.dtype))


def _differentiable(
    result: Survey, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions
) -> Survey:
    """Attach gradients in q, k, lse and a trainable bias, recomputed band by band."""
    names = [name for name in DIFFERENTIABLE_STATISTICS if name in options.statistics]
    if not names or not torch.is_grad_enabled():
        return result
    starts = nonzero_starts(q, k, terms)

    def recompute(
        rows: range, inputs: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        q, k, lse = inputs
        keys = terms.key_span(rows, k.shape[-2])
        scores, grid = terms.score_tile(q, k, rows, keys), terms.grid(q, k, rows, keys)
        band = lse[..., rows.start : rows.stop]
        tile = WeightTile(scores, band, grid, options, starts)
        spans = [rows if STATISTICS[name].axes == ("query",) else keys for name in names]
        return [STATISTICS[name].formula(tile) for name in names], [
            grad[..., span.start : span.stop] for grad, span in zip(grads, spans, strict=True)
        ]

    values = [getattr(result, name) for name in names]
    bands = row_bands(q.shape[-2], q.shape[:-2].numel() * k.shape[-2])
    attached = attach_gradients(values, (q, k, lse), terms.trainable_tensors, bands, recompute)
    return replace(result, **dict(zip(names, attached, strict=True)))
