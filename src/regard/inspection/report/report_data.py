"""What a report holds, as plain data of bounded size: numbers, pooled maps, exact windows."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d

from regard.inspection.heads.descriptions import describe_heads
from regard.inspection.heads.head_types import HeadRow
from regard.inspection.report.png import encode_png
from regard.inspection.sites.labels import key_labels, query_labels
from regard.inspection.sites.site import Site
from regard.ops import Survey

# What a page may hold in all, shared out among its heads; together they keep it under 3 MB.
PIXELS = 600_000  # of pooled maps, a byte each before compression
POINTS = 100_000  # of strips, four bytes each
ENTRIES = 150_000  # top keys with their weights, four bytes each
CELLS = 160_000  # of exact windows, two bytes each

ROWS = 1500  # tokens that a page can list and still answer at once
WHOLE = 24  # a map up to this is shown whole and exact
LABELS = 4096  # of more tokens only those are named that the page shows
PACKED = 65535  # a weight is kept as a whole number of 65535ths
STRIPS = ("entropy", "first_share", "received")


@dataclass(frozen=True)
class PageBudget:
    """How much of the page each head gets."""

    image: int  # cells on a side of a pooled map
    strip: int  # cells of a strip
    top: int  # keys named for a query
    rows: int  # queries whose top keys are kept
    side: int  # rows and keys of an exact window
    windows: int

    @classmethod
    def for_heads(cls, heads: int, queries: int) -> "PageBudget":
        """Divide the page among so many heads, of which the longest has so many queries.

        >>> PageBudget.for_heads(heads=144, queries=512)
        PageBudget(image=64, strip=231, top=2, rows=512, side=23, windows=2)
        """
        image = max(8, min(256, int((PIXELS / heads) ** 0.5)))
        top = max(2, min(5, ENTRIES // (heads * queries)))
        cells = CELLS // heads
        windows = max(1, min(2, cells // 512))
        return cls(
            image=image,
            strip=max(16, min(512, POINTS // (heads * len(STRIPS)))),
            top=top,
            rows=max(8, min(queries, ROWS, ENTRIES // (heads * top))),
            side=max(4, min(WHOLE, int((cells / windows) ** 0.5))),
            windows=windows,
        )


@torch.no_grad()
def site_data(
    site: Site,
    rows: Sequence[HeadRow],
    budget: PageBudget,
    batch: int,
    chosen_queries: Sequence[int],
) -> dict[str, Any]:
    """One attention, ready for JSON: numbers of many heads are packed as base64."""
    ask = ["entropy", "first_share", "received", "top_weights", "top_keys", "pooled_map"]
    cells = (min(budget.image, site.queries), min(budget.image, site.keys))
    found = site.survey(statistics=ask, first_keys=1, top_k=max(budget.top, 3), pooled_size=cells)
    shown = _shown(site.queries, budget.rows)
    windows = _windows(site, found, budget, batch, chosen_queries)
    named = sorted(set(shown) | {i for w in windows for i in range(*w["rows"])})
    return {
        "name": site.name,
        "call": site.call,
        "kind": site.kind,
        "queries": site.queries,
        "keys": site.keys,
        "offset": site.terms.offset,
        "image": {"cells": cells, "png": _sprite(found.pooled_map, batch)},
        "strips": _strips(found, budget.strip, batch),
        "top": _top(found, shown, budget.top, batch),
        "windows": windows,
        "query_labels": _named(query_labels(site, batch), named),
        "key_labels": _named(key_labels(site, batch), _keys_named(found, shown, windows, batch)),
        "words": describe_heads(site, batch, list(rows), found),
        "heads": [asdict(row) for row in rows],
    }


def encode_base64(x: Tensor, dtype: str) -> str:
    """Numbers as base64, little-endian: f4, u2 or u4.

    >>> encode_base64(torch.tensor([1.0]), "f4")
    'AACAPw=='
    """
    return b64encode(np.ascontiguousarray(x.cpu().numpy()).astype(f"<{dtype}").tobytes()).decode()


def _sprite(pooled: Tensor | None, batch: int) -> str:
    """The maps of all heads side by side in one picture, each on its own scale."""
    assert pooled is not None
    maps = pooled[batch].float()
    maps = (maps / maps.amax((-2, -1), keepdim=True).clamp(min=1e-30)).sqrt()
    return b64encode(encode_png(torch.cat(list(maps), -1))).decode()


def _strips(found: Survey, most: int, batch: int) -> dict[str, dict[str, Any]]:
    strips = {}
    for name in STRIPS:
        x = getattr(found, name)[batch].float()
        count = x.shape[-1]
        x = adaptive_avg_pool1d(x[None], most)[0] if count > most else x
        strips[name] = {"count": count, "cells": x.shape[-1], "data": encode_base64(x, "f4")}
    return strips


def _top(found: Survey, shown: list[int], most: int, batch: int) -> dict[str, Any]:
    assert found.top_weights is not None
    assert found.top_keys is not None
    weights, keys = (
        found.top_weights[batch][:, shown, :most],
        found.top_keys[batch][:, shown, :most],
    )
    wide = "u2" if int(keys.max()) < PACKED else "u4"
    keys = torch.where(keys < 0, PACKED if wide == "u2" else 2**32 - 1, keys)
    packed = (weights * PACKED).round().clamp(0, PACKED)
    return {
        "rows": shown,
        "most": most,
        "wide": wide,
        "keys": encode_base64(keys, wide),
        "weights": encode_base64(packed, "u2"),
    }


def _shown(queries: int, most: int) -> list[int]:
    """The queries whose top keys are kept: all, or the first quarter and the end."""
    if queries <= most:
        return list(range(queries))
    start = most // 4
    return [*range(start), *range(queries - (most - start), queries)]


def _windows(
    site: Site, found: Survey, shares: PageBudget, batch: int, around: Sequence[int]
) -> list[dict[str, Any]]:
    """Exact weights: the whole map where it is small, else around chosen tokens."""
    if max(site.queries, site.keys) <= min(shares.side, WHOLE):
        places = [(range(site.queries), range(site.keys))]
    else:
        chosen = [at % site.queries for at in around] or _chosen(site, found, batch)
        places = [_beside(site, found, at, shares.side, batch) for at in chosen[: shares.windows]]
    windows = []
    for down, across in places:
        w = site.window(None, slice(down.start, down.stop), slice(across.start, across.stop))
        packed = (w[batch] * PACKED).round().clamp(0, PACKED)
        windows.append(
            {
                "rows": (down.start, down.stop),
                "keys": (across.start, across.stop),
                "data": encode_base64(packed, "u2"),
            }
        )
    return windows


def _chosen(site: Site, found: Survey, batch: int) -> list[int]:
    """Without a wish of the caller: the last query, and the one whose own token receives most."""
    assert found.received is not None
    last = site.queries - 1
    if site.kind == "cross":
        return [last, site.queries // 2]
    most = int(found.received[batch].sum(0)[1:].argmax()) + 1 - site.terms.offset
    return list(dict.fromkeys([last, min(max(most, 0), last)]))


def _beside(site: Site, found: Survey, at: int, side: int, batch: int) -> tuple[range, range]:
    """The rows around a query and as many keys around where it stands, or looks."""
    assert found.top_keys is not None
    look = int(found.top_keys[batch, :, at, 0].float().median())
    centre = at + site.terms.offset if site.kind == "self" else look
    return _around(at, side, site.queries), _around(centre, side, site.keys)


def _around(at: int, side: int, count: int) -> range:
    side = min(side, count)
    start = min(max(at - side // 2, 0), count - side)
    return range(start, start + side)


def _keys_named(
    found: Survey, shown: list[int], windows: list[dict[str, Any]], batch: int
) -> list[int]:
    assert found.top_keys is not None
    looked = found.top_keys[batch][:, shown].unique().tolist()
    beside = {j for w in windows for j in range(*w["keys"])}
    return sorted({key for key in looked if key >= 0} | beside)


def _named(labels: list[str], needed: list[int]) -> list[str] | dict[int, str]:
    if len(labels) <= LABELS:
        return labels
    return {at: labels[at] for at in needed}
