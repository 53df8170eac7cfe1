"""Writes a self-contained HTML page, or a figure, about the comparison of two sights."""

from base64 import b64encode
from html import escape
from io import BytesIO
from pathlib import Path

from regard.errors import FileError
from regard.files import write_text
from regard.inspection.figures.canvas import SUFFIXES, render
from regard.inspection.figures.effects import draw_comparison
from regard.inspection.record.sight_comparison import AlignedToken, SightComparison
from regard.inspection.sites.labels import shorten_label
from regard.tables import html_table

MAX_NAME = 200  # characters
MAX_TOKENS = 2000  # shown of each text
COLUMNS = {
    "site": "site",
    "head": "head",
    "distance": "distance of maps",
    "entropy": "Δ entropy",
    "first_share": "Δ first key",
    "previous_share": "Δ previous",
    "self_share": "Δ self",
    "mean_distance": "Δ mean distance",
    "query": "query",
    "key": "key",
    "before": "weight before",
    "after": "after",
}
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Comparison of attention</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .15rem .7rem .15rem 0; text-align: left; border-bottom: 1px solid #ddd }}
.a {{ background: #fdd9a8 }} .b {{ background: #d8cdea }} .ab {{ background: #e6e6e6 }}
.tokens span {{ margin-right: .3em; padding: 0 .15em }} img {{ max-width: 100% }}
</style>
<h1>Comparison of attention</h1>
<p><span class="a">first</span>: {first}<br><span class="b">second</span>: {second}</p>
<p class="tokens">{tokens}</p>
<p>Marked tokens are in <span class="a">the first</span> or <span class="b">the second</span> text
only, or <span class="ab">replaced</span>. Differences are the second minus the first, means over
the queries of both; the distance of two maps is 0 if they are equal and 1 if no key is shared.</p>
<img alt="Maps of the heads that differ most" src="data:image/png;base64,{png}">
<h2>{count} heads, the most different first</h2>
{table}{unmatched}
</html>
"""


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
    image = BytesIO()
    render(draw_comparison(comparison, count=count), image, format="png", dpi=110)
    pair = next(iter(comparison.pairs.values()))
    rows = comparison.top(len(comparison.rows))
    only = ", ".join(comparison.unmatched)
    page = PAGE.format(
        first=escape(shorten_label(comparison.names[0], MAX_NAME)),
        second=escape(shorten_label(comparison.names[1], MAX_NAME)),
        tokens=" ".join(map(_render_token, pair.keys[:MAX_TOKENS])),
        png=b64encode(image.getvalue()).decode(),
        count=len(rows),
        table=html_table([*COLUMNS.values()], ([getattr(r, n) for n in COLUMNS] for r in rows)),
        unmatched=(f"<p>In one only: {escape(only)}</p>" if only else "")
        + (f"<p>{escape(comparison.missing)}</p>" if comparison.missing else ""),
    )
    return write_text(path, page)


def _render_token(token: AlignedToken) -> str:
    kind = "a" if token.second is None else "b" if token.first is None else ""
    kind = kind or ("ab" if " | " in token.label else "")
    return f'<span class="{kind}">{escape(token.label)}</span>'
