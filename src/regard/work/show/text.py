"""Solutions as plain or coloured text."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import sympy

from regard.work.exact.numbers import format_decimal, format_plain
from regard.work.rules import Matrix
from regard.work.show.selection import (
    DisplayStep,
    first_entry,
    select_given,
    select_remarks,
    select_steps,
)
from regard.work.solution import Solution, Step

if TYPE_CHECKING:
    from rich.text import Text

STYLES = {"heading": "bold", "formula": "cyan", "entry": "", "exact": "green", "rounded": "yellow"}
StyledLine = tuple[str, str]  # text, style

INFINITY_TEXT = {"oo": "inf", "-oo": "-inf"}


def as_text(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> str:
    """Format a solution as plain text: formula, arithmetic of one entry, and result per step.

    >>> from regard.work.families.attention import solve_attention
    >>> print(as_text(solve_attention({"X": [[1, 0], [0, 2]]}, scale=1), only=["N"]))
    3. The normaliser of each query
       N = row sums of E
       N₁₁ = 2.71828 + 1 = 3.71828 …
       N ≈ [3.71828]
           [55.5982]
    """
    return "\n".join(line for line, _ in _lines(solution, digits, only))


def as_rich(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> "Text":
    """Format a solution as coloured text for a terminal.

    >>> from regard.work.families.attention import solve_attention
    >>> as_rich(solve_attention({"X": [[1, 0], [0, 2]]}, scale=1)).plain[:5]
    'Given'
    """
    from rich.text import Text  # slow to import

    parts = [Text(line, style=STYLES[kind]) for line, kind in _lines(solution, digits, only)]
    return Text("\n").join(parts)


def _lines(solution: Solution, digits: int, only: Sequence[str]) -> list[StyledLine]:
    lines: list[StyledLine] = []
    given = select_given(solution, only)
    if given:
        lines.append(("Given", "heading"))
        lines += [(_given_text(n, v, digits), "exact") for n, v in given.items()]
    for one in select_steps(solution, only, digits):
        if lines:
            lines.append(("", "entry"))
        lines += _step_lines(solution, one, digits)
    if remarks := select_remarks(solution, only):
        lines += [("", "entry")] if lines else []
        lines.append(("What follows", "heading"))
        lines += [(f" - {remark}", "entry") for remark in remarks]
    return lines


def _given_text(name: str, value: Matrix, digits: int) -> str:
    if value.has(sympy.Float):  # a float of a model: rounded
        return _indented(f"{name} ≈ ", _grid(value, lambda x: format_decimal(x, digits)))
    return _indented(f"{name} = ", _grid(value, format_plain))


def _step_lines(solution: Solution, one: DisplayStep, digits: int) -> list[StyledLine]:
    name, value = one.step.name, one.step.value
    lines = [(f"{one.number}. {one.heading}", "heading"), (f"   {one.step.formula}", "formula")]
    if one.entry is not None:
        lines.append((f"   {entry_text(solution, one.step, digits)}", "entry"))
        if value.shape == (1, 1):
            return lines  # the entry is all there is
    if one.show_exact:
        lines.append((_indented(f"   {name} = ", _grid(value, format_plain)), "exact"))
    if one.show_rounded:
        grid = _grid(value, lambda x: format_decimal(x, digits))
        lines.append((_indented(f"   {name} ≈ ", grid), "rounded"))
    return lines


def entry_text(solution: Solution, step: Step, digits: int = 6) -> str:
    """Arithmetic of the first entry as text; "" where there is none.

    >>> from regard.work.families.attention import solve_attention
    >>> solution = solve_attention({"X": [[1, 0], [0, 2]]}, scale=1)
    >>> entry_text(solution, solution.steps[0])
    'S₁₁ = 1·1 + 0·0 = 1'
    """
    entry = first_entry(solution, step, digits)
    if entry is None:
        return ""
    mark = "" if step.value.shape == (1, 1) else " (1,1)" if "_" in step.name else "₁₁"
    return f"{step.name}{mark} = {entry.expression} = {entry.result}"


def _grid(value: Matrix, format_number: Callable[[sympy.Expr], str]) -> list[str]:
    cells = [
        [INFINITY_TEXT.get(text := format_number(x), text) for x in value.row(i)]
        for i in range(value.rows)
    ]
    wide = [max(len(row[j]) for row in cells) for j in range(value.cols)]
    return [
        "[" + "  ".join(x.rjust(w) for x, w in zip(row, wide, strict=True)) + "]" for row in cells
    ]


def _indented(head: str, rows: list[str]) -> str:
    return "\n".join((head if n == 0 else " " * len(head)) + row for n, row in enumerate(rows))
