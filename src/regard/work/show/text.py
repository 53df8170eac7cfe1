"""Solutions and their shapes as plain text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy

from regard.work.exact.numbers import format_decimal, format_plain
from regard.work.rules import Matrix
from regard.work.shapes import format_shape, product_convention, product_factors
from regard.work.show.selection import DisplayStep, first_entry, select
from regard.work.solution import Solution, Step

if TYPE_CHECKING:
    from rich.text import Text

STYLES = {"heading": "bold", "formula": "cyan", "entry": "", "exact": "green", "rounded": "yellow"}
StyledLine = tuple[str, str]  # text, style


def as_text(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> str:
    """Format a solution as plain text: formula, arithmetic of one entry, and result per step.

    >>> solution = rg.work.solve({"given": {"X": [[1, 0], [0, 2]]}, "scale": 1})
    >>> print(as_text(solution, only=["N"]))
    3. The normaliser of each query
       N = row sums of E
       N₁₁ = 2.71828 + 1 = 3.71828 …
       N ≈ [3.71828]
           [55.5982]
    """
    return "\n".join(line for line, _ in _lines(solution, digits, only))


def as_rich(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> "Text":
    """Format a solution as coloured text for a terminal."""
    from rich.text import Text  # slow to import

    parts = [Text(line, style=STYLES[kind]) for line, kind in _lines(solution, digits, only)]
    return Text("\n").join(parts)


def _lines(solution: Solution, digits: int, only: Sequence[str]) -> list[StyledLine]:
    shown, blocks = select(solution, digits, only), []
    if shown.given:
        given = [
            (_equation(name, value, digits, value.has(sympy.Float)), "exact")
            for name, value in shown.given.items()
        ]
        blocks.append([("Given", "heading"), *given])
    blocks += [_step_lines(solution, one, digits) for one in shown.steps]
    if shown.remarks:
        remarks = [(f" - {remark}", "entry") for remark in shown.remarks]
        blocks.append([("Remarks", "heading"), *remarks])
    return [line for block in blocks for line in (("", "entry"), *block)][1:]


def _step_lines(solution: Solution, one: DisplayStep, digits: int) -> list[StyledLine]:
    lines = [(f"{one.number}. {one.heading}", "heading"), (f"   {one.step.formula}", "formula")]
    if one.entry is not None:
        lines.append((f"   {entry_text(solution, one.step, digits)}", "entry"))
    for is_rounded in one.results:
        equation = _equation(f"   {one.step.name}", one.step.value, digits, is_rounded)
        lines.append((equation, "rounded" if is_rounded else "exact"))
    return lines


def entry_text(solution: Solution, step: Step, digits: int = 6) -> str:
    """Arithmetic of the first entry as text; "" where there is none.

    >>> solution = rg.work.solve({"given": {"X": [[1, 0], [0, 2]]}, "scale": 1})
    >>> entry_text(solution, solution.steps[0])
    'S₁₁ = 1·1 + 0·0 = 1'
    """
    entry = first_entry(solution, step, digits)
    if entry is None:
        return ""
    mark = "" if step.value.shape == (1, 1) else " (1,1)" if "_" in step.name else "₁₁"
    return f"{step.name}{mark} = {' = '.join(entry)}"


def _equation(name: str, value: Matrix, digits: int, is_rounded: bool) -> str:
    head = f"{name} {'≈' if is_rounded else '='} "
    cells = [
        [format_decimal(x, digits) if is_rounded else format_plain(x) for x in value.row(i)]
        for i in range(value.rows)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = [f"[{'  '.join(map(str.rjust, row, widths))}]" for row in cells]
    return head + f"\n{' ' * len(head)}".join(rows)


def list_shapes(solution: Solution) -> list[tuple[str, str, str]]:
    """Name, shape and origin of every matrix of a solution.

    >>> list_shapes(rg.work.solve({"given": {"X": [[1, 0], [1, 1], [0, 2]]}}))[2]
    ('S', '3×3', 'X Xᵀ: 3×2 times 2×3')
    """
    values = solution.values()
    rows = [(name, format_shape(value), "given") for name, value in solution.given.items()]
    for step in solution.steps:
        origin = step.formula.partition(" = ")[2]
        if factors := product_factors(step.rule, step.inputs, values):
            origin += ": " + " times ".join("×".join(map(str, x.shape)) for x in factors)
        rows.append((step.name, format_shape(step.value), origin))
    return rows


def detect_convention(solution: Solution) -> str:
    """Convention of a solution (tokens as rows or columns), from its products; "" if none shows.

    >>> detect_convention(rg.work.solve({"given": {"X": [[1, 0], [1, 1], [0, 2]]}}))
    'tokens are rows: X W, Q Kᵀ, A V'
    """
    values = solution.values()
    for step in solution.steps:
        factors = product_factors(step.rule, step.inputs, values)
        is_square = step.rule == "product" and step.inputs[0] == step.inputs[1]
        if factors and not is_square and (convention := product_convention(*factors)):
            return convention
    return ""


def shapes_as_text(solution: Solution) -> str:
    """The convention and the shape table as text."""
    rows = list_shapes(solution)
    width, size = (max(len(row[n]) for row in rows) for n in (0, 1))
    lines = [f"{name:<{width}}  {shape:>{size}}  {origin}" for name, shape, origin in rows]
    return "\n".join([*filter(None, [detect_convention(solution)]), *lines])
