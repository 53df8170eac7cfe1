"""Gradients of the differentiable statistics: the backward pass recomputes each band of the map."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from regard.ops.survey.statistics import DIFFERENTIABLE_STATISTICS, STATISTICS, Survey
from regard.ops.survey.weight_tile import SurveyOptions, WeightTile, nonzero_starts
from regard.ops.terms import Terms
from regard.ops.tiling import attach_gradients, row_bands


def differentiable_survey(
    result: Survey, q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions
) -> Survey:
    """Attach gradients in q, k, lse and a trainable bias to the differentiable statistics."""
    names = [name for name in DIFFERENTIABLE_STATISTICS if name in options.statistics]
    if not names:
        return result

    def recompute(
        rows: range, inputs: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        q, k, lse = inputs
        keys = terms.key_span(rows, k.shape[-2])
        scores, grid = terms.score_tile(q, k, rows, keys), terms.grid(q, k, rows, keys)
        band = lse[..., rows.start : rows.stop]
        tile = WeightTile(scores, band, grid, options, nonzero_starts(q, terms))
        spans = [rows if STATISTICS[name].axes == ("query",) else keys for name in names]
        return [STATISTICS[name].formula(tile) for name in names], [
            grad[..., span.start : span.stop] for grad, span in zip(grads, spans, strict=True)
        ]

    values = [getattr(result, name) for name in names]
    bands = row_bands(q.shape[-2], q.shape[:-2].numel() * k.shape[-2])
    attached = attach_gradients(values, (q, k, lse), terms.trainable_tensors, bands, recompute)
    return replace(result, **dict(zip(names, attached, strict=True)))
