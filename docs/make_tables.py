"""Generate the tables of edits and of statistics from what they declare: `make docs`.

Each stands in its page between two comments, such as `<!-- edits -->` and `<!-- end of edits -->`.
A test compares the pages with the registries.
"""

import re
from pathlib import Path

from regard.inspection.edits.registry import EDITS, EditType
from regard.ops.survey.statistics import STATISTICS, Statistic

DOCS = Path(__file__).resolve().parent


def edit_table() -> str:
    """One row per edit: its parameters, the range of each number, and its formula."""
    rows = [
        f"| {_call(x)} | {x.meaning} | {_ranges(x)} | {_code(x.formula)} |" for x in EDITS.values()
    ]
    return "\n".join(
        [
            "| `rg.edit.` | effect | range of the slider | change of a head's output |",
            "|---|---|---|---|",
            *rows,
        ]
    )


def statistic_table() -> str:
    """One row per statistic: its definition, its axes and what computes it."""
    rows = [_statistic_row(x) for x in STATISTICS.values()]
    return "\n".join(
        [
            "| statistic | definition | one value per | default | gradient |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


TABLES = {
    "edits": (DOCS / "look/what-if.md", edit_table),
    "statistics": (DOCS / "look/statistics.md", statistic_table),
}


def page(name: str) -> str:
    """The page of a table, with the table as it is now."""
    path, table = TABLES[name]
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = f"{start}\n{table()}\n{end}"
    return re.sub(f"(?s){start}.*{end}", lambda _: text, path.read_text(encoding="utf-8"))


def _call(edit: EditType) -> str:
    parameters = (x.name if x.is_required else f"{x.name}=" for x in edit.parameters)
    return f"`{edit.name}({', '.join(parameters)})`"


def _ranges(edit: EditType) -> str:
    return ", ".join(
        f"`{x.name}` {x.range.low:g} to {x.range.high:g} (no effect: {x.range.neutral:g})"
        for x in edit.parameters
        if x.range is not None
    )


def _code(formula: str) -> str:
    return f"`{formula}`" if formula else ""


def _statistic_row(x: Statistic) -> str:
    meaning = re.sub(r"\|(.*?)\|", r"abs(\1)", x.meaning)  # a bar ends a cell
    axes = " and ".join(x.axes)
    marks = ("yes" if on else "" for on in (x.default, x.differentiable))
    return f"| `{x.name}` | {meaning} | {axes} | {' | '.join(marks)} |"


if __name__ == "__main__":
    for name, (path, _) in TABLES.items():
        path.write_text(page(name), encoding="utf-8")
