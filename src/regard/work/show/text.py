"""What of a solution is shown, shared by all formats, and as plain text."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import sympy

from regard.errors import WorkError, suggestion
from regard.formulas import FormulaTree, equation, matrix, parse_name, parse_value
from regard.work.exact import format_decimal, format_plain, is_exact_in, is_infinity, is_short_form
from regard.work.rules import Matrix, get_rule
from regard.work.shapes import format_shape, product_convention, product_factors
from regard.work.solution import Solution, Step

if TYPE_CHECKING:
    from rich.text import Text

IN_ONE_LINE = "Gradients in one line"
MAX_ENTRY_CHARS = 160  # longer worked entries are not shown


class DisplayStep(NamedTuple):
    """One step for display: number, worked entry, and whether to show exact and rounded values."""

    number: int
    step: Step
    entry: tuple[str, str] | None  # arithmetic of the first entry, and its result
    results: tuple[bool, ...]  # per equation of the matrix: whether it is rounded

    def equations(self, digits: int = 6) -> list[FormulaTree]:
        """The results to show: exact, rounded, or both."""
        step = self.step
        return [value_equation(step.name, step.value, digits, x) for x in self.results]

    @property
    def heading(self) -> str:
        """Title of the step, capitalised."""
        return f"{self.step.title[:1].upper()}{self.step.title[1:]}"


class Selection(NamedTuple):
    """What is shown of a solution."""

    given: dict[str, Matrix]
    steps: list[DisplayStep]
    remarks: tuple[str, ...]
    formulas: tuple[str, ...]  # of results, each in one line


def select(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> Selection:
    """What to show: everything, or what has a name that matches a glob pattern.

    >>> solution = rg.work.solve({"given": {"X": [[1, 0], [0, 2]]}, "scale": 1})
    >>> [step.number for step in select(solution, only=["A", "H"]).steps]
    [4, 5]
    """
    check_names(only, solution)
    return Selection(
        {name: value for name, value in solution.given.items() if matches_any(name, only)},
        [
            _display_step(solution, number, step, digits)
            for number, step in enumerate(solution.steps, 1)
            if matches_any(step.name, only)
        ],
        solution.remarks if matches_any("remarks", only) else (),
        tuple(line for name, line in solution.formulas.items() if matches_any(name, only)),
    )


def _display_step(solution: Solution, number: int, step: Step, digits: int) -> DisplayStep:
    entry, value, results = first_entry(solution, step, digits), step.value, []
    if entry is None or value.shape != (1, 1):  # else the entry is all there is
        if all(map(is_short_form, value)) or value.free_symbols:
            results.append(False)
        if not all(x.is_Rational or is_infinity(x) or x.free_symbols for x in value):
            results.append(True)
    return DisplayStep(number, step, entry, tuple(results))


def check_names(only: Sequence[str], *solutions: Solution) -> None:
    """Raise a WorkError unless each name or pattern matches in one of the solutions."""
    for pattern in only:
        if not any(has_name(solution, pattern) for solution in solutions):
            names = list(dict.fromkeys(name for one in solutions for name in _names(one)))
            known, hint = ", ".join(names), suggestion(pattern, names)
            raise WorkError(f"only: needs names of steps, {known}, got {pattern!r}{hint}")


def has_name(solution: Solution, pattern: str) -> bool:
    """Whether a name or pattern matches anything in a solution."""
    return any(fnmatchcase(name, pattern) for name in _names(solution))


def _names(solution: Solution) -> list[str]:
    return [*solution.values(), "remarks"]


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of the glob patterns; without patterns all do.

    >>> matches_any("h_2", ["h_*"]), matches_any("A", ["H"]), matches_any("A", [])
    (True, False, True)
    """
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def first_entry(solution: Solution, step: Step, digits: int = 6) -> tuple[str, str] | None:
    """Arithmetic of the first entry and its result; None if the rule has none or it is too long.

    >>> solution = rg.work.solve({"given": {"X": [[1, 0], [0, 2]]}, "scale": 1})
    >>> first_entry(solution, solution.steps[0])
    ('1·1 + 0·0', '1')
    """
    values = solution.values()
    arithmetic = get_rule(step.rule).format_entry(*(values[name] for name in step.inputs))
    result = step.value[0, 0]
    if is_short_form(result):
        text = format_plain(result)
    elif is_exact_in(result, digits):
        text = format_decimal(result, digits)
    else:  # … marks omitted digits: a 3 carried to 50 digits has none
        text = f"{format_decimal(result, digits, keep_zeros=True)} …"
    if not arithmetic or len(arithmetic) > MAX_ENTRY_CHARS or arithmetic == text:
        return None
    return arithmetic, text


def value_equation(
    name: str, value: Matrix, digits: int = 6, is_rounded: bool = False
) -> FormulaTree:
    """Equation of a name and its matrix; floats are always rounded.

    >>> value_equation("W_Q", sympy.Matrix([[1, 2]])).tex
    'W_{Q} = \\\\begin{pmatrix} 1 & 2 \\\\end{pmatrix}'
    """
    is_rounded = is_rounded or value.has(sympy.Float)
    cells = [
        [parse_value(format_decimal(x, digits) if is_rounded else str(x)) for x in value.row(i)]
        for i in range(value.rows)
    ]
    body = cells[0][0] if value.shape == (1, 1) else matrix(cells)
    return equation(parse_name(name), "≈" if is_rounded else "=", body)


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
    if shown.formulas:
        blocks.append([(IN_ONE_LINE, "heading"), *((x, "formula") for x in shown.formulas)])
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
