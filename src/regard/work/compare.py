"""A student's numbers beside the right ones: read as they were written, held to their places."""

import re
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError
from regard.work.evaluate import evaluated
from regard.work.numbers import decimal, number
from regard.work.rules import M, Matrix
from regard.work.solution import Step

EXACT = 1e-9  # how far apart two ways of writing one number may be
PLACE = sympy.Rational(7, 11)  # where formulas are compared


class Told(NamedTuple):
    """A student's matrix; entries left out are None, and rounding is as fine as was written.

    >>> Told([[None]], 2).places
    2
    """

    cells: list[list[sympy.Expr | None]]
    places: int | None  # decimals that were written; None: exact


def read_told(step: Step, told: Any, symbols: list[str]) -> Told:
    """What was written for a step, in its shape.

    >>> step = Step("N", "exp", ("E",), sympy.zeros(2, 1), "")
    >>> read_told(step, ["1.25", "?"], [])
    Told(cells=[[5/4], [None]], places=2)
    """
    want = step.value
    rows = told if isinstance(told, list | tuple) else [told]
    if rows and not isinstance(rows[0], list | tuple):
        rows = [rows] if want.rows == 1 else [[x] for x in rows]
    if len(rows) != want.rows or any(len(row) != want.cols for row in rows):
        raise WorkError(
            f"{step.name}: needs {want.rows} rows of {want.cols} numbers, got "
            f"{len(rows)} of {' and '.join(sorted({str(len(row)) for row in rows}))}"
        )
    places = [_places(x) for row in rows for x in row if not _is_open(x)]
    cells = [[None if _is_open(x) else number(x, symbols) for x in row] for row in rows]
    return Told(cells, max((p for p in places if p is not None), default=None))


def _is_open(x: Any) -> bool:
    return isinstance(x, str) and x.strip() in ("", "?")


def _places(x: Any) -> int | None:
    found = re.fullmatch(r"[+-]?\d*\.(\d+)", str(x).strip())
    return len(found[1]) if found else None


def apart(told: Told, want: Matrix) -> list[str]:
    """The entries that differ by more than honest rounding, each with what it should be.

    >>> apart(Told([[sympy.Integer(1)]], None), M([[2]]))
    ['(1,1): 1 should be 2']
    """
    found = []
    for i, row in enumerate(told.cells):
        for j, x in enumerate(row):
            if x is not None and not near(x, want[i, j], within(told)):
                found.append(f"({i + 1},{j + 1}): {decimal(x)} should be {decimal(want[i, j])}")
    return found


def within(told: Told) -> float:
    """A little more than half of the last place that was written.

    >>> within(Told([[None]], 1))
    0.06
    """
    return EXACT if told.places is None else 0.6 / 10**told.places


def near(a: sympy.Expr, b: sympy.Expr, far: float) -> bool:
    """Whether two numbers, or two formulas, are as good as one.

    >>> near(sympy.sqrt(2), sympy.Rational(141, 100), 0.006)
    True
    """
    if a.is_infinite or b.is_infinite:
        return a == b
    if symbols := sorted(a.free_symbols | b.free_symbols, key=str):
        # the same formula gives the same numbers; two odd places tell formulas apart
        for k in (1, 2):
            at: Any = {s: PLACE * k + n / PLACE for n, s in enumerate(symbols)}
            if not near(a.subs(at), b.subs(at), max(far, EXACT)):
                return False
        return True
    return abs(float(evaluated(a, 20)) - float(evaluated(b, 20))) <= far


def filled(told: Told, rest: Matrix) -> Matrix:
    """The student's matrix, with what follows from it in the entries left open.

    >>> filled(Told([[None, sympy.Integer(3)]], None), M([[1, 2]]))
    Matrix([[1, 3]])
    """
    return M(
        [
            [rest[i, j] if x is None else x for j, x in enumerate(row)]
            for i, row in enumerate(told.cells)
        ]
    )
