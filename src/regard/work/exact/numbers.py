"""Exact numbers and matrices: parsing, and rounding for display only."""

import re
from collections.abc import Collection
from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.exact.evaluate import evaluate_digits
from regard.work.exact.parse import parse_expression

MAX_ENTRIES = 1_024  # per matrix: exact arithmetic on 30×30 takes seconds


def parse_number(value: Any, symbols: Collection[str] = ()) -> sympy.Expr:
    """Parse 3, 0.25, "5/2", "1/sqrt(2)" or "-inf" exactly; names in `symbols` stay symbols.

    >>> parse_number(0.1) + parse_number("1/2"), parse_number("sqrt(8)"), parse_number("2*a", ["a"])
    (3/5, 2*sqrt(2), 2*a)
    """
    if isinstance(value, sympy.Expr):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        got = shorten_repr(value)
        raise WorkError(f"number: needs one such as 3, 0.25, 5/2 or sqrt(2), got {got}")
    try:
        return parse_expression(str(value), symbols)
    except ValueError as error:  # str() of an integer of 5,000 digits
        if isinstance(error, WorkError):
            raise
        raise WorkError(f"number: needs at most a thousand digits, got {error}") from error


def shorten_repr(value: Any) -> str:
    """repr of a value for an error message, truncated to 80 characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # deep nesting, very long integers
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:78]}…"


def parse_matrix(values: Any, name: str = "matrix", symbols: Collection[str] = ()) -> Any:
    """Parse a list of rows; a flat list is one row, a number a 1×1 matrix.

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
    rows = values if isinstance(values, list | tuple) else [values]
    if rows and not isinstance(rows[0], list | tuple):
        rows = [rows]
    rows = [row if isinstance(row, list | tuple) else [row] for row in rows]
    lengths = list(dict.fromkeys(len(row) for row in rows))
    if len(lengths) != 1 or lengths == [0]:
        got = " and ".join(map(str, lengths))
        raise ShapeError(f"{name}: needs rows of one length, got {got} numbers")
    if len(rows) * lengths[0] > MAX_ENTRIES:
        got = f"{len(rows)}×{lengths[0]}"
        raise ShapeError(f"{name}: needs at most {MAX_ENTRIES} numbers, got {got}")
    return sympy.ImmutableMatrix([[parse_number(x, symbols) for x in row] for row in rows])


def format_decimal(x: sympy.Expr, digits: int = 6, keep_zeros: bool = False) -> str:
    """Format to significant digits; expressions with symbols are printed as they are.

    With `keep_zeros` trailing zeros stay: 2.00000 is rounded, 2 may be exact.

    >>> [format_decimal(x) for x in (sympy.sqrt(2), sympy.Rational(1, 4), -sympy.oo)]
    ['1.41421', '0.25', '-inf']
    >>> format_decimal(sympy.tanh(20), keep_zeros=True)
    '1.00000'
    """
    if x.free_symbols or x in (sympy.oo, -sympy.oo):
        return format_plain(x)
    number = evaluate_digits(x, digits + 5)
    if digits > 15 or number and not 1e-300 < abs(number) < 1e300:  # beyond a float
        return str(sympy.Float(number, digits))
    return f"{float(number):{'#' if keep_zeros else ''}.{digits}g}".rstrip(".")


def is_exact_in(x: sympy.Expr, digits: int) -> bool:
    """Whether a number equals its rounding to `digits` significant digits.

    >>> is_exact_in(sympy.Float("3", 50), 6), is_exact_in(sympy.sqrt(2), 6)
    (True, False)
    """
    if x.free_symbols or x.is_infinite:
        return True
    number = evaluate_digits(x, 50)
    rounded = sympy.Rational(str(sympy.Float(number, digits)))
    return bool(abs(number - rounded) <= abs(number) * sympy.Rational(1, 10**40))


def is_short_form(x: sympy.Expr) -> bool:
    """Whether a number is shown exactly: rational, a single root, or symbolic.

    >>> is_short_form(sympy.Rational(5, 2)), is_short_form(sympy.exp(1) / 3)
    (True, False)
    """
    if x.is_Float:
        return False
    if x.is_Rational or x.is_infinite or x.free_symbols:
        return True
    max_ops = 8 if x.has(sympy.sin, sympy.cos) else 4  # a sum of two products of sines is readable
    return not x.has(sympy.exp, sympy.E, sympy.tanh) and x.count_ops() < max_ops


def format_plain(x: sympy.Expr) -> str:
    """Format a number or formula as plain text, with · and superscripts.

    >>> a = sympy.Symbol("a")
    >>> format_plain(2 * a**2 + 1), format_plain(-sympy.oo)
    ('2·a² + 1', '-inf')
    """
    text = re.sub(r"\*\*(\d+)", lambda power: power[1].translate(_SUPERSCRIPT_DIGITS), str(x))
    return text.replace("*", "·").replace("oo", "inf")


_SUPERSCRIPT_DIGITS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
