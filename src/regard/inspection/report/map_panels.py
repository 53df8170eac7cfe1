"""Panels of a report page: a table with one map per row, of linear mixers and of experts."""

from collections.abc import Iterable, Sequence
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from regard.inspection.heads.mixer_table import MAX_HEADS, name_of_call
from regard.inspection.record.sight import Sight
from regard.inspection.report.report_data import encode_base64, range_around
from regard.inspection.sites.mixer_site import MixerSite, first_heads, mixer_labels

CELLS = 100_000  # of the maps of a panel, two bytes each
SIDES = 8, 64  # tokens per side of a map, at least and at most
ZERO = 32767  # numbers are stored as multiples of scale / 32767 above it

Panel = dict[str, Any]


@torch.no_grad()
def map_panels(sight: Sight, batch: int, queries: Sequence[int]) -> list[Panel]:
    """The panels that a sight has something for."""
    panels = []
    if sight.mixers:
        table = sight.mixer_heads()
        side = min(max(isqrt(CELLS // max(1, len(table))), SIDES[0]), SIDES[1])
        sites = sight.join_mixers()
        more = f"; {table.hidden} more heads have no row" if table.hidden else ""
        panels.append(
            {
                "name": "Linear mixers",
                "note": "Layers without softmax: y = W v with signed weights. Click a head to see "
                f"its map{more}.",
                "columns": table.columns,
                "rows": table.texts(),
                "maps": [x for site in sites for x in _mixer_maps(site, side, batch, queries)],
            }
        )
    if routers := sight.routers:
        width = max(SIDES[0], CELLS // sum(x.count for x in routers.values()))
        panels.append(
            {
                "name": "Experts",
                "note": "Click a router to see the weight of each expert for each token.",
                "columns": routers.columns,
                "rows": routers.texts(),
                "maps": [_expert_map(x, width, batch, queries) for x in routers.values()],
            }
        )
    return panels


def _mixer_maps(
    site: MixerSite, side: int, batch: int, queries: Sequence[int]
) -> Iterable[dict[str, Any]]:
    """Exact weights of every head, around a query of a long text: by default the last."""
    rows, columns = mixer_labels(site, batch)
    row = _span(queries, side, site.queries)
    key = range(max(0, row.stop + site.offset - side), row.stop + site.offset)
    part = first_heads(site, MAX_HEADS)
    w = part.window(None, slice(row.start, row.stop), slice(key.start, key.stop))[batch]
    for head, x in enumerate(w[:MAX_HEADS]):
        title = f"{name_of_call(site)}, head {head}{_cut_of(row, site.queries, 'queries')}"
        labels = rows[row.start : row.stop], columns[key.start : key.stop]
        yield _map(title, x, ("query", "key"), *labels)


def _expert_map(router: Any, width: int, batch: int, queries: Sequence[int]) -> dict[str, Any]:
    weights = router.map[batch].mT
    time = weights.shape[1]
    span = _span(queries, min(width, 8 * SIDES[1]), time)
    labels = [*map(str, range(time))] if router.labels is None else router.labels[batch]
    return _map(
        f"{router.name}{_cut_of(span, time, 'tokens')}",
        weights[:, span.start : span.stop],
        ("expert", "token"),
        [*map(str, range(router.count))],
        labels[span.start : span.stop],
    )


def _span(queries: Sequence[int], side: int, count: int) -> range:
    inside = [i % count for i in queries if -count <= i < count]
    return range_around(inside[0] if inside else count - 1, side, count)


def _cut_of(shown: range, count: int, noun: str) -> str:
    return "" if len(shown) == count else f", {noun} {shown.start}–{shown.stop - 1} of {count}"


def _map(
    title: str, x: Tensor, titles: tuple[str, str], rows: list[str], columns: list[str]
) -> dict[str, Any]:
    scale = float(x.abs().max()) if x.numel() else 0.0
    data = (x.double() / (scale or 1) * ZERO).round() + ZERO
    return {
        "title": title,
        "titles": titles,
        "rows": rows,
        "columns": columns,
        "scale": scale,
        "signed": bool((x < 0).any()),
        "data": encode_base64(data, "u2"),
    }
