"""The survey read off the whole map: what the streaming forms must meet."""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.grid import Grid
from regard.ops.survey.statistics import Survey, SurveyOptions, distance_bin_count
from regard.ops.terms import Terms


def survey(q: Tensor, k: Tensor, lse: Tensor, terms: Terms, options: SurveyOptions) -> Survey:
    """Every statistic from the map w = exp(scores - lse)."""
    scores, grid = terms.score_tile(q, k), terms.grid(q, k)
    w = weights_from_scores(scores, lse)
    ahead = grid.j - grid.i
    w_top, at_top = _largest(w, options.top_k)
    count = distance_bin_count(k.shape[-2], q.shape[-2], terms.offset)
    by_distance = F.one_hot(distance_bin(ahead), count).to(w.dtype)
    found = differentiable_statistics(scores, lse, grid, options, nonzero_starts(q, terms)) | {
        "peak_key": at_top[..., 0],
        "top_weights": w_top,
        "top_keys": at_top,
        "max_score": scores.flatten(-2).amax(-1),
        "distance_histogram": torch.einsum("...ij,ijn->...n", w, by_distance),
        "received_by_distance": torch.einsum("...ij,ijn->...jn", w, by_distance),
        "pooled_map": _pool(w, options.pooled_size),
    }
    return Survey(**{name: found[name] for name in options.statistics})


def differentiable_statistics(
    scores: Tensor, lse: Tensor, grid: Grid, options: SurveyOptions, starts: Tensor | None = None
) -> dict[str, Tensor]:
    """The statistics that have a gradient, of whole rows."""
    w, ahead = weights_from_scores(scores, lse), grid.j - grid.i
    log_w = (scores - lse[..., None]).masked_fill(scores == -torch.inf, 0)  # 0 log 0 = 0
    return {
        "entropy": -(w * log_w).sum(-1),
        "peak": w.amax(-1),
        "mean_distance": (w * ahead.abs()).sum(-1),
        "mean_offset": (w * ahead).sum(-1),
        "self_share": (w * (ahead == 0)).sum(-1),
        "previous_share": (w * (ahead == -1)).sum(-1),
        "first_share": (w * is_first_key(grid, options, starts)).sum(-1),
        "local_share": (w * (ahead.abs() <= options.radius)).sum(-1),
        "received": w.sum(-2),
    }


def nonzero_starts(q: Tensor, terms: Terms) -> Tensor | None:
    """Where each sequence begins, if padding stands before one; None where all begin at 0."""
    if terms.mask is None:
        return None
    leading = q.shape[:-3] if q.ndim > 3 else q.shape[:-2]
    found = terms.mask.sequence_starts(leading.numel())
    return found if found is not None and bool(found.any()) else None


def is_first_key(grid: Grid, options: SurveyOptions, starts: Tensor | None) -> Tensor:
    """Which keys are among the first of their sequence; those of padding are no tokens."""
    j = grid.j if starts is None else grid.j - starts[grid.b]
    return (j >= 0) & (j < options.first_keys)


def weights_from_scores(scores: Tensor, lse: Tensor) -> Tensor:
    """w = exp(scores - lse), zero in a row that sees nothing."""
    return torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0)[..., None])


def distance_bin(ahead: Tensor) -> Tensor:
    """The bin of a distance: 0 for itself, then 1, 2–3, 4–7, …

    >>> distance_bin(torch.tensor([0, -1, 2, 3, -4]))
    tensor([0, 1, 2, 2, 3])
    """
    return torch.frexp(ahead.abs().float())[1].long().clamp(min=0)


def _largest(w: Tensor, most: int) -> tuple[Tensor, Tensor]:
    short = most - w.shape[-1]
    w = F.pad(w, (0, max(0, short)))
    # stable, so that of equal weights the first key comes first
    values, at = torch.sort(w, stable=True, dim=-1, descending=True)
    values, at = values[..., :most], at[..., :most]
    return values, at.masked_fill(values == 0, -1)


def _pool(w: Tensor, cells: tuple[int, int]) -> Tensor:
    rows = F.one_hot(pooled_index(w.shape[-2], cells[0], w.device), cells[0]).to(w.dtype)
    columns = F.one_hot(pooled_index(w.shape[-1], cells[1], w.device), cells[1]).to(w.dtype)
    return rows.mT @ w @ columns


def pooled_index(count: int, bins: int, device: torch.device) -> Tensor:
    """Which cell each row or key falls in, when `count` are cut into `cells` as evenly as can be.

    >>> pooled_index(5, 2, torch.device("cpu"))
    tensor([0, 0, 0, 1, 1])
    """
    return torch.arange(count, device=device) * bins // max(1, count)
