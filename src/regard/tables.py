"""Tables as plain text and as HTML."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from torch import Tensor

MAX_HTML_ROWS = 200


def format_table(table: Any, width: int = 120) -> str:
    """Render a rich renderable as plain text, without colours.

    >>> from rich.table import Table
    >>> table = Table("head", box=None, pad_edge=False)
    >>> table.add_row("3")
    >>> print(format_table(table))
    head
    3
    """
    from rich.console import Console  # slow to import

    # in Jupyter a console would display what it captures
    console = Console(width=width, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def text_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Collection[str] = (),
    fold: str | None = None,
) -> str:
    """A table as plain text; `right` names columns of numbers, `fold` one that wraps.

    >>> print(text_table(["head", "score"], [[3, "0.5"]], right=["score"]))
    head  score
    3       0.5
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in columns:
        side, overflow = ("right" if name in right else "left"), ("fold" if name == fold else None)
        table.add_column(name, justify=side, overflow=overflow or "ellipsis")
    for row in rows:
        table.add_row(*(Text(str(x)) for x in row))  # Text: a token may look like rich's markup
    return format_table(table)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table: floats to three decimals, text escaped, at most 200 rows.

    >>> html_table(["a"], [["<"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = ["".join(f"<td>{_format_cell(x)}</td>" for x in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines[:MAX_HTML_ROWS])
    hidden = len(lines) - MAX_HTML_ROWS
    note = f"<p>… and {hidden} more</p>" if hidden > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def html_summary(tensors: Mapping[str, Tensor]) -> str:
    """An HTML table with shape, minimum, mean and maximum of each tensor.

    >>> import torch
    >>> "<td>1 × 2</td><td>0.000</td><td>0.500</td>" in html_summary({"a": torch.eye(2)[:1]})
    True
    """
    rows = []
    for name, x in tensors.items():
        x = x.detach().double()
        numbers = [x.min().item(), x.mean().item(), x.max().item()] if x.numel() else [math.nan] * 3
        rows.append((name, " × ".join(map(str, x.shape)), *numbers))
    return html_table(("statistic", "shape", "min", "mean", "max"), rows)


def _format_cell(x: object) -> str:
    return f"{x:.3f}" if isinstance(x, float) else escape(str(x))
