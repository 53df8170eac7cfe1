"""Documents: sections of text, tables, curves and maps, which the view `report` of the page draws.

document_page("A run", "Two sentences.", {"Scores": [text("On 200 examples."), table(…)]})
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import version
from math import isfinite
from typing import Any

from regard.page.offline import offline_page, saved

Block = dict[str, Any]  # JSON: its kind, and what the view draws
Sections = Mapping[str, Sequence[Block]]


def document_page(title: str, summary: str, sections: Sections) -> str:
    """One HTML file; without JavaScript it has all but the curves and the maps.

    >>> page = document_page("Q & A", "", {"Scores": [table("Scores", ["name"], [["<b>"]])]})
    >>> "<title>Q &amp; A</title>" in page, "<b>" in page
    (True, False)
    """
    parts = [{"name": name, "blocks": list(blocks)} for name, blocks in sections.items() if blocks]
    written = f"Written by regard {version('regard')}."
    response = {"summary": summary, "sections": parts, "written": written}
    plain = "".join(
        f"<h2>{escape(name)}</h2>{''.join(map(_plain, blocks))}"
        for name, blocks in sections.items()
        if blocks
    )
    plain = f"<h1>{escape(title)}</h1><p>{escape(summary)}</p>{plain}<p>{escape(written)}</p>"
    return offline_page("/report", [saved("report", response)], title=title, plain_html=plain)


def text(content: str, *, soft: bool = False) -> Block:
    """A paragraph; a soft one is a remark."""
    return {"kind": "text", "text": content, "soft": soft}


def bullets(lines: Iterable[str]) -> Block:
    """A list."""
    return {"kind": "list", "lines": list(lines)}


def code(content: str, prompt: str = "") -> Block:
    """Code or the text of a model; what it was given stands before it in bold."""
    return {"kind": "code", "prompt": prompt, "text": content}


def tiles(items: Iterable[tuple[str, str, str]]) -> Block:
    """Numbers in large print: name, number and a note each."""
    return {"kind": "tiles", "items": [list(x) for x in items]}


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Block]],
    *,
    numbers: Iterable[int] = (),
    fold: bool = False,
) -> Block:
    """A table of texts, pictures and marks; the first column names the rows.

    Args:
        caption: of the table.
        columns: names of the columns.
        rows: cells, each a text, `picture` or `mark`.
        numbers: indices of columns that are aligned to the right.
        fold: whether the table is closed at first.
    """
    cells = [list(row) for row in rows]
    return {"kind": "table", "caption": caption, "columns": list(columns), "rows": cells,
            "numbers": list(numbers), "fold": fold}  # fmt: skip


def picture(png: bytes, alt: str) -> Block:
    """A small picture, pixel by pixel."""
    return {"kind": "picture", "png": b64encode(png).decode(), "alt": alt}


def mark(is_correct: bool) -> Block:
    """A cell that says whether an output is correct."""
    return {"kind": "mark", "text": "✓ correct" if is_correct else "✗ wrong", "ok": is_correct}


def chart(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    at: float | None = None,
    log: bool = False,
) -> Block:
    """Curves over a common x axis, by name; a vertical line `at` a place."""
    curves = [
        {"name": name, "x": [x for x, _ in points], "y": [y for _, y in points]}
        for name, points in series.items()
    ]
    return {"kind": "chart", "title": title, "series": curves, "x_label": x_label, "at": at,
            "log": log}  # fmt: skip


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    limit: float = 1.0,
    signed: bool = False,
    beside: Block | None = None,
) -> Block:
    """A map with labelled rows and columns; signed values have two colours, and NaN is hidden.

    Args:
        title: above the map.
        rows: labels.
        columns: labels.
        values: one list per row.
        limit: value of the strongest colour.
        signed: whether values are differences.
        beside: another block, such as the picture that the map is about.
    """
    cells = [[round(x, 5) if isfinite(x) else None for x in row] for row in values]
    return {"kind": "map", "title": title, "rows": list(rows), "columns": list(columns),
            "values": cells, "limit": limit, "signed": signed, "beside": beside}  # fmt: skip


def confusions(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Block:
    """Counts by class of the reference (rows) and predicted class (columns)."""
    return {"kind": "confusions", "names": list(names), "counts": [list(row) for row in counts]}


def tokens(items: Iterable[tuple[str, str]]) -> Block:
    """A text, token by token, each with a note such as "first only"; an empty one is no note."""
    return {"kind": "tokens", "items": [list(x) for x in items]}


def _plain(block: Block) -> str:
    """A block without JavaScript."""
    match block["kind"]:
        case "text":
            return f"<p>{escape(block['text'])}</p>"
        case "list":
            return f"<ul>{''.join(f'<li>{escape(x)}</li>' for x in block['lines'])}</ul>"
        case "code":
            return f"<pre><b>{escape(block['prompt'])}</b>{escape(block['text'])}</pre>"
        case "tokens":
            return f"<p>{escape(' '.join(label for label, _ in block['items']))}</p>"
        case "table":
            return plain_table(block["caption"], block["columns"], block["rows"])
        case "confusions":
            rows = [[n, *x] for n, x in zip(block["names"], block["counts"], strict=True)]
            return plain_table("Confusions", ["", *block["names"]], rows)
        case "picture":
            return f'<img alt="{escape(block["alt"])}" src="data:image/png;base64,{block["png"]}">'
        case "mark":
            return escape(block["text"])
    return ""  # tiles are rows of a table, too


def plain_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table without JavaScript.

    >>> plain_table("", ["a"], [["<"]])
    '<table><caption></caption><tr><th>a</th></tr><tr><td>&lt;</td></tr></table>'
    """
    lines = [
        "".join(f"<td>{_plain(x) if isinstance(x, dict) else escape(str(x))}</td>" for x in row)
        for row in rows
    ]
    head = "".join(f"<th>{escape(x)}</th>" for x in columns)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"
