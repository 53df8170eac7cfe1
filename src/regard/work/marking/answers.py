"""Comparison of written entries with exact values, each to its written precision."""

from collections.abc import Iterator
from typing import Any

import sympy

from regard.errors import RegardError
from regard.work.exact import evaluate_digits, format_decimal, format_plain, is_infinity
from regard.work.marking.reading import AnswerEntry, StudentAnswer, format_index
from regard.work.rules import M, Matrix
from regard.work.solution import Step, apply_rule

FLOAT_TOLERANCE = sympy.Rational(1, 10**11)  # relative error of floating-point arithmetic
ZERO_THRESHOLD = sympy.Rational(1, 10**25)  # zero within the 50 digits carried
FLOAT_NOISE = sympy.Rational(1, 10**12)  # zero in floating point
TIE_FACTOR = 1 + sympy.Rational(1, 10**20)  # halves may be rounded up or to even
COMPARED_DIGITS = 40
NEARLY = 1.05  # times the largest number: a unit up to it still tells something
SAMPLE_POINT = sympy.Rational(7, 11)  # where symbolic formulas are compared


def without_uninformative(answer: StudentAnswer, right: Matrix) -> StudentAnswer:
    """The answer without cells of 0 or 1 in a last digit larger than every number of the step.

    >>> answer = StudentAnswer([[AnswerEntry(sympy.S.Zero, "0.0", -1)]])
    >>> without_uninformative(answer, M([["1/50"]])).unread
    {(0, 0): 'needs more digits, got 0.0'}
    """
    sizes = [abs(_digits(x)) for x in right if not x.free_symbols and not is_infinity(x)]
    largest = NEARLY * max(sizes, default=0)  # 1. may stand for 0.998, but not for 0.6
    return answer.without(
        {
            (i, j): f"needs more digits, got {x.text}"
            for i, j, x in answer.entries()
            if x is not None and 0 < largest < 2 * x.tolerance >= abs(_digits(x.value))
        }
    )


def wrong_entries(
    answer: StudentAnswer, expected: Matrix
) -> Iterator[tuple[int, int, AnswerEntry, sympy.Expr]]:
    """Row, column, entry and expected value where they differ by more than rounding.

    >>> answer = StudentAnswer([[None, AnswerEntry(sympy.Integer(1), "1")]])
    >>> [(i, j, right) for i, j, _, right in wrong_entries(answer, M([[5, 2]]))]
    [(0, 1, 2)]
    """
    for i, j, x in answer.entries():
        if x is not None and not matches_entry(x, expected[i, j]):
            yield i, j, x, expected[i, j]


def matches_answer(answer: StudentAnswer, expected: Matrix, spread: Matrix | None = None) -> bool:
    """Whether every written entry is right to its precision, and to `spread` beside it.

    >>> answer = StudentAnswer([[AnswerEntry(sympy.Integer(3), "3")]])
    >>> matches_answer(answer, M([[2]])), matches_answer(answer, M([[2]]), M([[1]]))
    (False, True)
    """
    wrong = wrong_entries(answer, expected)
    if spread is None:
        return next(wrong, None) is None
    return all(
        not right.free_symbols and is_close(x.value, right, x.tolerance + spread[i, j])
        for i, j, x, right in wrong
    )


def list_differences(answer: StudentAnswer, expected: Matrix) -> list[str]:
    """Entries that differ by more than rounding, each with its expected value.

    >>> list_differences(StudentAnswer([[AnswerEntry(sympy.Integer(1), "1")]]), M([[2]]))
    ['(1,1): 1 should be 2']
    """
    return [
        f"{format_index(i, j)}: {_entry_text(x)} should be {_expected_text(x, right)}"
        for i, j, x, right in wrong_entries(answer, expected)
    ]


def _entry_text(x: AnswerEntry) -> str:
    """An entry as written; symbolic formulas in the format of the expected one."""
    return format_plain(x.value) if x.value.free_symbols else x.text


def _expected_text(x: AnswerEntry, expected: sympy.Expr) -> str:
    """The expected value with enough digits to differ visibly from x."""
    text = format_decimal(expected)
    if (
        x.value.free_symbols
        or expected.free_symbols
        or is_infinity(x.value)
        or is_infinity(expected)
    ):
        return text
    for digits in (6, 7, 8, 9, 10, 12, 15, 20, 30, COMPARED_DIGITS):
        text = format_decimal(expected, digits)
        difference = sympy.Rational(text) - _digits(x.value)
        if 2 * abs(difference) > abs(_digits(expected) - _digits(x.value)):
            break
    return text


def matches_entry(x: AnswerEntry, expected: sympy.Expr) -> bool:
    """Whether an entry is right to its written digits.

    >>> third = sympy.Rational(1, 3)
    >>> hundredths = [sympy.Rational(n, 100) for n in (33, 34)]
    >>> [matches_entry(AnswerEntry(x, "", -2), third) for x in hundredths]
    [True, False]
    """
    if is_close(x.value, expected, x.tolerance):
        return True
    return x.has_ellipsis and is_truncated(x, expected)


def is_truncated(x: AnswerEntry, expected: sympy.Expr) -> bool:
    """Whether an entry is the expected value truncated instead of rounded.

    >>> is_truncated(AnswerEntry(sympy.Rational(66, 100), "0.66", -2), sympy.Rational(2, 3))
    True
    """
    if x.exponent is None or expected.free_symbols or is_infinity(expected):
        return False
    unit, a, b = sympy.Rational(10) ** x.exponent, _digits(x.value), _digits(expected)
    return bool(a * b >= 0 and 0 <= abs(b) - abs(a) < unit)


def _digits(x: sympy.Expr) -> Any:
    return x if x.is_Rational else evaluate_digits(x, COMPARED_DIGITS)


def is_close(a: sympy.Expr, b: sympy.Expr, tolerance: Any = 0) -> bool:
    """Whether two numbers or formulas agree within an absolute tolerance.

    >>> is_close(sympy.sqrt(2), sympy.Rational(141, 100), 0.005)
    True
    """
    if is_infinity(a) or is_infinity(b):
        return a == b
    if symbols := sorted(a.free_symbols | b.free_symbols, key=str):
        # equal formulas agree everywhere; two arbitrary points separate different ones
        points: list[Any] = [
            {s: SAMPLE_POINT * k + n / SAMPLE_POINT for n, s in enumerate(symbols)} for k in (1, 2)
        ]
        return all(is_close(a.subs(point), b.subs(point), tolerance) for point in points)
    if a.is_Rational and b.is_Rational and not tolerance:
        return a == b  # exact: a count that is off by one is wrong, however large
    x, y = _digits(a), _digits(b)
    if not (x.is_real and y.is_real):
        return False
    floor = FLOAT_TOLERANCE * abs(y) if abs(y) > ZERO_THRESHOLD else FLOAT_NOISE
    return bool(abs(x - y) <= max(tolerance, floor) * TIE_FACTOR)


def fill_blanks(answer: StudentAnswer, defaults: Matrix) -> Matrix:
    """The student's matrix with blanks filled from `defaults`."""
    cells = [defaults[i, j] if x is None else x.value for i, j, x in answer.entries()]
    return M(defaults.rows, defaults.cols, cells)


def recompute_step(step: Step, values: Any, fallback: Any) -> Matrix:
    """Recompute a step from these values; the fallback where the rule fails."""
    try:
        return apply_rule(step.rule, *(values[name] for name in step.inputs))
    except RegardError:
        return fallback[step.name]
