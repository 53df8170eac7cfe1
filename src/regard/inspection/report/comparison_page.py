"""Writes an offline page, or a figure, about the comparison of two sights."""

from dataclasses import astuple, fields
from pathlib import Path

from regard.errors import FileError, counted
from regard.files import write_text
from regard.inspection.figures.canvas import SUFFIXES
from regard.inspection.figures.panels import draw_comparison
from regard.inspection.record.sight_comparison import AlignedToken, HeadDifference, SightComparison
from regard.inspection.sites.labels import shorten_label
from regard.page.document import Block, bullets, document_page, heat_map, table, text, tokens

MAX_NAME = 200  # characters
MAX_TOKENS = 2000  # shown of each text
MAX_SIDE = 96  # rows and columns of a map; longer ones are pooled
COLUMNS = (
    "site", "head", "distance of maps", "Δ entropy", "Δ first key", "Δ previous", "Δ self",
    "Δ mean distance", "query", "key", "weight before", "after",
)  # fmt: skip
NUMBERS = [n for n, x in enumerate(fields(HeadDifference)) if x.type is float]
SUMMARY = (
    "Marked tokens are in the first or the second text only, or replaced. Differences are the "
    "second minus the first, means over the queries of both; the distance of two maps is 0 if "
    "they are equal and 1 if no key is shared."
)


def write_comparison(comparison: SightComparison, path: str | Path, *, count: int = 4) -> Path:
    """Write a page about two sights: aligned tokens, the maps that differ most, a table of heads.

    A path that ends in .png, .svg or .pdf gets the maps alone; `count` heads are drawn.

    >>> import tempfile
    >>> sights = [rg.Sight([rg.make_site(x, x)]) for x in torch.randn(2, 5, 4)]
    >>> comparison = rg.inspection.compare_sights(*sights)
    >>> rg.inspection.write_comparison(comparison, Path(tempfile.mkdtemp()) / "both.html").name
    'both.html'
    """
    path = Path(path)
    if not path.resolve().parent.is_dir():
        raise FileError(f"{path}: needs an existing folder, got none of that name")
    if path.suffix.lower() in SUFFIXES:
        draw_comparison(comparison, count=count, path=path)
        return path
    first, second = (shorten_label(x, MAX_NAME) for x in comparison.names)
    keys = next(iter(comparison.pairs.values())).keys[:MAX_TOKENS]
    rows = [
        [f"{x:.3f}" if isinstance(x, float) else str(x) for x in astuple(row)]
        for row in comparison.top(len(comparison.rows))
    ]
    left_out = [f"In one only: {x}" for x in comparison.unmatched]
    left_out += [comparison.missing] if comparison.missing else []
    sections = {
        "Texts": [
            text(f"First: {first}\nSecond: {second}"),
            tokens((token.label, _note(token)) for token in keys),
        ],
        "Maps": [x for row in comparison.top(count) for x in _maps(comparison, row)],
        f"{counted(len(rows), 'head')}, the most different first": [
            table("Differences of the heads", COLUMNS, rows, numbers=NUMBERS)
        ],
        "Not compared": [bullets(left_out)] if left_out else [],
    }
    return write_text(path, document_page("Comparison of attention", SUMMARY, sections))


def _note(token: AlignedToken) -> str:
    if token.second is None:
        return "first only"
    return "second only" if token.first is None else "replaced" if " | " in token.label else ""


def _maps(comparison: SightComparison, row: HeadDifference) -> list[Block]:
    """Both maps of a head and their difference, over the tokens of both texts."""
    pair = comparison.pairs[row.site]
    sides = pair.queries, pair.keys
    pool = -(-len(sides[0]) // MAX_SIDE), -(-len(sides[1]) // MAX_SIDE)
    rows, columns = (
        [token.label if size == 1 else f"{token.label} …" for token in side[::size]]
        for side, size in zip(sides, pool, strict=True)
    )
    maps = comparison.maps(row.site, row.head, pool)
    most = maps.nan_to_num(0).abs().amax((-2, -1)).clamp(min=1e-12).tolist()
    limits = [max(most[:2])] * 2 + most[2:]
    mean = "" if pool == (1, 1) else f", means of {pool[0]} × {pool[1]}"
    return [
        heat_map(
            f"{row.site}, head {row.head}, {title}{mean}",
            rows,
            columns,
            x.tolist(),
            limit=limit,
            signed=title == "difference",
        )
        for title, x, limit in zip(("first", "second", "difference"), maps, limits, strict=True)
    ]
