"""Worksheets of a class: solutions as live formulas, and a table for the answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sympy
from sympy.printing.str import StrPrinter

from regard.errors import RegardError
from regard.files import atomic_write, import_extra
from regard.work.classroom.problems import Assignment, Class
from regard.work.classroom.sheets import heading
from regard.work.rules import M, Matrix, get_rule
from regard.work.solution import Step

FUNCTIONS = {"exp": "EXP", "log": "LN", "tanh": "TANH", "sin": "SIN", "cos": "COS", "Max": "MAX"}
FUNCTIONS |= {"Min": "MIN", "Abs": "ABS", "erf": "ERF"}
INFINITY = 1e300  # stands for ∞: EXP(-1E+300) is 0
NEAR = 1e-9


class _Excel(StrPrinter):
    """Prints an expression as a formula of a worksheet."""

    def _print_Pow(self, expr: Any, rational: bool = False) -> Any:  # noqa: N802
        if expr.exp == sympy.S.Half:
            return f"SQRT({self._print(expr.base)})"
        if expr.exp.is_negative:
            return f"(1/({self._print(sympy.Pow(expr.base, -expr.exp))}))"
        return f"(({self._print(expr.base)})^({self._print(expr.exp)}))"  # -A1^2 would be (-A1)^2

    def _print_Function(self, expr: Any) -> Any:  # noqa: N802
        inside = ", ".join(map(self._print, expr.args))
        return f"{FUNCTIONS[expr.func.__name__]}({inside})"

    _print_Max = _print_Min = _print_Abs = _print_Function  # noqa: N815

    def _print_ExpBase(self, expr: Any) -> Any:  # noqa: N802
        return self._print_Function(expr)

    def _print_Infinity(self, expr: Any) -> Any:  # noqa: N802
        return f"{INFINITY:G}"

    def _print_NegativeInfinity(self, expr: Any) -> Any:  # noqa: N802
        return f"(-{INFINITY:G})"

    def _print_Exp1(self, expr: Any) -> Any:  # noqa: N802
        return "EXP(1)"

    def _print_Pi(self, expr: Any) -> Any:  # noqa: N802
        return "PI()"

    def _print_Rational(self, expr: Any) -> Any:  # noqa: N802
        return f"({expr.p}/{expr.q})"


def write_workbook(one: Class, path: str | Path) -> Path:
    """Write the solutions, a worksheet per student, each step computed by formulas from the given.

    The formulas are the rules themselves, run with the names of cells in place of numbers. Steps
    that have none, or whose formula does not give their numbers, stand as numbers, and say so.
    """
    openpyxl = import_extra("openpyxl", "excel", "to write .xlsx files")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for x in one.assignments:
        sheet = book.create_sheet(f"{x.number} {x.file}"[:31])
        sheet.append([heading(one), x.student.name, x.student.id])
        _write_solution(sheet, x, openpyxl)
    with atomic_write(path) as temporary:
        book.save(temporary)
    return Path(path)


def write_table(rows: Sequence[Sequence[str]], path: str | Path) -> Path:
    """Write a table to enter answers in, as one worksheet."""
    book = import_extra("openpyxl", "excel", "to write .xlsx files").Workbook()
    for row in rows:
        book.active.append(row)
    book.active.freeze_panes = "C2"
    with atomic_write(path) as temporary:
        book.save(temporary)
    return Path(path)


def _write_solution(sheet: Any, x: Assignment, openpyxl: Any) -> None:
    solution, cells, row = x.exercise.solution, dict[str, Matrix](), 3
    font, letter = openpyxl.styles.Font(bold=True), openpyxl.utils.get_column_letter
    numbers = solution.values()
    steps = {step.name: step for step in solution.steps}
    for name, value in numbers.items():
        step = steps.get(name)
        names = [
            [f"{letter(j + 2)}{row + i}" for j in range(value.cols)] for i in range(value.rows)
        ]
        cells[name] = M([[sympy.Symbol(cell) for cell in line] for line in names])
        formulas = step and cell_formulas(step, cells, numbers)
        sheet.cell(row, 1, name).font = font
        note = f"{step.formula}: {step.title}" if step else "given"
        note += "" if formulas or not step else " (numbers: this rule has no formula)"
        sheet.cell(row, value.cols + 3, note)
        for i, line in enumerate(names):
            for j, cell in enumerate(line):
                sheet[cell] = formulas[i][j] if formulas else _number(value[i, j])
        row += value.rows + 1


def cell_formulas(
    step: Step, cells: Mapping[str, Matrix], numbers: Mapping[str, Matrix]
) -> list[list[str]] | None:
    """The formula of each entry of a step, in the cells of its inputs; None where it has none."""
    symbolic = [cells[name] for name in step.inputs]
    for inputs in (symbolic, [*symbolic[:1], *(numbers[name] for name in step.inputs[1:])]):
        try:  # a mask is read as numbers
            value = get_rule(step.rule).run(*inputs)
            names = [[f"={_Excel().doprint(x)}" for x in value.row(i)] for i in range(value.rows)]
            if all(map(_is_near, value.subs(_values(step, cells, numbers)), step.value)):
                return names
        except (RegardError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            continue
    return None


def _values(
    step: Step, cells: Mapping[str, Matrix], numbers: Mapping[str, Matrix]
) -> dict[sympy.Expr, float]:
    pairs = (zip(cells[name], numbers[name], strict=True) for name in step.inputs)
    return {cell: _finite(x) for pair in pairs for cell, x in pair}


def _is_near(x: sympy.Expr, right: sympy.Expr) -> bool:
    return abs(_finite(x) - _finite(right)) <= NEAR * max(1, abs(_finite(right)))


def _finite(x: sympy.Expr) -> float:
    return max(-INFINITY, min(INFINITY, float(x)))


def _number(x: sympy.Expr) -> int | float:
    return int(x) if x.is_Integer else _finite(x)
