"""The Rule record, and formatting of numbers inside formulas."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sympy

from regard.work.exact.numbers import format_decimal, format_plain, is_short_form

Matrix = Any  # sympy matrices are not typed by entry
M: Any = sympy.ImmutableMatrix
MatrixFunction = Callable[..., Matrix]


class Rule(NamedTuple):
    """What a step computes: a matrix function, its formula, and common mistakes.

    `text` and `tex` are format strings: {0}, {1} … stand for the names of the inputs.

    >>> double = Rule(lambda a: M(2 * a), "2 {0}", "2 {0}", {})
    >>> double.run(M([[1, 2]]))
    Matrix([[2, 4]])
    """

    run: MatrixFunction
    text: str
    tex: str
    mistakes: Mapping[str, MatrixFunction]  # description: the function computed instead
    format_entry: Callable[..., str] | None = None  # (i, j, *inputs): arithmetic of one entry
    is_random: bool = False


def format_operand(x: Any) -> str:
    """Format a number as an operand, in brackets if it is negative or a sum.

    >>> format_operand(sympy.Rational(-1, 2)), format_operand(sympy.E)
    ('(-1/2)', '2.71828')
    """
    text = format_plain(x) if is_short_form(x) else format_decimal(x)
    return f"({text})" if text.startswith("-") or " " in text else text


def format_bare(x: Any) -> str:
    """Format a number without brackets, as a function argument.

    >>> format_bare(sympy.Rational(-1, 2)), format_bare(sympy.sqrt(2))
    ('-1/2', 'sqrt(2)')
    """
    text = format_operand(x)
    return text[1:-1] if text.startswith("(") else text


def format_power(x: Any, power: str = "²") -> str:
    """Format a number with an exponent, fractions in brackets.

    >>> format_power(sympy.Rational(1, 2)), format_power(sympy.Integer(3), "⁴")
    ('(1/2)²', '3⁴')
    """
    text = format_operand(x)
    return f"({text}){power}" if "/" in text and not text.startswith("(") else f"{text}{power}"


def elementwise(run: Callable[[Any], Any]) -> MatrixFunction:
    """Lift a scalar function to matrices.

    >>> elementwise(lambda x: x + 1)(M([[1, 2]]))
    Matrix([[2, 3]])
    """
    return lambda a: M(a.applyfunc(run))
