"""Gradients of the differentiable statistics: the backward pass recomputes each band of the map."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.ops.survey.statistics import DIFFERENTIABLE_STATISTICS, STATISTICS, Survey
from regard.ops.survey.weight_tile import SurveyOptions, WeightTile, nonzero_starts
from regard.ops.terms import Terms
from regard.ops.tiling import band_gradients, row_bands


def differentiable_survey(
    result: Survey, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions
) -> Survey:
    """Attach gradients in q, k, lse and a trainable bias to the differentiable statistics."""
    inputs = (q, k, lse, *terms.trainable_tensors)
    names = [name for name in DIFFERENTIABLE_STATISTICS if name in options.statistics]
    if not names or not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs)):
        return result
    values = [getattr(result, name) for name in names]
    attached = _Statistics.apply(terms, options, names, len(inputs), *inputs, *values)
    return replace(result, **dict(zip(names, attached, strict=True)))


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        terms: Terms,
        options: SurveyOptions,
        names: list[str],
        count: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.terms, ctx.options, ctx.names = terms, options, names
        ctx.save_for_backward(*tensors[:count])
        ctx.values = len(tensors) - count
        return tuple(value.clone() for value in tensors[count:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, lse, *trainable = ctx.saved_tensors
        # lse was computed from q and k: detached, or their gradients would be counted twice
        q, k, lse = (x.detach().requires_grad_(x.requires_grad) for x in (q, k, lse))
        terms, starts = ctx.terms, nonzero_starts(q, ctx.terms)

        def recompute(rows: range) -> tuple[list[Tensor], list[Tensor]]:
            keys = terms.key_span(rows, k.shape[-2])
            tile = WeightTile(
                terms.score_tile(q, k, rows, keys),
                lse[..., rows.start : rows.stop],
                terms.grid(q, k, rows, keys),
                ctx.options,
                starts,
            )
            outputs, grad_outputs = [], []
            for name, grad in zip(ctx.names, grads, strict=True):
                outputs.append(STATISTICS[name].formula(tile))
                span = rows if STATISTICS[name].axes == ("query",) else keys
                grad_outputs.append(grad[..., span.start : span.stop])
            return outputs, grad_outputs

        bands = row_bands(q.shape[-2], q.shape[:-2].numel() * k.shape[-2])
        totals = band_gradients((q, k, lse, *trainable), bands, recompute)
        return (None,) * 4 + tuple(totals) + (None,) * ctx.values
