"""A student's numbers beside the right ones, each held to the precision it was written with."""

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

FLOAT_TOLERANCE = sympy.Rational(
    1, 10**11
)  # relative: what floating point may lose on the way to a number
ZERO_THRESHOLD = sympy.Rational(1, 10**25)  # what is left of 0 in 50 digits
FLOAT_NOISE = sympy.Rational(1, 10**12)  # and in floating point
TIE_FACTOR = 1 + sympy.Rational(1, 10**20)  # a half rounds up or to even: both are honest
COMPARED_DIGITS = 40  # that are compared
ROUNDED_INTEGER_DIGITS = (
    3  # digits from which on a whole number may be a rounded one, as 149 of 148.6
)
SPREAD_FACTOR = 3  # a few corners of what rounding allows are tried; others may lie further out
SAMPLE_POINT = sympy.Rational(7, 11)  # where formulas are compared
_DECIMAL = re.compile(r"[+-]?(\d+|\d*\.(\d*))(?:[eE]([+-]?\d{1,6}))?")


class AnswerEntry(NamedTuple):
    """One entry as it was written: its value, its text, and the power of ten of its last digit.

    >>> AnswerEntry(sympy.Rational(1, 2), "0.50", -2).exponent
    -2
    """

    value: sympy.Expr
    text: str
    exponent: int | None = None  # None: exact
    has_ellipsis: bool = False  # "0.33…" says itself that digits were left off


class StudentAnswer(NamedTuple):
    """A student's matrix; entries left out are None.

    >>> StudentAnswer([[None, AnswerEntry(sympy.Integer(1), "1")]]).blanks
    ('(1,1)',)
    """

    cells: list[list[AnswerEntry | None]]

    @property
    def blanks(self) -> tuple[str, ...]:
        """The entries without a number."""
        return tuple(format_index(i, j) for i, j, x in self.entries() if x is None)

    @property
    def is_blank(self) -> bool:
        """Whether no entry has a number."""
        return all(x is None for _, _, x in self.entries())

    def entries(self) -> Iterator[tuple[int, int, AnswerEntry | None]]:
        """Every entry with its row and column."""
        return ((i, j, x) for i, row in enumerate(self.cells) for j, x in enumerate(row))


def format_index(i: int, j: int) -> str:
    """The place of an entry as it is called, from 1.

    >>> format_index(0, 1)
    '(1,2)'
    """
    return f"({i + 1},{j + 1})"


def parse_answer(step: Step, values: Any, symbols: list[str]) -> StudentAnswer:
    """What was written for a step, in its shape.

    A whole number is exact, but one of three digits, or of as many as a decimal beside it has (16
    beside 3.7), is rounded to units; with fewer it is held to the finest place beside it.

    >>> step = Step("N", "exp", ("E",), sympy.zeros(3, 1), "")
    >>> [row[0] and row[0].exponent for row in parse_answer(step, ["1.25", "?", "9.5e-1"], []).cells]
    [-2, None, -2]
    """
    want = step.value
    rows = values if isinstance(values, list | tuple) else [values]
    if rows and not isinstance(rows[0], list | tuple):
        rows = [rows] if want.rows == 1 else [[x] for x in rows]
    _need_shape(step, rows)
    cells = [
        [_written(x, symbols, f"{step.name} {format_index(i, j)}") for j, x in enumerate(row)]
        for i, row in enumerate(rows)
    ]
    decimals = [x for row in cells for x in row if x is not None and x.exponent is not None]
    finest = min((x.exponent or 0 for x in decimals), default=0)
    fewest = min((_significant(x.text) for x in decimals), default=ROUNDED_INTEGER_DIGITS)
    return StudentAnswer([[_placed(x, finest, fewest) for x in row] for row in cells])


def _need_shape(step: Step, rows: Any) -> None:
    want = step.value
    if any(not isinstance(row, list | tuple) for row in rows):
        raise WorkError(f"{step.name}: needs rows of numbers, got a row and a number side by side")
    if len(rows) == want.rows and all(len(row) == want.cols for row in rows):
        return
    widths = " and ".join(sorted({str(len(row)) for row in rows})) or "0"
    hint = ""
    if rows and len(rows) == want.rows and all(len(row) == 2 * want.cols for row in rows):
        hint = '; try a point, 0.5: a comma separates entries (or "0,5" in quotes)'
    raise WorkError(
        f"{step.name}: needs {want.rows} rows of {want.cols} numbers, got "
        f"{len(rows)} of {widths}{hint}"
    )


def _written(x: Any, symbols: list[str], where: str) -> AnswerEntry | None:
    """One entry: a decimal with its own precision, a percentage, or an exact formula."""
    if isinstance(x, str) and x.strip() in ("", "?"):
        return None
    text = str(x).strip().replace("−", "-")
    short, is_cut = re.subn(r"\s*(…|\.\.\.)$", "", text)
    short, percent = re.subn(r"\s*%$", "", short)
    if comma := re.fullmatch(r"([+-]?\d+),(\d+)", short):
        if len(comma[2]) == 3 and comma[1].lstrip("+-0"):
            raise WorkError(f"{where}: needs a decimal point, got {text!r}: thousand or decimal?")
        short = f"{comma[1]}.{comma[2]}"
    try:
        value = parse_number(short if isinstance(x, str) else x, symbols)
    except WorkError as error:
        rule, _, got = str(error).removeprefix("number: needs ").partition(", got ")
        raise WorkError(f"{where}: needs {rule}, got {got}") from None
    place = _place(short)
    if percent:
        value, place = value / 100, (place or 0) - 2
    return AnswerEntry(value, text, place, bool(is_cut) and place is not None)


def _place(text: str) -> int | None:
    """The power of ten of the last written digit; None for whole numbers and formulas."""
    found = _DECIMAL.fullmatch(text)
    if found is None or found[2] is None and found[3] is None:
        return None
    return int(found[3] or 0) - len(found[2] or "")


def _significant(text: str) -> int:
    """How many digits of a number count."""
    digits = re.sub(r"[eE].*|[^0-9]", "", text)
    return len(digits.lstrip("0"))


def _placed(x: AnswerEntry | None, finest: int, fewest: int) -> AnswerEntry | None:
    """A whole number with the place that the numbers beside it suggest."""
    if x is None or x.exponent is not None or not re.fullmatch(r"[+-]?\d+", x.text):
        return x
    if _significant(x.text) >= max(1, min(fewest, ROUNDED_INTEGER_DIGITS)):
        return x._replace(exponent=0)
    return x._replace(exponent=finest) if finest < 0 else x


def list_differences(answer: StudentAnswer, expected: Matrix) -> list[str]:
    """The entries that differ by more than honest rounding, each with what it should be.

    >>> list_differences(StudentAnswer([[AnswerEntry(sympy.Integer(1), "1")]]), M([[2]]))
    ['(1,1): 1 should be 2']
    """
    return [
        f"{format_index(i, j)}: {_seen(x)} should be {_should_be(x, expected[i, j])}"
        for i, j, x in answer.entries()
        if x is not None and not matches_entry(x, expected[i, j])
    ]


def matches_answer(answer: StudentAnswer, expected: Matrix) -> bool:
    """Whether every entry that was written is right to its own precision.

    >>> matches_answer(StudentAnswer([[AnswerEntry(sympy.Rational(1, 3), "1/3"), None]]), M([["1/3", 5]]))
    True
    """
    return all(x is None or matches_entry(x, expected[i, j]) for i, j, x in answer.entries())


def _seen(x: AnswerEntry) -> str:
    """An entry as it was written; a formula in symbols as the right one is shown."""
    return format_plain(x.value) if x.value.free_symbols else x.text


def _should_be(x: AnswerEntry, want: sympy.Expr) -> str:
    """The right value with enough digits to see that it is another one than x."""
    shown = format_decimal(want)
    if x.value.free_symbols or want.free_symbols or x.value.is_infinite or want.is_infinite:
        return shown
    for digits in (6, 7, 8, 9, 10, 12, 15, 20, 30, COMPARED_DIGITS):
        shown = format_decimal(want, digits)
        seen = sympy.Rational(shown) - _digits(x.value)
        if 2 * abs(seen) > abs(_digits(want) - _digits(x.value)):
            break
    return shown


def matches_entry(x: AnswerEntry, expected: sympy.Expr) -> bool:
    """Whether an entry is right to the digits it was written with.

    >>> third = sympy.Rational(1, 3)
    >>> [matches_entry(AnswerEntry(x, "", -2), third) for x in (sympy.Rational(33, 100), sympy.Rational(34, 100))]
    [True, False]
    """
    return (
        is_close(x.value, expected, rounding_tolerance(x))
        or x.has_ellipsis
        and is_truncated(x, expected)
    )


def rounding_tolerance(x: AnswerEntry) -> Any:
    """Half of the last place that was written; 0 for what is exact.

    >>> rounding_tolerance(AnswerEntry(sympy.Rational(1, 2), "0.5", -1))
    1/20
    """
    return sympy.S.Zero if x.exponent is None else sympy.Rational(10) ** x.exponent / 2


def is_truncated(x: AnswerEntry, expected: sympy.Expr) -> bool:
    """Whether the digits of the right value were cut off where it should have been rounded.

    >>> is_truncated(AnswerEntry(sympy.Rational(66, 100), "0.66", -2), sympy.Rational(2, 3))
    True
    """
    if x.exponent is None or expected.free_symbols or expected.is_infinite:
        return False
    one, a, b = sympy.Rational(10) ** x.exponent, _digits(x.value), _digits(expected)
    return bool(a * b >= 0 and 0 <= abs(b) - abs(a) < one)


def _digits(x: sympy.Expr) -> Any:
    return x if x.is_Rational else evaluate_digits(x, COMPARED_DIGITS)


def is_close(a: sympy.Expr, b: sympy.Expr, tolerance: Any = 0) -> bool:
    """Whether two numbers, or two formulas, are as good as one: `far` is what rounding may do.

    >>> is_close(sympy.sqrt(2), sympy.Rational(141, 100), 0.005)
    True
    """
    if a.is_infinite or b.is_infinite:
        return a == b
    if symbols := sorted(a.free_symbols | b.free_symbols, key=str):
        # the same formula gives the same numbers; two odd places tell formulas apart
        for k in (1, 2):
            here: Any = {s: SAMPLE_POINT * k + n / SAMPLE_POINT for n, s in enumerate(symbols)}
            if not is_close(a.subs(here), b.subs(here), tolerance):
                return False
        return True
    if a.is_Rational and b.is_Rational and not tolerance:
        return a == b  # a count that is off by one is wrong, however large
    x, y = _digits(a), _digits(b)
    if not (x.is_real and y.is_real):
        return False
    floor = FLOAT_TOLERANCE * abs(y) if abs(y) > ZERO_THRESHOLD else FLOAT_NOISE
    return bool(abs(x - y) <= max(tolerance, floor) * TIE_FACTOR)


def fill_blanks(answer: StudentAnswer, defaults: Matrix) -> Matrix:
    """The student's matrix, with what follows from it in the entries left open.

    >>> fill_blanks(StudentAnswer([[None, AnswerEntry(sympy.Integer(3), "3")]]), M([[1, 2]]))
    Matrix([[1, 3]])
    """
    cells = [defaults[i, j] if x is None else x.value for i, j, x in answer.entries()]
    return M(defaults.rows, defaults.cols, cells)


def jitter_rounding(value: Matrix, answer: StudentAnswer, signs: random.Random) -> Matrix:
    """A matrix with every entry moved by half of the place it was written to, up or down.

    >>> jitter_rounding(M([[1, 2]]), StudentAnswer([[AnswerEntry(sympy.Integer(1), "1.0", -1), None]]), random.Random(0))
    Matrix([[19/20, 2]])
    """
    moves = [
        0 if x is None else rounding_tolerance(x) * signs.choice((1, -1))
        for *_, x in answer.entries()
    ]
    return M(value.rows, value.cols, [x + move for x, move in zip(value, moves, strict=True)])


def matches_within(answer: StudentAnswer, expected: Matrix, samples: Sequence[Matrix]) -> bool:
    """Whether every entry is right to its own place and what `moved` shows of values before it.

    >>> matches_within(StudentAnswer([[AnswerEntry(sympy.Integer(3), "3")]]), M([[2]]), [M([["5/2"]])])
    True
    """
    for i, j, x in answer.entries():
        if x is None or matches_entry(x, expected[i, j]):
            continue
        if expected[i, j].free_symbols or expected[i, j].is_infinite:
            return False
        reach = max(abs(_digits(one[i, j]) - _digits(expected[i, j])) for one in samples)
        if not is_close(x.value, expected[i, j], rounding_tolerance(x) + SPREAD_FACTOR * reach):
            return False
    return True
