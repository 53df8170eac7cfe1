"""The survey that callers see: one signature, several forms."""

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import BackendError, ShapeError
from regard.ops.attend.tiled import row_bands
from regard.ops.autocast import without_autocast
from regard.ops.biases import Bias
from regard.ops.masks import Mask
from regard.ops.survey import gradient, reference, tiled
from regard.ops.survey.statistics import (
    DEFAULT_STATISTICS,
    Survey,
    SurveyOptions,
    make_survey_options,
)
from regard.ops.terms import ScoreFunction, Terms, make_terms

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
    mask: Mask | Bool[Tensor, "... _ _"] | None = None,
    bias: Bias | Float[Tensor, "... _ _"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    score: ScoreFunction | None = None,
    offset: int = 0,
    backend: SurveyBackend = "auto",
) -> Survey:
    """What the weights are like, in one streaming pass; memory is linear in n.

    w_ij = exp(s_ij - lse_i);   entropy_i = -Σ_j w log w,   received_j = Σ_i w,   …

    `ask` names fields of `Survey`. The terms (mask, bias, …) are those the attention ran on. With
    sinks the weights of a row sum to less than one, and the statistics are of those weights.
    entropy, peak, received and the shares can be differentiated.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(4, 2), torch.zeros(4, 2)
    >>> _, lse = rg.attend(q, k, v)
    >>> rg.survey(q, k, lse, statistics=["entropy", "received"]).received
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    question = make_survey_options(statistics, first_keys, radius, top_k, pooled_size)
    terms = make_terms(
        q,
        k,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        score=score,
        offset=offset,
    )
    check_lse(q, lse)
    return compute_survey(q, k, lse, terms, question, backend)


@without_autocast
def compute_survey(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    terms: Terms,
    options: SurveyOptions,
    backend: SurveyBackend = "auto",
) -> Survey:
    """The survey on terms already made."""
    with torch.no_grad():
        found = _compute(
            q, k, lse.to(torch.promote_types(lse.dtype, torch.float32)), terms, options, backend
        )
        if "first_share" in options.statistics and backend != "reference":
            found = _after_padding(found, q, k, lse, terms, options)
    return gradient.differentiable_survey(found, q, k, lse, terms, options)


def _compute(
    q: Tensor, k: Tensor, lse: Tensor, terms: Terms, question: SurveyOptions, form: SurveyBackend
) -> Survey:
    if not q.shape[:-1].numel() or not k.shape[-2]:
        return tiled.survey(q, k, lse, terms, question)  # nothing to see: its totals at the start
    match form:
        case "reference":
            return reference.survey(q, k, lse, terms, question)
        case "tiled":
            return tiled.survey(q, k, lse, terms, question)
        case "auto" if not q.is_cuda:
            return tiled.survey(q, k, lse, terms, question)
        case "auto" | "kernel":
            return _by_kernel(q, k, lse, terms, question, named=form == "kernel")
        case other:
            raise BackendError(f"backend: needs auto, reference, tiled or kernel, got {other!r}")


def _by_kernel(
    q: Tensor, k: Tensor, lse: Tensor, terms: Terms, question: SurveyOptions, named: bool
) -> Survey:
    from regard.ops.survey import kernel  # imports Triton, so only when it will run

    reason = kernel.refusal(q, k, terms)
    rest = question.statistics - kernel.KERNEL_STATISTICS
    if named and (reason or rest):
        reason = reason or f"the kernel does not count {', '.join(sorted(rest))}"
        raise BackendError(f"backend: kernel cannot run here, {reason}; try backend='auto'")
    if reason:
        return tiled.survey(q, k, lse, terms, question)
    found = kernel.survey(
        q,
        k,
        lse,
        terms,
        replace(question, statistics=question.statistics & kernel.KERNEL_STATISTICS),
    )
    if not rest:
        return found
    more = tiled.survey(q, k, lse, terms, replace(question, statistics=rest))
    return replace(found, **{f.name: getattr(more, f.name) for f in fields(more) if f.name in rest})


def _after_padding(
    found: Survey, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, question: SurveyOptions
) -> Survey:
    """The sink of sequences that begin behind padding: the streaming forms count from key 0."""
    starts = reference.nonzero_starts(q, terms)
    if starts is None or found.first_share is None or not found.first_share.numel():
        return found
    keys = range(int(starts.min()), min(k.shape[-2], int(starts.max()) + question.first_keys))
    parts = []
    for rows in row_bands(q.shape[-2], q.shape[:-2].numel() * len(keys)):
        w = reference.weights_from_scores(
            terms.score_tile(q, k, rows, keys), lse[..., rows.start : rows.stop]
        )
        first = reference.is_first_key(terms.grid(q, k, rows, keys), question, starts)
        parts.append((w * first).sum(-1))
    return replace(found, first_share=torch.cat(parts, -1).to(found.first_share.dtype))


def check_lse(q: Tensor, lse: Tensor) -> None:
    """Raise unless there is one log-sum-exp for each query."""
    if lse.shape != q.shape[:-1]:
        raise ShapeError(
            f"lse: needs one for each query, {tuple(q.shape[:-1])}, got {tuple(lse.shape)}; "
            "try the second result of attend"
        )
