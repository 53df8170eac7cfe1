"""The data of a report page, of bounded size: numbers, pooled maps and exact windows."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d

from regard.inspection.heads.descriptions import describe_heads
from regard.inspection.heads.head_types import HeadRow
from regard.inspection.sites.labels import key_labels, query_labels
from regard.inspection.sites.site import Site
from regard.ops import Survey

# Limits of the whole page, divided among its heads; together they keep it under 3 MB.
PIXELS = 600_000  # of pooled maps, one byte each before compression
POINTS = 100_000  # of statistics per position, four bytes each
ENTRIES = 150_000  # top keys with their weights, four bytes each
CELLS = 160_000  # of exact windows, two bytes each

ROWS = 1500  # listed tokens; more make the page slow
WHOLE = 24  # maps up to this size are shown exactly
LABELS = 4096  # of longer inputs only the visible tokens are stored
PACKED = 65535  # weights are stored as multiples of 1/65535
STRIPS = ("entropy", "first_share", "received")


@dataclass(frozen=True)
class PageBudget:
    """Limits of each head on the page."""

    image: int  # side of a pooled map, in cells
    strip: int  # length of a statistic, in cells
    top: int  # top keys per query
    rows: int  # queries with top keys
    side: int  # side of an exact window
    windows: int

    @classmethod
    def for_heads(cls, heads: int, queries: int) -> "PageBudget":
        """Divide the page among the heads, of which the longest has `queries` queries."""
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
    """The data of one site for JSON; arrays are base64."""
    names = [*STRIPS, "top_weights", "top_keys", "pooled_map"]
    cells = (min(budget.image, site.queries), min(budget.image, site.keys))
    survey = site.survey(
        statistics=names, first_keys=1, top_k=max(budget.top, 3), pooled_size=cells
    )
    rows_shown = list(range(site.queries))
    if site.queries > budget.rows:  # a quarter from the start, the rest from the end
        start = budget.rows // 4
        rows_shown = rows_shown[:start] + rows_shown[start - budget.rows :]
    windows = _windows(site, survey, budget, batch, chosen_queries)
    queries = sorted(set(rows_shown) | {i for w in windows for i in range(*w["rows"])})
    maps = survey.pooled_map[batch].float()
    maps = (maps / maps.amax((-2, -1), keepdim=True).clamp(min=1e-30)).sqrt()  # own scale per head
    sprite = encode_png(torch.cat(list(maps), -1))
    top_keys = {key for key in survey.top_keys[batch][:, rows_shown].unique().tolist() if key >= 0}
    keys = sorted(top_keys | {j for w in windows for j in range(*w["keys"])})
    return {
        "name": site.name,
        "call": site.call,
        "kind": site.kind,
        "queries": site.queries,
        "keys": site.keys,
        "offset": site.terms.offset,
        "image": {"cells": cells, "png": b64encode(sprite).decode()},
        "strips": _strips(survey, budget.strip, batch),
        "top": _top(survey, rows_shown, budget.top, batch),
        "windows": windows,
        "query_labels": _select_labels(query_labels(site, batch), queries),
        "key_labels": _select_labels(key_labels(site, batch), keys),
        "words": describe_heads(site, batch, list(rows), survey),
        "heads": [asdict(row) for row in rows],
    }


def encode_base64(x: Tensor, dtype: str) -> str:
    """A tensor as base64 of little-endian f4, u2 or u4."""
    return b64encode(np.ascontiguousarray(x.cpu().numpy()).astype(f"<{dtype}").tobytes()).decode()


def encode_png(values: Float[Tensor, "row column"]) -> bytes:
    """Values from 0 to 1 as a PNG with the cividis colormap, one pixel each."""
    from matplotlib import colormaps
    from PIL import Image

    pixels = (values.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    image, buffer = Image.fromarray(pixels), BytesIO()
    image.putpalette(colormaps["cividis"](range(256), bytes=True)[:, :3].tobytes())
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _strips(survey: Survey, length: int, batch: int) -> dict[str, dict[str, Any]]:
    strips = {}
    for name in STRIPS:
        x = getattr(survey, name)[batch].float()
        count = x.shape[-1]
        x = adaptive_avg_pool1d(x[None], length)[0] if count > length else x
        strips[name] = {"count": count, "cells": x.shape[-1], "data": encode_base64(x, "f4")}
    return strips


def _top(survey: Survey, rows: list[int], count: int, batch: int) -> dict[str, Any]:
    weights = survey.top_weights[batch][:, rows, :count]
    keys = survey.top_keys[batch][:, rows, :count]
    dtype = "u2" if int(keys.max()) < PACKED else "u4"
    keys = torch.where(keys < 0, PACKED if dtype == "u2" else 2**32 - 1, keys)
    arrays = {"keys": encode_base64(keys, dtype), "weights": _encode_weights(weights)}
    return {"rows": rows, "count": count, "dtype": dtype, **arrays}


def _encode_weights(w: Tensor) -> str:
    return encode_base64((w * PACKED).round().clamp(0, PACKED), "u2")


def _windows(
    site: Site, survey: Survey, budget: PageBudget, batch: int, queries: Sequence[int]
) -> list[dict[str, Any]]:
    """Exact weights: the whole map if it is small, else windows around some queries."""
    if max(site.queries, site.keys) <= min(budget.side, WHOLE):
        spans = [(range(site.queries), range(site.keys))]
    else:
        chosen = [i % site.queries for i in queries] or _default_queries(site, survey, batch)
        spans = []
        for i in chosen[: budget.windows]:  # keys around its position or, crossing, its top key
            top_key = int(survey.top_keys[batch, :, i, 0].float().median())
            centre = i + site.terms.offset if site.kind == "self" else top_key
            rows = _range_around(i, budget.side, site.queries)
            spans.append((rows, _range_around(centre, budget.side, site.keys)))
    windows = []
    for rows, keys in spans:
        y, x = (rows.start, rows.stop), (keys.start, keys.stop)
        data = _encode_weights(site.window(None, slice(*y), slice(*x))[batch])
        windows.append({"rows": y, "keys": x, "data": data})
    return windows


def _default_queries(site: Site, survey: Survey, batch: int) -> list[int]:
    """The last query, and the one at the position that receives most."""
    last = site.queries - 1
    if site.kind == "cross":
        return [last, site.queries // 2]
    most = int(survey.received[batch].sum(0)[1:].argmax()) + 1 - site.terms.offset
    return list(dict.fromkeys([last, min(max(most, 0), last)]))


def _range_around(centre: int, side: int, count: int) -> range:
    side = min(side, count)
    start = min(max(centre - side // 2, 0), count - side)
    return range(start, start + side)


def _select_labels(labels: list[str], visible: list[int]) -> list[str] | dict[int, str]:
    return labels if len(labels) <= LABELS else {i: labels[i] for i in visible}
