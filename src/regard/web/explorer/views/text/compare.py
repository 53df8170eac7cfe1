"""Two heads, two texts, two languages or two models side by side, with their difference."""

from typing import Any

import torch
from pydantic import Field

from regard.errors import ShapeError
from regard.inspection import Site, compare_sights
from regard.inspection.sites.labels import key_labels, query_labels
from regard.web.explorer.explorer import Explorer
from regard.web.explorer.queries import MAX_CHARS, Rows, pack, query
from regard.web.explorer.recordings import find_head
from regard.web.explorer.views.text.inputs import HeadRequest, read
from regard.web.jobs import Job

MAX_CELLS = 256  # rows and columns of a map; longer texts are pooled
MAX_HEADS = 40  # rows of the table
COLUMNS = ("site", "head", "distance", "query", "key", "before", "after")


class CompareRequest(HeadRequest):
    """A head, and another head, text, language or model to compare it with."""

    other_site: str | None = Field(None, max_length=300)
    other_head: int | None = Field(None, ge=0, le=100_000)
    other_text: str | None = Field(None, max_length=MAX_CHARS)
    other_to: str | None = Field(None, max_length=20)
    other_model: str | None = Field(None, max_length=200)


def _table(response: Any) -> Rows:
    return [COLUMNS, *([row[name] for name in COLUMNS] for row in response["heads"])]


@query("text.compare", CompareRequest, table=_table)
@torch.no_grad()
def answer_text_compare(explorer: Explorer, request: CompareRequest, job: Job) -> dict[str, Any]:
    """Both maps and their difference, and the heads that differ most."""
    first = read(explorer, request, job)
    others = (request.other_text, request.other_to, request.other_model)
    if others == (None, None, None):
        site, head = find_head(first.sight, request.site, request.head)
        name = request.site if request.other_site is None else request.other_site
        number = request.head if request.other_head is None else request.other_head
        return _two_heads(site, head, *find_head(first.sight, name, number))
    other = request.model_copy(
        update={
            "model": request.other_model or request.model,
            "text": request.text if request.other_text is None else request.other_text,
            "to": request.other_to or request.to,
            "target": request.target if request.other_text is None else None,
        }
    )
    second = read(explorer, other, job)
    job.report(0.9, "comparing every head")
    comparison = compare_sights(first.sight, second.sight)
    find_head(first.sight, request.site, request.head)
    if request.site not in comparison.pairs:
        names = ", ".join(list(comparison.pairs)[:8])
        raise ShapeError(f"site: needs one that both have, {names}, got {request.site!r}")
    pair = comparison.pairs[request.site]
    pool = _pool(len(pair.queries)), _pool(len(pair.keys))
    return {
        "maps": pack(comparison.maps(request.site, request.head, pool)),
        "pool": list(pool),
        "query_tokens": [t.label for t in pair.queries],
        "key_tokens": [t.label for t in pair.keys],
        "names": [request.site, pair.second.name],
        "outputs": [first.target, second.target],
        "heads": comparison.to_dicts()[:MAX_HEADS],
        "unmatched": comparison.unmatched,
    }


def _two_heads(site: Site, head: int, other: Site, other_head: int) -> dict[str, Any]:
    """Two heads of one forward pass, over the same queries and keys."""
    if (site.queries, site.keys) != (other.queries, other.keys):
        raise ShapeError(
            f"other_site: needs {site.queries} queries and {site.keys} keys as {site.name} has, "
            f"got {other.queries} and {other.keys}; try one of the same group"
        )
    pool = _pool(site.queries), _pool(site.keys)
    w, w_other = (x.window(h, pool=pool)[0].float() for x, h in ((site, head), (other, other_head)))
    return {
        "maps": pack(torch.stack([w, w_other, w_other - w])),
        "pool": list(pool),
        "query_tokens": query_labels(site),
        "key_tokens": key_labels(site),
        "names": [f"{site.name}, head {head}", f"{other.name}, head {other_head}"],
        "outputs": [None, None],
        "heads": [],
        "unmatched": [],
    }


def _pool(count: int) -> int:
    return -(-count // MAX_CELLS)
