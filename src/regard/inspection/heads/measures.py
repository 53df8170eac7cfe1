"""Numbers per head, from one streaming survey and one band of diagonals, without the map."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from regard.inspection.heads import patterns
from regard.inspection.heads.head_table import (
    MORE_COLUMNS,
    HeadRow,
    HeadTable,
    Thresholds,
    with_type,
)
from regard.inspection.sites.site import Site, is_same, select_head
from regard.ops import Survey
from regard.ops.tiling import CPU_TILE

NEEDED = ["entropy", "peak", "peak_key", "mean_distance", "mean_offset", "received"]
HEAD_STATISTICS = tuple(dict.fromkeys([*NEEDED, *MORE_COLUMNS]))
MAX_SINGLE_ROWS = 32  # queries taken out of `received` one by one; for more it is surveyed again


@torch.no_grad()
def measure_heads(
    site: Site,
    separators: frozenset[str],
    thresholds: Thresholds,
    survey: Survey | None = None,
    layers: Sequence[Site] = (),
    scores: Mapping[str, list[Any]] | None = None,
) -> list[HeadRow]:
    """Measure every head of a site; `survey` may be given if it has all of `HEAD_STATISTICS`.

    `layers` are those that `merge_layers` made the site of, `scores` further fields of the rows.

    >>> (row,) = measure_heads(rg.make_site(*torch.zeros(2, 4, 2)), frozenset(), Thresholds())
    >>> row.self_share, row.peak, row.normalized_entropy
    (0.25, 0.25, 1.0)
    """
    site.require_tensors()
    visible = patterns.visible_key_counts(site)
    rows = patterns.informative_queries(site, visible)
    survey = survey or site.survey(statistics=HEAD_STATISTICS)
    position = torch.arange(site.queries, device=site.q.device) + site.terms.offset
    sink = torch.zeros_like(site.lse)  # weight of each query on its learned sink
    if site.terms.sinks is not None:
        sink = (site.terms.sinks[:, None] - site.lse).exp()
    numbers = {
        "peak": _mean(survey.peak, rows),
        "mean_distance": _mean(survey.mean_distance, rows),
        "sink_share": _mean(_first_key_weight(site) + sink, rows),
        "normalized_entropy": _mean(survey.entropy / visible.clamp(min=2).log(), rows),
        "distinct": _distinct_share(survey.peak_key, rows, site.keys),
        "monotone": _correlation(survey.mean_offset + position * (1 - sink), position, rows),
        "separator_share": _separator_share(site, separators, rows, survey.received),
    }
    numbers |= _measure_offsets(site, rows, thresholds.max_offset)
    numbers["query_count"] = rows.sum((0, 2))
    columns = {name: x.tolist() for name, x in numbers.items()}
    means = {name: _mean(getattr(survey, name), rows).tolist() for name in MORE_COLUMNS}
    columns["kernel"] = [tuple(taps) for taps in columns["kernel"]]
    columns |= dict(scores or {})
    fixed: dict[str, Any] = {"kind": site.kind, "radius": numbers["kernel"].shape[-1] // 2}
    heads = ((layer, head) for layer in layers or [site] for head in range(layer.heads))
    return [
        HeadRow(
            site=layer.name,
            call=layer.call,
            head=head,
            statistics={name: x[i] for name, x in means.items()},
            **fixed,
            **{name: x[i] for name, x in columns.items()},
        )
        for i, (layer, head) in enumerate(heads)
    ]


def classify_heads(
    sites: Iterable[Site],
    *,
    separators: Collection[str] = (),
    probe: HeadTable | None = None,
    thresholds: Thresholds | None = None,
    surveys: Iterable[Survey] | None = None,
) -> HeadTable:
    """Classify every head of the sites; the options are those of `Sight.heads`.

    `surveys` of the sites may be given if they have all of `HEAD_STATISTICS`.

    >>> classify_heads([rg.make_site(*torch.zeros(2, 8, 2))])[0].type
    'diffuse'
    """
    thresholds = thresholds or Thresholds()
    probed = {(row.site, row.head): row for row in probe or ()}
    rows = []
    groups = ((site, [site]) for site in sites) if surveys else merge_layers(sites)
    for (site, layers), survey in zip(groups, surveys or repeat(None), strict=False):
        for row in measure_heads(site, frozenset(separators), thresholds, survey, layers):
            if copying := probed.get((row.site, row.head)):
                names = ("induction", "duplicate", "retrieval")
                row = replace(row, **{name: getattr(copying, name) for name in names})
            rows.append(with_type(row, thresholds))
    return HeadTable(rows)


def merge_layers(sites: Iterable[Site]) -> Iterator[tuple[Site, list[Site]]]:
    """Successive layers of equal shapes and terms as one site with all their heads, and these.

    What a short map costs are the calls of functions, not its numbers. Merged maps fit one tile.

    >>> sites = [rg.make_site(*torch.zeros(2, 2, 4, 2)) for _ in range(3)]
    >>> [(site.heads, len(layers)) for site, layers in merge_layers(sites)]
    [(6, 3)]
    """
    groups: list[list[Site]] = []
    for site in sites:
        if groups and _can_merge(groups[-1], site):
            groups[-1].append(site)
        else:
            groups.append([site])
    names = ("q", "k", "v", "out", "lse")
    for first, *rest in groups:
        layers = [first, *rest]
        tensors = {name: torch.cat([getattr(x, name) for x in layers], 1) for name in names}
        yield (replace(first, **tensors) if rest else first), layers


def _can_merge(layers: list[Site], site: Site) -> bool:
    first, terms = layers[0], site.terms
    weights = (len(layers) + 1) * site.q.shape[:-1].numel() * site.keys
    return (
        weights <= CPU_TILE.weights
        and (site.kind, site.key_tokens) == (first.kind, first.key_tokens)
        and all(
            a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
            for a, b in ((first.q, site.q), (first.k, site.k), (first.v, site.v))
        )
        and terms.bias is terms.sinks is terms.score is None  # may differ from head to head
        and is_same(select_head(terms, 0), terms)
        and is_same(first.terms, terms)
    )


def _measure_offsets(site: Site, rows: Tensor, far: int) -> dict[str, Tensor]:
    """Mean weight at each offset, and how well one convolution kernel fits all positions."""
    band, exists = patterns.offset_weights(site, -far, far), patterns.offset_exists(site, -far, far)
    counted = rows[..., None] & exists
    profile = (band * counted).sum((0, 2)) / counted.sum((0, 2)).clamp(min=1)
    # ignore offsets that most queries do not have
    profile = profile * (2 * counted.sum((0, 2)) >= rows.sum((0, 2))[:, None])
    others = profile.clone()
    others[:, far - 1 : far + 2] = 0
    share, best = others.max(-1)
    radius = min(far, site.queries // 4)
    inner = band[..., far - radius : far + radius + 1]
    whole = rows & exists[:, far - radius] & exists[:, far + radius]  # the whole kernel fits
    kernel = (inner * whole[..., None]).sum((0, 2)) / whole.sum((0, 2)).clamp(min=1)[:, None]
    fitted = kernel / kernel.sum(-1, keepdim=True).clamp(min=1e-6)  # normalised to 1
    distance = ((inner - fitted[:, None]).abs().sum(-1) + (1 - inner.sum(-1)).abs()) / 2
    residual = _mean(distance, whole).masked_fill(~whole.any(2).any(0), 1)
    return {
        "self_share": profile[:, far], "previous_share": profile[:, far - 1],
        "next_share": profile[:, far + 1], "offset": best - far, "offset_share": share,
        "local_share": _mean(inner.sum(-1), rows), "kernel": kernel, "residual": residual,
    }  # fmt: skip


def _mean(x: Tensor, rows: Tensor) -> Tensor:
    """Mean over the selected queries, per head; 0 if there are none."""
    return (x * rows).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1)


def _first_key_weight(site: Site) -> Tensor:
    """The weight of each query on the first key of its sequence or document."""
    first, share = patterns.is_first_key(site), torch.zeros_like(site.lse)
    for key in first.any(0).nonzero()[:, 0].tolist():
        share += site.window(keys=key)[..., 0] * first[:, None, None, key]
    return share


def _distinct_share(peak_key: Tensor, rows: Tensor, keys: int) -> Tensor:
    """Number of different peak keys, divided by the largest possible number."""
    keys_sorted = peak_key.masked_fill(~rows, -1).sort(-1).values
    new = keys_sorted.diff(dim=-1, prepend=torch.full_like(keys_sorted[..., :1], -1)) > 0
    return new.sum((0, 2)) / rows.sum(-1).clamp(max=keys).sum(0).clamp(min=1)


def _correlation(x: Tensor, position: Tensor, rows: Tensor) -> Tensor:
    """Pearson correlation of x and position over the selected queries; 0 if x is constant."""
    count = rows.sum(-1, keepdim=True).clamp(min=1)
    dx = (x - (x * rows).sum(-1, keepdim=True) / count) * rows
    dy = (position - (position * rows).sum(-1, keepdim=True) / count) * rows
    norm = dx.square().sum(-1).sqrt() * dy.square().sum(-1).sqrt()
    return ((dx * dy).sum(-1) / norm.clamp(min=1e-6)).mean(0)


def _separator_share(
    site: Site, separators: frozenset[str], rows: Tensor, received: Tensor
) -> Tensor:
    """Weight on separators, without the first key, which counts as the sink."""
    if not separators or site.key_tokens is None:
        return site.lse.new_zeros(site.heads)
    flags = [[token in separators for token in tokens] for tokens in site.key_tokens]
    is_separator = torch.tensor(flags, device=site.q.device) & ~patterns.is_first_key(site)
    left_out = (~rows).flatten(0, 1).any(0).nonzero()[:, 0].tolist()
    if len(left_out) <= MAX_SINGLE_ROWS:
        for query in left_out:
            w = site.window(rows=query)[:, :, 0] * ~rows[..., query, None]
            received = (received - w).clamp(min=0)
    else:  # rows that are not selected get weights exp(score - inf) = 0
        selected = replace(site, lse=site.lse.masked_fill(~rows, torch.inf))
        received = selected.survey(statistics=["received"]).received
    return (received * is_separator[:, None]).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1)
