"""Selection of what is shown, shared by all formats: steps, worked entry, exact or rounded."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import sympy

from regard.errors import WorkError, suggestion
from regard.formulas import FormulaTree, equation, matrix, parse_name, parse_value
from regard.work.exact.numbers import format_decimal, format_plain, is_exact_in, is_short_form
from regard.work.rules import Matrix, get_rule
from regard.work.solution import Solution, Step

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
    )


def _display_step(solution: Solution, number: int, step: Step, digits: int) -> DisplayStep:
    entry, value, results = first_entry(solution, step, digits), step.value, []
    if entry is None or value.shape != (1, 1):  # else the entry is all there is
        if all(map(is_short_form, value)) or value.free_symbols:
            results.append(False)
        if not all(x.is_Rational or x.is_infinite or x.free_symbols for x in value):
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
