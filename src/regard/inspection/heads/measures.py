"""What is measured of a head: one streaming survey and one band of diagonals, never the map."""

from typing import Any

import torch
from torch import Tensor

from regard.errors import LookError
from regard.inspection.heads.head_types import HeadRow, Thresholds
from regard.inspection.heads.offsets import (
    first_key,
    informative_queries,
    offset_exists,
    offset_weights,
    visible_key_counts,
)
from regard.inspection.sites.site import Site
from regard.ops.survey.op import compute_survey
from regard.ops.survey.statistics import make_survey_options


@torch.no_grad()
def measure_heads(site: Site, separators: frozenset[str], thresholds: Thresholds) -> list[HeadRow]:
    """The numbers of each head of a site, from one survey and one band of diagonals.

    >>> (row,) = measure_heads(rg.make_site(*torch.zeros(2, 4, 2)), frozenset(), Thresholds())
    >>> row.self_share, row.peak, row.normalized_entropy
    (0.25, 0.25, 1.0)
    """
    if not site.has_tensors:
        raise LookError(
            f"{site.name}: needs its queries and keys for its heads, got only its survey; "
            "try look(model) without survey="
        )
    visible = visible_key_counts(site)
    rows = informative_queries(site, visible)
    ask = ("entropy", "peak", "peak_key", "mean_distance", "mean_offset")
    question = make_survey_options(
        ask, first_keys=1, radius=thresholds.max_offset, top_k=1, pooled_size=1
    )
    found = compute_survey(site.q, site.k, site.lse, site.terms, question)
    assert found.entropy is not None
    assert found.mean_offset is not None
    place = torch.arange(site.queries, device=site.q.device) + site.terms.offset
    given = 1 - _lost(site)  # of sinks' rows, what is left for the keys
    numbers = {
        "peak": _mean(found.peak, rows),
        "mean_distance": _mean(found.mean_distance, rows),
        "sink_share": _mean(_on_first(site), rows) + _mean(1 - given, rows),
        "normalized_entropy": _mean(found.entropy / visible.clamp(min=2).log(), rows),
        "distinct": _distinct(found.peak_key, rows, site.keys),
        "monotone": _correlation(found.mean_offset + place * given, place, rows),
        "separator_share": _separator_share(site, separators, rows),
    }
    fixed, kernels = _by_offset(site, rows, thresholds)
    columns = {name: x.tolist() for name, x in {**numbers, **fixed}.items()}
    counts = rows.sum((0, 2)).tolist()
    return [
        HeadRow(
            site=site.name,
            call=site.call,
            head=head,
            query_count=counts[head],
            kind=site.kind,
            **kernels[head],
            **{name: x[head] for name, x in columns.items()},
        )
        for head in range(site.heads)
    ]


def _by_offset(
    site: Site, rows: Tensor, limits: Thresholds
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Mean weight at each offset, and how well one kernel serves all places."""
    far = limits.max_offset
    band, there = offset_weights(site, -far, far), offset_exists(site, -far, far)
    counted = rows[..., None] & there
    profile = (band * counted).sum((0, 2)) / counted.sum((0, 2)).clamp(min=1)
    # an offset that most queries do not have says little about a head
    profile = profile * (2 * counted.sum((0, 2)) >= rows.sum((0, 2))[:, None])
    others = profile.clone()
    others[:, far - 1 : far + 2] = 0
    share, best = others.max(-1)
    radius = min(far, site.queries // 4)
    inner = band[..., far - radius : far + radius + 1]
    whole = rows & there[:, far - radius] & there[:, far + radius]  # both ends of the kernel fit
    kernel = (inner * whole[..., None]).sum((0, 2)) / whole.sum((0, 2)).clamp(min=1)[:, None]
    fitted = kernel / kernel.sum(-1, keepdim=True).clamp(min=1e-6)  # all weight within the radius
    moved = ((inner - fitted[:, None]).abs().sum(-1) + (1 - inner.sum(-1)).abs()) / 2
    residual = _mean(moved, whole).masked_fill(~whole.any(2).any(0), 1)
    fixed = {
        "self_share": profile[:, far],
        "previous_share": profile[:, far - 1],
        "next_share": profile[:, far + 1],
        "offset": best - far,
        "offset_share": share,
        "local_share": _mean(inner.sum(-1), rows),
        "residual": residual,
    }
    return fixed, [{"radius": radius, "kernel": tuple(taps)} for taps in kernel.tolist()]


def _mean(x: Tensor | None, rows: Tensor) -> Tensor:
    """By head, the mean over the queries that count; 0 where none does."""
    assert x is not None
    return (x * rows).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1)


def _on_first(site: Site) -> Tensor:
    """The weight of each query on the first key of its sequence."""
    first, share = first_key(site), torch.zeros_like(site.lse)
    for at in first.unique().tolist():
        here = first == at
        share[here] = site.window(None, keys=slice(at, at + 1))[here, ..., 0].to(share.dtype)
    return share


def _lost(site: Site) -> Tensor:
    """The share of each query that sinks took."""
    if site.terms.sinks is None:
        return torch.zeros_like(site.lse)
    return (site.terms.sinks[:, None] - site.lse).exp()


def _distinct(peak_key: Tensor | None, rows: Tensor, keys: int) -> Tensor:
    """How many different keys are looked at most, out of as many as there could be."""
    assert peak_key is not None
    at = peak_key.masked_fill(~rows, -1).sort(-1).values
    first = torch.ones_like(at[..., :1], dtype=torch.bool)
    new = torch.cat([first, at[..., 1:] != at[..., :-1]], -1) & (at >= 0)
    return new.sum((0, 2)) / rows.sum(-1).clamp(max=keys).sum(0).clamp(min=1)


def _correlation(x: Tensor, place: Tensor, rows: Tensor) -> Tensor:
    """How straight the way is that a head looks along, from -1 to 1; 0 if it does not move."""
    count = rows.sum(-1, keepdim=True).clamp(min=1)
    dx = (x - (x * rows).sum(-1, keepdim=True) / count) * rows
    dy = (place - (place * rows).sum(-1, keepdim=True) / count) * rows
    size = dx.square().sum(-1).sqrt() * dy.square().sum(-1).sqrt()
    straight = (dx * dy).sum(-1) / size.clamp(min=1e-6)
    return straight.mean(0)


def _separator_share(site: Site, separators: frozenset[str], rows: Tensor) -> Tensor:
    """Weight on separators, the first key left out: that one counts as the sink."""
    if not separators or site.key_tokens is None:
        return site.lse.new_zeros(site.heads)
    given = [[token in separators for token in tokens] for tokens in site.key_tokens]
    chosen = torch.tensor(given, device=site.q.device)
    chosen[torch.arange(site.batch), first_key(site)] = False
    # a row that does not count gets weights exp(score - inf) = 0
    lse = site.lse.masked_fill(~rows, torch.inf)
    question = make_survey_options(["received"], first_keys=1, radius=1, top_k=1, pooled_size=1)
    received = compute_survey(site.q, site.k, lse, site.terms, question).received
    assert received is not None
    return (received * chosen[:, None]).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1)
