"""Parsing of student answers, and comparison at their written precision."""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import evaluate_digits
from regard.work.exact.numbers import format_decimal, format_plain, parse_number
from regard.work.rules import M, Matrix
from regard.work.solution import Step

FLOAT_TOLERANCE = sympy.Rational(1, 10**11)  # relative error of floating-point arithmetic
ZERO_THRESHOLD = sympy.Rational(1, 10**25)  # zero within the 50 digits carried
FLOAT_NOISE = sympy.Rational(1, 10**12)  # zero in floating point
TIE_FACTOR = 1 + sympy.Rational(1, 10**20)  # halves may be rounded up or to even
COMPARED_DIGITS = 40
ROUNDED_INTEGER_DIGITS = 3  # integers with as many digits may be rounded: 149 for 148.6
SPREAD_FACTOR = 3  # safety factor: only a few rounding combinations are sampled
SAMPLE_POINT = sympy.Rational(7, 11)  # where symbolic formulas are compared
_DECIMAL = re.compile(r"[+-]?(\d+|\d*\.(\d*))(?:[eE]([+-]?\d{1,6}))?")


class AnswerEntry(NamedTuple):
    """One written entry: value, text, and the power of ten of its last digit."""

    value: sympy.Expr
    text: str
    exponent: int | None = None  # None: exact
    has_ellipsis: bool = False  # "0.33…": marked as truncated


class StudentAnswer(NamedTuple):
    """A student's matrix; blank entries are None."""

    cells: list[list[AnswerEntry | None]]

    @property
    def blanks(self) -> tuple[str, ...]:
        """Indices of blank entries."""
        return tuple(format_index(i, j) for i, j, x in self.entries() if x is None)

    def entries(self) -> Iterator[tuple[int, int, AnswerEntry | None]]:
        """Every entry with its row and column."""
        return ((i, j, x) for i, row in enumerate(self.cells) for j, x in enumerate(row))


def format_index(i: int, j: int) -> str:
    """1-based index of an entry as text."""
    return f"({i + 1},{j + 1})"


def parse_answer(step: Step, values: Any, symbols: list[str]) -> StudentAnswer:
    """Parse the answer for a step and check its shape.

    An integer is exact, unless it has three digits or as many as a decimal in the same matrix (16
    next to 3.7): then it counts as rounded to units.

    >>> step = Step("N", "exp", ("E",), sympy.zeros(3, 1), "")
    >>> answer = parse_answer(step, ["1.25", "?", "9.5e-1"], [])
    >>> [row[0] and row[0].exponent for row in answer.cells]
    [-2, None, -2]
    """
    rows = values if isinstance(values, list | tuple) else [values]
    if rows and not isinstance(rows[0], list | tuple):
        rows = [rows] if step.value.rows == 1 else [[x] for x in rows]
    _check_shape(step, rows)
    cells = [
        [_parse_entry(x, symbols, f"{step.name} {format_index(i, j)}") for j, x in enumerate(row)]
        for i, row in enumerate(rows)
    ]
    decimals = [x for row in cells for x in row if x is not None and x.exponent is not None]
    min_exponent = min((x.exponent or 0 for x in decimals), default=0)
    min_digits = min((_significant(x.text) for x in decimals), default=ROUNDED_INTEGER_DIGITS)
    return StudentAnswer(
        [[_with_exponent(x, min_exponent, min_digits) for x in row] for row in cells]
    )


def _check_shape(step: Step, rows: Any) -> None:
    expected = step.value
    if any(not isinstance(row, list | tuple) for row in rows):
        raise WorkError(f"{step.name}: needs rows of numbers, got a row and a number side by side")
    if len(rows) == expected.rows and all(len(row) == expected.cols for row in rows):
        return
    widths = " and ".join(sorted({str(len(row)) for row in rows})) or "0"
    hint = ""
    if rows and len(rows) == expected.rows and all(len(row) == 2 * expected.cols for row in rows):
        hint = '; try a point, 0.5: a comma separates entries (or "0,5" in quotes)'
    rule = f"{expected.rows} rows of {expected.cols} numbers"
    raise WorkError(f"{step.name}: needs {rule}, got {len(rows)} of {widths}{hint}")


def _parse_entry(x: Any, symbols: list[str], label: str) -> AnswerEntry | None:
    """Parse a decimal, a percentage or an exact formula; None for a blank."""
    if isinstance(x, str) and x.strip() in ("", "?"):
        return None
    text = str(x).strip().replace("−", "-")
    number, has_ellipsis = re.subn(r"\s*(…|\.\.\.)$", "", text)
    number, percent = re.subn(r"\s*%$", "", number)
    if comma := re.fullmatch(r"([+-]?\d+),(\d+)", number):
        if len(comma[2]) == 3 and comma[1].lstrip("+-0"):
            raise WorkError(f"{label}: needs a decimal point, got {text!r}: thousand or decimal?")
        number = f"{comma[1]}.{comma[2]}"
    try:
        value = parse_number(number if isinstance(x, str) else x, symbols)
    except WorkError as error:
        rule, _, got = str(error).removeprefix("number: needs ").partition(", got ")
        raise WorkError(f"{label}: needs {rule}, got {got}") from None
    exponent = _last_digit_exponent(number)
    if percent:
        value, exponent = value / 100, (exponent or 0) - 2
    return AnswerEntry(value, text, exponent, bool(has_ellipsis) and exponent is not None)


def _last_digit_exponent(text: str) -> int | None:
    """Power of ten of the last written digit; None for integers and formulas."""
    match = _DECIMAL.fullmatch(text)
    if match is None or match[2] is None and match[3] is None:
        return None
    return int(match[3] or 0) - len(match[2] or "")


def _significant(text: str) -> int:
    """Number of significant digits."""
    digits = re.sub(r"[eE].*|[^0-9]", "", text)
    return len(digits.lstrip("0"))


def _with_exponent(x: AnswerEntry | None, min_exponent: int, min_digits: int) -> AnswerEntry | None:
    """Precision of an integer, inferred from the decimals of the same matrix."""
    if x is None or x.exponent is not None or not re.fullmatch(r"[+-]?\d+", x.text):
        return x
    if _significant(x.text) >= max(1, min(min_digits, ROUNDED_INTEGER_DIGITS)):
        return x._replace(exponent=0)
    return x._replace(exponent=min_exponent) if min_exponent < 0 else x


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


def matches_answer(answer: StudentAnswer, expected: Matrix) -> bool:
    """Whether every written entry is right to its precision."""
    return next(wrong_entries(answer, expected), None) is None


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
    if x.value.free_symbols or expected.free_symbols or x.value.is_infinite or expected.is_infinite:
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
    if is_close(x.value, expected, _rounding_tolerance(x)):
        return True
    return x.has_ellipsis and is_truncated(x, expected)


def _rounding_tolerance(x: AnswerEntry) -> Any:
    """Half a unit of the last written digit; 0 for exact entries."""
    return sympy.S.Zero if x.exponent is None else sympy.Rational(10) ** x.exponent / 2


def is_truncated(x: AnswerEntry, expected: sympy.Expr) -> bool:
    """Whether an entry is the expected value truncated instead of rounded.

    >>> is_truncated(AnswerEntry(sympy.Rational(66, 100), "0.66", -2), sympy.Rational(2, 3))
    True
    """
    if x.exponent is None or expected.free_symbols or expected.is_infinite:
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
    if a.is_infinite or b.is_infinite:
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


def jitter_rounding(value: Matrix, answer: StudentAnswer, signs: random.Random) -> Matrix:
    """A matrix with each entry shifted by half a unit of its last digit, up or down at random.

    >>> answer = StudentAnswer([[AnswerEntry(sympy.Integer(1), "1.0", -1), None]])
    >>> jitter_rounding(M([[1, 2]]), answer, random.Random(0))
    Matrix([[19/20, 2]])
    """
    shifts = [
        0 if x is None else _rounding_tolerance(x) * signs.choice((1, -1))
        for *_, x in answer.entries()
    ]
    return M(value.rows, value.cols, [x + move for x, move in zip(value, shifts, strict=True)])


def matches_within(answer: StudentAnswer, expected: Matrix, samples: Sequence[Matrix]) -> bool:
    """Whether every entry is right within its rounding plus the spread of `samples`.

    >>> answer = StudentAnswer([[AnswerEntry(sympy.Integer(3), "3")]])
    >>> matches_within(answer, M([[2]]), [M([["5/2"]])])
    True
    """
    for i, j, x, right in wrong_entries(answer, expected):
        if right.free_symbols or right.is_infinite:
            return False
        spread = max(abs(_digits(sample[i, j]) - _digits(right)) for sample in samples)
        if not is_close(x.value, right, _rounding_tolerance(x) + SPREAD_FACTOR * spread):
            return False
    return True
