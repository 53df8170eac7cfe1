"""A student's numbers beside the right ones, each held to the precision it was written with."""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError
from regard.work.evaluate import evaluated
from regard.work.numbers import decimal, number, plain
from regard.work.rules import M, Matrix
from regard.work.solution import Step

FLOAT = sympy.Rational(1, 10**11)  # relative: what floating point may lose on the way to a number
ZERO = sympy.Rational(1, 10**25)  # what is left of 0 in 50 digits
NOISE = sympy.Rational(1, 10**12)  # and in floating point
TIE = 1 + sympy.Rational(1, 10**20)  # a half rounds up or to even: both are honest
DIGITS = 40  # that are compared
ROUNDED = 3  # digits from which on a whole number may be a rounded one, as 149 of 148.6
SHARE = 3  # a few corners of what rounding allows are tried; others may lie further out
PLACE = sympy.Rational(7, 11)  # where formulas are compared
_DECIMAL = re.compile(r"[+-]?(\d+|\d*\.(\d*))(?:[eE]([+-]?\d{1,6}))?")


class Cell(NamedTuple):
    """One entry as it was written: its value, its text, and the power of ten of its last digit.

    >>> Cell(sympy.Rational(1, 2), "0.50", -2).place
    -2
    """

    value: sympy.Expr
    text: str
    place: int | None = None  # None: exact
    is_cut: bool = False  # "0.33…" says itself that digits were left off


class Told(NamedTuple):
    """A student's matrix; entries left out are None.

    >>> Told([[None, Cell(sympy.Integer(1), "1")]]).left_open
    ('(1,1)',)
    """

    cells: list[list[Cell | None]]

    @property
    def left_open(self) -> tuple[str, ...]:
        """The entries without a number."""
        return tuple(at(i, j) for i, j, x in self.entries() if x is None)

    @property
    def is_blank(self) -> bool:
        """Whether no entry has a number."""
        return all(x is None for _, _, x in self.entries())

    def entries(self) -> Iterator[tuple[int, int, Cell | None]]:
        """Every entry with its row and column."""
        return ((i, j, x) for i, row in enumerate(self.cells) for j, x in enumerate(row))


def at(i: int, j: int) -> str:
    """The place of an entry as it is called, from 1.

    >>> at(0, 1)
    '(1,2)'
    """
    return f"({i + 1},{j + 1})"


def read_told(step: Step, told: Any, symbols: list[str]) -> Told:
    """What was written for a step, in its shape.

    A whole number is exact, but one of three digits, or of as many as a decimal beside it has (16
    beside 3.7), is rounded to units; with fewer it is held to the finest place beside it.

    >>> step = Step("N", "exp", ("E",), sympy.zeros(3, 1), "")
    >>> [row[0] and row[0].place for row in read_told(step, ["1.25", "?", "9.5e-1"], []).cells]
    [-2, None, -2]
    """
    want = step.value
    rows = told if isinstance(told, list | tuple) else [told]
    if rows and not isinstance(rows[0], list | tuple):
        rows = [rows] if want.rows == 1 else [[x] for x in rows]
    _need_shape(step, rows)
    cells = [
        [_written(x, symbols, f"{step.name} {at(i, j)}") for j, x in enumerate(row)]
        for i, row in enumerate(rows)
    ]
    decimals = [x for row in cells for x in row if x is not None and x.place is not None]
    finest = min((x.place or 0 for x in decimals), default=0)
    fewest = min((_significant(x.text) for x in decimals), default=ROUNDED)
    return Told([[_placed(x, finest, fewest) for x in row] for row in cells])


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


def _written(x: Any, symbols: list[str], where: str) -> Cell | None:
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
        value = number(short if isinstance(x, str) else x, symbols)
    except WorkError as error:
        rule, _, got = str(error).removeprefix("number: needs ").partition(", got ")
        raise WorkError(f"{where}: needs {rule}, got {got}") from None
    place = _place(short)
    if percent:
        value, place = value / 100, (place or 0) - 2
    return Cell(value, text, place, bool(is_cut) and place is not None)


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


def _placed(x: Cell | None, finest: int, fewest: int) -> Cell | None:
    """A whole number with the place that the numbers beside it suggest."""
    if x is None or x.place is not None or not re.fullmatch(r"[+-]?\d+", x.text):
        return x
    if _significant(x.text) >= max(1, min(fewest, ROUNDED)):
        return x._replace(place=0)
    return x._replace(place=finest) if finest < 0 else x


def apart(told: Told, want: Matrix) -> list[str]:
    """The entries that differ by more than honest rounding, each with what it should be.

    >>> apart(Told([[Cell(sympy.Integer(1), "1")]]), M([[2]]))
    ['(1,1): 1 should be 2']
    """
    return [
        f"{at(i, j)}: {_seen(x)} should be {_should_be(x, want[i, j])}"
        for i, j, x in told.entries()
        if x is not None and not fits(x, want[i, j])
    ]


def agrees(told: Told, want: Matrix) -> bool:
    """Whether every entry that was written is right to its own precision.

    >>> agrees(Told([[Cell(sympy.Rational(1, 3), "1/3"), None]]), M([["1/3", 5]]))
    True
    """
    return all(x is None or fits(x, want[i, j]) for i, j, x in told.entries())


def _seen(x: Cell) -> str:
    """An entry as it was written; a formula in symbols as the right one is shown."""
    return plain(x.value) if x.value.free_symbols else x.text


def _should_be(x: Cell, want: sympy.Expr) -> str:
    """The right value with enough digits to see that it is another one than x."""
    shown = decimal(want)
    if x.value.free_symbols or want.free_symbols or x.value.is_infinite or want.is_infinite:
        return shown
    for digits in (6, 7, 8, 9, 10, 12, 15, 20, 30, DIGITS):
        shown = decimal(want, digits)
        seen = sympy.Rational(shown) - _digits(x.value)
        if 2 * abs(seen) > abs(_digits(want) - _digits(x.value)):
            break
    return shown


def fits(x: Cell, want: sympy.Expr) -> bool:
    """Whether an entry is right to the digits it was written with.

    >>> third = sympy.Rational(1, 3)
    >>> [fits(Cell(x, "", -2), third) for x in (sympy.Rational(33, 100), sympy.Rational(34, 100))]
    [True, False]
    """
    return near(x.value, want, half_place(x)) or x.is_cut and is_truncated(x, want)


def half_place(x: Cell) -> Any:
    """Half of the last place that was written; 0 for what is exact.

    >>> half_place(Cell(sympy.Rational(1, 2), "0.5", -1))
    1/20
    """
    return sympy.S.Zero if x.place is None else sympy.Rational(10) ** x.place / 2


def is_truncated(x: Cell, want: sympy.Expr) -> bool:
    """Whether the digits of the right value were cut off where it should have been rounded.

    >>> is_truncated(Cell(sympy.Rational(66, 100), "0.66", -2), sympy.Rational(2, 3))
    True
    """
    if x.place is None or want.free_symbols or want.is_infinite:
        return False
    one, a, b = sympy.Rational(10) ** x.place, _digits(x.value), _digits(want)
    return bool(a * b >= 0 and 0 <= abs(b) - abs(a) < one)


def _digits(x: sympy.Expr) -> Any:
    return x if x.is_Rational else evaluated(x, DIGITS)


def near(a: sympy.Expr, b: sympy.Expr, far: Any = 0) -> bool:
    """Whether two numbers, or two formulas, are as good as one: `far` is what rounding may do.

    >>> near(sympy.sqrt(2), sympy.Rational(141, 100), 0.005)
    True
    """
    if a.is_infinite or b.is_infinite:
        return a == b
    if symbols := sorted(a.free_symbols | b.free_symbols, key=str):
        # the same formula gives the same numbers; two odd places tell formulas apart
        for k in (1, 2):
            here: Any = {s: PLACE * k + n / PLACE for n, s in enumerate(symbols)}
            if not near(a.subs(here), b.subs(here), far):
                return False
        return True
    if a.is_Rational and b.is_Rational and not far:
        return a == b  # a count that is off by one is wrong, however large
    x, y = _digits(a), _digits(b)
    if not (x.is_real and y.is_real):
        return False
    floor = FLOAT * abs(y) if abs(y) > ZERO else NOISE
    return bool(abs(x - y) <= max(far, floor) * TIE)


def filled(told: Told, rest: Matrix) -> Matrix:
    """The student's matrix, with what follows from it in the entries left open.

    >>> filled(Told([[None, Cell(sympy.Integer(3), "3")]]), M([[1, 2]]))
    Matrix([[1, 3]])
    """
    cells = [rest[i, j] if x is None else x.value for i, j, x in told.entries()]
    return M(rest.rows, rest.cols, cells)


def shifted(value: Matrix, told: Told, signs: random.Random) -> Matrix:
    """A matrix with every entry moved by half of the place it was written to, up or down.

    >>> shifted(M([[1, 2]]), Told([[Cell(sympy.Integer(1), "1.0", -1), None]]), random.Random(0))
    Matrix([[19/20, 2]])
    """
    moves = [0 if x is None else half_place(x) * signs.choice((1, -1)) for *_, x in told.entries()]
    return M(value.rows, value.cols, [x + move for x, move in zip(value, moves, strict=True)])


def within(told: Told, want: Matrix, moved: Sequence[Matrix]) -> bool:
    """Whether every entry is right to its own place and what `moved` shows of values before it.

    >>> within(Told([[Cell(sympy.Integer(3), "3")]]), M([[2]]), [M([["5/2"]])])
    True
    """
    for i, j, x in told.entries():
        if x is None or fits(x, want[i, j]):
            continue
        if want[i, j].free_symbols or want[i, j].is_infinite:
            return False
        reach = max(abs(_digits(one[i, j]) - _digits(want[i, j])) for one in moved)
        if not near(x.value, want[i, j], half_place(x) + SHARE * reach):
            return False
    return True
