"""Exact numbers: read as people write them, kept as they are, rounded only when shown."""

from collections.abc import Sequence
from typing import Any

import sympy
from sympy.parsing.sympy_parser import parse_expr

from regard.errors import ShapeError, WorkError

KNOWN: dict[str, Any] = {
    "sqrt": sympy.sqrt,
    "exp": sympy.exp,
    "log": sympy.log,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "pi": sympy.pi,
    "e": sympy.E,
    "inf": sympy.oo,
}
# what the parser itself needs to make of digits
_MADE = {"Integer": sympy.Integer, "Rational": sympy.Rational, "Float": sympy.Rational}
LONGEST = 200  # characters of one number
Cells = Sequence[Sequence[Any]]


def number(told: Any) -> sympy.Expr:
    """A number as it was written: 3, 0.25, "5/2", "1/sqrt(2)", "-inf"; a decimal is taken exactly.

    >>> number(0.1) + number("1/2"), number("sqrt(8)")
    (3/5, 2*sqrt(2))
    >>> number("two")
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: number: needs one such as 3, 0.25, 5/2 or sqrt(2), got 'two'
    """
    refused = WorkError(f"number: needs one such as 3, 0.25, 5/2 or sqrt(2), got {told!r}")
    if isinstance(told, sympy.Expr):
        return told
    if isinstance(told, bool) or not isinstance(told, int | float | str):
        raise refused
    text = str(told).strip().replace("−", "-")
    # Only these characters, and no powers (9**9**9 would never end): what is parsed is evaluated,
    # and a problem may come from anybody.
    strange = set(text) - set("0123456789.+-*/() sqrtexplogincosf") or "**" in text
    if not text or strange or len(text) > LONGEST:
        raise refused
    try:
        found = parse_expr(text, dict(KNOWN), global_dict=dict(_MADE))
    except Exception as error:  # the parser raises whatever it meets
        raise refused from error
    if not isinstance(found, sympy.Expr) or found.free_symbols or found.has(sympy.nan, sympy.zoo):
        raise refused
    return sympy.nsimplify(found, rational=True) if found.has(sympy.Float) else found


def matrix(told: Any, name: str = "matrix") -> Any:
    """Rows of numbers; one row may stand alone, and a lone number is a matrix of one.

    >>> matrix([["1/2", 0], [-1, 2]])
    Matrix([
    [1/2, 0],
    [ -1, 2]])
    >>> matrix([[1, 2], [3]], "W")
    Traceback (most recent call last):
        ...
    regard.errors.ShapeError: W: needs rows of one length, got 2 and 1 numbers
    """
    if isinstance(told, sympy.MatrixBase):
        return sympy.ImmutableMatrix(told)
    if not isinstance(told, list | tuple):
        told = [[told]]
    rows = [row if isinstance(row, list | tuple) else [row] for row in told]
    if told and not isinstance(told[0], list | tuple):
        rows = [list(told)]
    lengths = list(dict.fromkeys(len(row) for row in rows))
    if len(lengths) != 1 or lengths == [0]:
        raise ShapeError(
            f"{name}: needs rows of one length, got {' and '.join(map(str, lengths))} numbers"
        )
    return sympy.ImmutableMatrix([[number(x) for x in row] for row in rows])


def decimal(x: sympy.Expr, digits: int = 6) -> str:
    """A number to so many digits that count, short where it is exact.

    >>> decimal(sympy.sqrt(2)), decimal(sympy.Rational(1, 4)), decimal(-sympy.oo)
    ('1.41421', '0.25', '-inf')
    """
    if x in (sympy.oo, -sympy.oo):
        return "inf" if x == sympy.oo else "-inf"
    return f"{float(x.evalf(digits + 5)):.{digits}g}"


def is_simple(x: sympy.Expr) -> bool:
    """Whether a number is best shown as it is: whole, a short fraction, a lone root.

    >>> is_simple(sympy.Rational(5, 2)), is_simple(sympy.exp(1) / 3)
    (True, False)
    """
    if x.is_Float:  # digits without end
        return False
    if x.is_Rational or x.is_infinite:
        return True
    return not x.has(sympy.exp, sympy.E, sympy.tanh) and x.count_ops() < 4
