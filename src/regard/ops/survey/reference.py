"""The survey from the whole map: the reference for the streaming backends."""

from torch import Tensor

from regard.ops.survey.statistics import STATISTICS, Survey
from regard.ops.survey.weight_tile import SurveyOptions, WeightTile, nonzero_starts
from regard.ops.terms import Terms


def survey(q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions) -> Survey:
    """Every requested statistic by its formula, from the map w = exp(scores - lse)."""
    tile = WeightTile(
        terms.score_tile(q, k), lse, terms.grid(q, k), options, nonzero_starts(q, k, terms)
    )
    return Survey(**{name: STATISTICS[name].formula(tile) for name in options.statistics})
