"""The data of a report page, of bounded size: numbers, pooled maps and exact blocks."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.inspection.heads.descriptions import describe_heads
from regard.inspection.heads.head_table import HeadRow
from regard.inspection.heads.measures import HEAD_STATISTICS
from regard.inspection.sites.labels import key_labels, query_labels
from regard.inspection.sites.site import Site
from regard.ops import Survey
from regard.ops.tiling import row_bands

# Limits of the whole page, divided among its heads; together they keep it under 3 MB.
PIXELS = 350_000  # of pooled maps, one byte each
POINTS = 75_000  # of statistics per position, four bytes each
ENTRIES = 150_000  # top keys with their weights, four bytes each
CELLS = 400_000  # of exact blocks, two bytes each

ROWS = 1500  # listed tokens; more make the page slow
SIDE = 64  # largest side of one block out of several
WHOLE = 128  # maps up to this side may be stored exactly
BLOCKS = 8  # per head
LABELS = 20_000  # of longer inputs only the visible tokens are stored
PACKED = 65535  # weights are stored as multiples of 1/65535
STRIPS = ("entropy", "first_share", "received")


@dataclass(frozen=True)
class PageBudget:
    """Limits of each head on the page."""

    image: int  # side of a pooled map, in cells
    strip: int  # length of a statistic, in cells
    top: int  # top keys per query
    rows: int  # queries with top keys
    whole: int  # maps up to this side are stored exactly
    side: int  # side of an exact block of a larger map
    blocks: int

    @classmethod
    def for_heads(cls, heads: int, queries: int) -> "PageBudget":
        """Divide the page among the heads, of which the longest has `queries` queries."""
        top = max(2, min(5, ENTRIES // (heads * queries)))
        cells = CELLS // heads
        side = max(4, min(SIDE, int((cells / 3) ** 0.5)))
        return cls(
            image=max(8, min(256, int((PIXELS / heads) ** 0.5))),
            strip=max(16, min(512, POINTS // (heads * len(STRIPS)))),
            top=top,
            rows=max(8, min(queries, ROWS, ENTRIES // (heads * top))),
            whole=max(4, min(WHOLE, int(cells**0.5))),
            side=side,
            blocks=max(1, min(BLOCKS, cells // side**2)),
        )

    def cells(self, site: Site) -> tuple[int, int]:
        """Rows and columns of the pooled map of a site."""
        return min(self.image, site.queries), min(self.image, site.keys)


def survey_for_page(site: Site, budget: PageBudget) -> Survey:
    """All that the page and the types of heads need, in one pass over the map."""
    names = {*HEAD_STATISTICS, *STRIPS, "pooled_map"}
    return site.survey(statistics=names, first_keys=1, pooled_size=budget.cells(site))


@torch.no_grad()
def site_data(
    site: Site,
    survey: Survey,
    rows: Sequence[HeadRow],
    budget: PageBudget,
    batch: int,
    chosen_queries: Sequence[int],
) -> dict[str, Any]:
    """The data of one site for JSON; arrays are base64."""
    runs = [range(site.queries)]
    if site.queries > budget.rows:  # a quarter from the start, the rest from the end
        start = budget.rows // 4
        runs = [range(start), range(site.queries - budget.rows + start, site.queries)]
    shown = [i for run in runs for i in run]
    # the weight of a mean query of each row of cells on all keys of each column of cells
    maps = survey.pooled_map[batch].float()
    maps = maps / _edges(site.queries, maps.shape[-2]).diff()[:, None].to(maps.device)
    blocks = _blocks(site, maps, survey, budget, batch, chosen_queries)
    weights, keys = _top_keys(site, runs, budget.top, batch)
    spans = [(block["rows"], block["keys"]) for per_head in blocks for block in per_head]
    visible_rows = {*shown, *_edges(site.queries, maps.shape[-2])[:-1].tolist()}
    visible_rows |= {i for rows, _ in spans for i in range(*rows)}
    visible_keys = {*keys.unique().tolist(), *_edges(site.keys, maps.shape[-1])[:-1].tolist()}
    visible_keys |= {j for _, keys in spans for j in range(*keys)}
    scale = maps.amax((-2, -1)).clamp(min=1e-30)
    grey = ((maps / scale[:, None, None]).clamp(0, 1).sqrt() * 255).round()
    dtype = "u2" if site.keys < PACKED else "u4"
    keys = torch.where(keys < 0, PACKED if dtype == "u2" else 2**32 - 1, keys)
    return {
        "name": site.name,
        "path": site.path,
        "call": site.call,
        "kind": site.kind,
        "queries": site.queries,
        "keys": site.keys,
        "offset": site.terms.offset,
        "image": {
            "cells": list(maps.shape[-2:]),
            "scale": scale.tolist(),
            "data": encode_base64(grey, "u1"),
        },
        "strips": _strips(survey, budget.strip, batch),
        "top": {
            "rows": shown,
            "count": budget.top,
            "dtype": dtype,
            "keys": encode_base64(keys, dtype),
            "weights": _encode_weights(weights),
        },
        "blocks": blocks,
        "query_labels": _select_labels(query_labels(site, batch), visible_rows),
        "key_labels": _select_labels(key_labels(site, batch), visible_keys),
        "words": describe_heads(site, batch, list(rows), survey),
        "heads": [{"type": row.type, "reason": row.reason} for row in rows],
    }


def encode_base64(x: Tensor, dtype: str) -> str:
    """A tensor as base64 of little-endian f4, u1, u2 or u4."""
    return b64encode(np.ascontiguousarray(x.cpu().numpy()).astype(f"<{dtype}").tobytes()).decode()


def _edges(count: int, cells: int) -> Tensor:
    """The first of `count` rows or keys in each cell, and the end: the inverse of pooled_index."""
    return -(-torch.arange(cells + 1) * count // cells)


def _strips(survey: Survey, length: int, batch: int) -> dict[str, dict[str, Any]]:
    strips = {}
    for name in STRIPS:
        x = getattr(survey, name)[batch].float()
        count = x.shape[-1]
        x = F.adaptive_avg_pool1d(x[None], length)[0] if count > length else x
        strips[name] = {"count": count, "cells": x.shape[-1], "data": encode_base64(x, "f4")}
    return strips


def _top_keys(site: Site, runs: list[range], count: int, batch: int) -> tuple[Tensor, Tensor]:
    """The largest weights of some queries and their keys, -1 for none; (head, query, top)."""
    parts = []
    for run in runs:
        # small bands, whose memory is used again: touching freshly allocated memory is slow
        for band in row_bands(len(run), site.batch * site.heads * site.keys, 1 << 20):
            rows = run[band.start : band.stop]
            w = site.window(None, slice(rows.start, rows.stop))[batch]
            w = F.pad(w, (0, count - site.keys)) if count > site.keys else w
            parts.append(w.topk(count, -1))
    weights = torch.cat([part.values for part in parts], -2)
    keys = torch.cat([part.indices for part in parts], -2)
    return weights, keys.masked_fill(weights == 0, -1)


def _encode_weights(w: Tensor) -> str:
    return encode_base64((w * PACKED).round().clamp(0, PACKED), "u2")


def _blocks(
    site: Site, maps: Float[Tensor, "head row column"], survey: Survey, budget: PageBudget,
    batch: int, queries: Sequence[int],
) -> list[list[dict[str, Any]]]:  # fmt: skip
    """Exact weights per head: the whole map if it is small, else blocks of it."""
    if site.queries * site.keys <= budget.whole**2:
        whole = {"rows": (0, site.queries), "keys": (0, site.keys)}
        return [[whole | {"data": _encode_weights(w)}] for w in site.window()[batch]]
    # a query of the target may lie beyond the end of the source
    inside = [i % site.queries for i in queries if -site.queries <= i < site.queries]
    peaks = survey.peak_key[batch].clamp(min=0).tolist()
    per_head = []
    for head in range(site.heads):
        centres = []  # of blocks, as (query, key)
        for i in inside or [site.queries - 1]:
            key = i + site.terms.offset if site.kind == "self" else peaks[head][i]
            centres.append((i, key))
        if not inside:
            centres += _far_centres(site, head, maps[head], budget, batch)
        blocks = []
        for query, key in centres[: budget.blocks]:
            rows = range_around(query, budget.side, site.queries)
            keys = range_around(key, budget.side, site.keys)
            w = site.window(head, slice(rows.start, rows.stop), slice(keys.start, keys.stop))
            span = {"rows": (rows.start, rows.stop), "keys": (keys.start, keys.stop)}
            blocks.append(span | {"data": _encode_weights(w[batch])})
        per_head.append(blocks)
    return per_head


def _far_centres(
    site: Site, head: int, pooled: Float[Tensor, "row column"], budget: PageBudget, batch: int
) -> list[tuple[int, int]]:
    """The largest weight in each of the heaviest cells off the diagonal and the first keys."""
    (high, wide), far = pooled.shape, pooled.clone()
    row, column = _edges(site.queries, high), _edges(site.keys, wide)
    if site.kind == "self":
        position = row + site.terms.offset
        is_near = (column[1:] + budget.side > position[:-1, None]) & (
            column[:-1] < position[1:, None] + budget.side
        )
        far[is_near.to(far.device)] = 0
        far[:, 0] = 0
    centres = []
    for cell in far.flatten().topk(min(budget.blocks - 1, far.numel())).indices.tolist():
        if far.flatten()[cell] <= 0:
            break
        (top, bottom), (left, right) = row[cell // wide :][:2], column[cell % wide :][:2]
        w = site.window(head, slice(int(top), int(bottom)), slice(int(left), int(right)))[batch]
        at = int(w.argmax())
        centres.append((int(top) + at // w.shape[-1], int(left) + at % w.shape[-1]))
    return centres


def range_around(centre: int, side: int, count: int) -> range:
    side = min(side, count)
    start = min(max(centre - side // 2, 0), count - side)
    return range(start, start + side)


def _select_labels(labels: list[str], visible: set[int]) -> list[str] | dict[int, str]:
    return labels if len(labels) <= LABELS else {i: labels[i] for i in sorted(visible) if i >= 0}
