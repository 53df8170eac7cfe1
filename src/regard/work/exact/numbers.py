"""Exact numbers: read as people write them, kept as they are, rounded only when shown."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.exact.evaluate import evaluate_digits
from regard.work.exact.parse import parse_expression

Cells = Sequence[Sequence[Any]]
MAX_ENTRIES = 1_024  # numbers of one matrix; exact, thirty rows of thirty take seconds


def parse_number(value: Any, symbols: Collection[str] = ()) -> sympy.Expr:
    """A number as it was written: 3, 0.25, "5/2", "1/sqrt(2)", "-inf"; a decimal is taken exactly.

    Names that were declared as `symbols` stand for themselves.

    >>> parse_number(0.1) + parse_number("1/2"), parse_number("sqrt(8)"), parse_number("2*a", ["a"])
    (3/5, 2*sqrt(2), 2*a)
    >>> parse_number([1])
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: number: needs one such as 3, 0.25, 5/2 or sqrt(2), got [1]
    """
    if isinstance(value, sympy.Expr):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise WorkError(
            f"number: needs one such as 3, 0.25, 5/2 or sqrt(2), got {shorten_repr(value)}"
        )
    try:
        return parse_expression(str(value), symbols)
    except ValueError as error:  # a whole number of 5,000 digits has no text
        if isinstance(error, WorkError):
            raise
        raise WorkError(f"number: needs at most a thousand digits, got {error}") from error


def shorten_repr(value: Any, max_chars: int = 80) -> str:
    """A value as a message can show it, cut where it is long.

    >>> shorten_repr("1" * 100, 8)
    "'11111…"
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # brackets without end, digits without end
        return f"a {type(value).__name__}"
    return text if len(text) <= max_chars else f"{text[: max_chars - 2]}…"


def parse_matrix(values: Any, name: str = "matrix", symbols: Collection[str] = ()) -> Any:
    """Rows of numbers; one row may stand alone, and a lone number is a matrix of one.

    >>> parse_matrix([["1/2", 0], [-1, 2]])
    Matrix([
    [1/2, 0],
    [ -1, 2]])
    >>> parse_matrix([[1, 2], [3]], "W")
    Traceback (most recent call last):
        ...
    regard.errors.ShapeError: W: needs rows of one length, got 2 and 1 numbers
    """
    if isinstance(values, sympy.MatrixBase):
        return sympy.ImmutableMatrix(values)
    if not isinstance(values, list | tuple):
        values = [[values]]
    rows = [row if isinstance(row, list | tuple) else [row] for row in values]
    if values and not isinstance(values[0], list | tuple):
        rows = [list(values)]
    lengths = list(dict.fromkeys(len(row) for row in rows))
    if len(lengths) != 1 or lengths == [0]:
        raise ShapeError(
            f"{name}: needs rows of one length, got {' and '.join(map(str, lengths))} numbers"
        )
    if len(rows) * lengths[0] > MAX_ENTRIES:
        raise ShapeError(
            f"{name}: needs at most {MAX_ENTRIES} numbers, got {len(rows)}×{lengths[0]}"
        )
    return sympy.ImmutableMatrix([[parse_number(x, symbols) for x in row] for row in rows])


def format_decimal(x: sympy.Expr, digits: int = 6, keep_zeros: bool = False) -> str:
    """A number to so many digits that count, short where it is exact; a symbol stays what it is.

    With `zeros` those at the end are kept: 2.00000 is rounded, 2 may be exact.

    >>> format_decimal(sympy.sqrt(2)), format_decimal(sympy.Rational(1, 4)), format_decimal(-sympy.oo)
    ('1.41421', '0.25', '-inf')
    >>> format_decimal(sympy.tanh(20), keep_zeros=True)
    '1.00000'
    """
    if x.free_symbols:
        return format_plain(x)
    if x in (sympy.oo, -sympy.oo):
        return "inf" if x == sympy.oo else "-inf"
    found = evaluate_digits(x, digits + 5)
    if digits > 15 or found and not 1e-300 < abs(found) < 1e300:  # more than a float has
        return str(sympy.Float(found, digits))
    if keep_zeros:
        return f"{float(found):#.{digits}g}".rstrip(".")
    return f"{float(found):.{digits}g}"


def is_exact_in(x: sympy.Expr, digits: int) -> bool:
    """Whether so many digits are all that a number has.

    >>> is_exact_in(sympy.Float("3", 50), 6), is_exact_in(sympy.sqrt(2), 6)
    (True, False)
    """
    if x.free_symbols or x.is_infinite:
        return True
    found = evaluate_digits(x, 50)
    shown = sympy.Rational(str(sympy.Float(found, digits)))
    return bool(abs(found - shown) <= abs(found) * sympy.Rational(1, 10**40))


def is_short_form(x: sympy.Expr) -> bool:
    """Whether a number is best shown as it is: whole, a short fraction, a lone root, in symbols.

    >>> is_short_form(sympy.Rational(5, 2)), is_short_form(sympy.exp(1) / 3)
    (True, False)
    """
    if x.is_Float:  # digits without end
        return False
    if x.is_Rational or x.is_infinite or x.free_symbols:
        return True
    most = 8 if x.has(sympy.sin, sympy.cos) else 4  # a sum of two products of waves is still read
    return not x.has(sympy.exp, sympy.E, sympy.tanh) and x.count_ops() < most


def format_plain(x: sympy.Expr) -> str:
    """A number or formula as one line of text, the way it is written by hand.

    >>> a = sympy.Symbol("a")
    >>> format_plain(2 * a**2 + 1), format_plain(-sympy.oo)
    ('2·a² + 1', '-inf')
    """
    text = re.sub(r"\*\*(\d+)", lambda high: high[1].translate(_RAISED), str(x))
    return text.replace("*", "·").replace("oo", "inf")


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
