"""Gradients of the smooth statistics: on the way back each band of the map is recomputed."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.ops.attend.tiled import row_bands
from regard.ops.survey.reference import differentiable_statistics, nonzero_starts
from regard.ops.survey.statistics import DIFFERENTIABLE_STATISTICS, Survey, SurveyOptions
from regard.ops.terms import Terms


def differentiable_survey(
    result: Survey, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions
) -> Survey:
    """The same survey, its smooth statistics now differentiable in q, k, lse and a learned bias."""
    wanted = (q, k, lse, *terms.trainable_tensors)
    names = [name for name in DIFFERENTIABLE_STATISTICS if name in options.statistics]
    if not names or not (torch.is_grad_enabled() and any(x.requires_grad for x in wanted)):
        return result
    values = [getattr(result, name) for name in names]
    attached = _Smooth.apply(terms, options, names, len(wanted), *wanted, *values)
    return replace(result, **dict(zip(names, attached, strict=True)))


class _Smooth(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        terms: Terms,
        question: SurveyOptions,
        names: list[str],
        count: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.terms, ctx.question, ctx.names = terms, question, names
        ctx.save_for_backward(*tensors[:count])
        ctx.values = len(tensors) - count
        return tuple(value.clone() for value in tensors[count:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, lse, *learned = ctx.saved_tensors
        # lse was made from q and k: cut it off, or their gradients would be counted twice
        q, k, lse = (x.detach().requires_grad_(x.requires_grad) for x in (q, k, lse))
        wanted = (q, k, lse, *learned)
        asked = [x for x in wanted if x.requires_grad]
        total = {id(x): torch.zeros_like(x) for x in asked}
        starts = nonzero_starts(q, ctx.terms)
        for rows in row_bands(q.shape[-2], q.shape[:-2].numel() * k.shape[-2]):
            keys = ctx.terms.key_span(rows, k.shape[-2])
            with torch.enable_grad():
                scores = ctx.terms.score_tile(q, k, rows, keys)
                grid = ctx.terms.grid(q, k, rows, keys)
                part = lse[..., rows.start : rows.stop]
                found = differentiable_statistics(scores, part, grid, ctx.question, starts)
            part = {name: rows if name != "received" else keys for name in ctx.names}
            steps = [
                g[..., part[n].start : part[n].stop] for n, g in zip(ctx.names, grads, strict=True)
            ]
            values = [found[name] for name in ctx.names]
            back = torch.autograd.grad(values, asked, steps, allow_unused=True)
            for x, add in zip(asked, back, strict=True):
                if add is not None:
                    total[id(x)] += add
        return (None,) * 4 + tuple(total.get(id(x)) for x in wanted) + (None,) * ctx.values
