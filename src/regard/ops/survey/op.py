"""The survey that callers see: one signature, several forms."""

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import FormError, ShapeError
from regard.ops.attend.tiled import bands
from regard.ops.autocast import exact
from regard.ops.biases import Bias
from regard.ops.masks import Mask
from regard.ops.survey import gradient, reference, tiled
from regard.ops.survey.statistics import (
    QUICK_AND_RECEIVED,
    Question,
    Survey,
    make_question,
)
from regard.ops.terms import Score, Terms, make_terms

Form = Literal["auto", "reference", "tiled", "kernel"]


def survey(
    q: Float[Tensor, "*batch query feat"],
    k: Float[Tensor, "*keys_batch key other"],
    lse: Float[Tensor, "*batch query"],
    *,
    ask: Collection[str] = QUICK_AND_RECEIVED,
    first: int = 4,
    radius: int = 8,
    most: int = 8,
    cells: int | tuple[int, int] = 256,
    mask: Mask | Bool[Tensor, "... _ _"] | None = None,
    bias: Bias | Float[Tensor, "... _ _"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    score: Score | None = None,
    offset: int = 0,
    form: Form = "auto",
) -> Survey:
    """What the weights are like, in one streaming pass; memory is linear in n.

    w_ij = exp(s_ij - lse_i);   entropy_i = -Σ_j w log w,   received_j = Σ_i w,   …

    `ask` names fields of `Survey`. The terms (mask, bias, …) are those the attention ran on. With
    sinks the weights of a row sum to less than one, and the statistics are of those weights.
    entropy, peak, received and the shares can be differentiated.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(4, 2), torch.zeros(4, 2)
    >>> _, lse = rg.attend(q, k, v)
    >>> rg.survey(q, k, lse, ask=["entropy", "received"]).received
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    question = make_question(ask, first, radius, most, cells)
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
    return measure(q, k, lse, terms, question, form)


@exact
def measure(
    q: Tensor, k: Tensor, lse: Tensor, terms: Terms, question: Question, form: Form = "auto"
) -> Survey:
    """The survey on terms already made."""
    with torch.no_grad():
        found = _compute(
            q, k, lse.to(torch.promote_types(lse.dtype, torch.float32)), terms, question, form
        )
        if "sink" in question.ask and form != "reference":
            found = _after_padding(found, q, k, lse, terms, question)
    return gradient.with_gradient(found, q, k, lse, terms, question)


def _compute(
    q: Tensor, k: Tensor, lse: Tensor, terms: Terms, question: Question, form: Form
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
            raise FormError(f"form: needs auto, reference, tiled or kernel, got {other!r}")


def _by_kernel(
    q: Tensor, k: Tensor, lse: Tensor, terms: Terms, question: Question, named: bool
) -> Survey:
    from regard.ops.survey import kernel  # imports Triton, so only when it will run

    reason = kernel.refusal(q, k, terms)
    rest = question.ask - kernel.KNOWN
    if named and (reason or rest):
        reason = reason or f"the kernel does not count {', '.join(sorted(rest))}"
        raise FormError(f"form: kernel cannot run here, {reason}; try form='auto'")
    if reason:
        return tiled.survey(q, k, lse, terms, question)
    found = kernel.survey(q, k, lse, terms, replace(question, ask=question.ask & kernel.KNOWN))
    if not rest:
        return found
    more = tiled.survey(q, k, lse, terms, replace(question, ask=rest))
    return replace(found, **{f.name: getattr(more, f.name) for f in fields(more) if f.name in rest})


def _after_padding(
    found: Survey, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, question: Question
) -> Survey:
    """The sink of sequences that begin behind padding: the streaming forms count from key 0."""
    starts = reference.starts_of(q, terms)
    if starts is None or found.sink is None or not found.sink.numel():
        return found
    keys = range(int(starts.min()), min(k.shape[-2], int(starts.max()) + question.first))
    parts = []
    for rows in bands(q.shape[-2], q.shape[:-2].numel() * len(keys)):
        w = reference.weights(terms.tile(q, k, rows, keys), lse[..., rows.start : rows.stop])
        first = reference.is_first(terms.grid(q, k, rows, keys), question, starts)
        parts.append((w * first).sum(-1))
    return replace(found, sink=torch.cat(parts, -1).to(found.sink.dtype))


def check_lse(q: Tensor, lse: Tensor) -> None:
    """Raise unless there is one log-sum-exp for each query."""
    if lse.shape != q.shape[:-1]:
        raise ShapeError(
            f"lse: needs one for each query, {tuple(q.shape[:-1])}, got {tuple(lse.shape)}; "
            "try the second result of attend"
        )
