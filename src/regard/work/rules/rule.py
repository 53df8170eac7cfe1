"""What a rule is: what it does to exact numbers, its formula, and the slips people make in it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sympy

from regard.work.exact.numbers import format_decimal, format_plain, is_short_form

Matrix = Any  # sympy does not say what a matrix holds
M: Any = sympy.ImmutableMatrix
MatrixFunction = Callable[..., Matrix]


class Rule(NamedTuple):
    """What a step does: on matrices, in words, and in which ways it is often done wrong.

    `text` and `tex` are its formula, with {0}, {1} … for the names of what it takes.

    >>> double = Rule(lambda a: M(2 * a), "2 {0}", "2 {0}", {})
    >>> double.run(M([[1, 2]]))
    Matrix([[2, 4]])
    """

    run: MatrixFunction
    text: str
    tex: str
    mistakes: Mapping[str, MatrixFunction]
    format_entry: Callable[..., str] | None = None


def format_operand(x: Any) -> str:
    """A number as one writes it inside a formula: short, and in brackets where it needs them.

    >>> format_operand(sympy.Rational(-1, 2)), format_operand(sympy.E)
    ('(-1/2)', '2.71828')
    """
    text = format_plain(x) if is_short_form(x) else format_decimal(x)
    return f"({text})" if text.startswith("-") or " " in text else text


def format_bare(x: Any) -> str:
    """The same without the brackets.

    >>> format_bare(sympy.Rational(-1, 2)), format_bare(sympy.sqrt(2))
    ('-1/2', 'sqrt(2)')
    """
    text = format_operand(x)
    return text[1:-1] if text.startswith("(") else text


def format_power(x: Any, power: str = "²") -> str:
    """A number with its power, in brackets where the power could be read as of its end alone.

    >>> format_power(sympy.Rational(1, 2)), format_power(sympy.Integer(3), "⁴")
    ('(1/2)²', '3⁴')
    """
    text = format_operand(x)
    return f"({text}){power}" if "/" in text and not text.startswith("(") else f"{text}{power}"


def elementwise(run: Callable[[Any], Any]) -> MatrixFunction:
    """A rule that does one thing to every entry.

    >>> elementwise(lambda x: x + 1)(M([[1, 2]]))
    Matrix([[2, 3]])
    """
    return lambda a: M(a.applyfunc(run))
