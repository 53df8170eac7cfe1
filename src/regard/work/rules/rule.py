"""What a rule is: what it does to exact numbers, its formula, and the slips people make in it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sympy

from regard.work.numbers import decimal, is_simple, plain

Matrix = Any  # sympy does not say what a matrix holds
M: Any = sympy.ImmutableMatrix
Run = Callable[..., Matrix]


class Rule(NamedTuple):
    """What a step does: on matrices, in words, and in which ways it is often done wrong.

    `text` and `tex` are its formula, with {0}, {1} … for the names of what it takes.

    >>> double = Rule(lambda a: M(2 * a), "2 {0}", "2 {0}", {})
    >>> double.run(M([[1, 2]]))
    Matrix([[2, 4]])
    """

    run: Run
    text: str
    tex: str
    slips: Mapping[str, Run]
    entry: Callable[..., str] | None = None


def told(x: Any) -> str:
    """A number as one writes it inside a formula: short, and in brackets where it needs them.

    >>> told(sympy.Rational(-1, 2)), told(sympy.E)
    ('(-1/2)', '2.71828')
    """
    text = plain(x) if is_simple(x) else decimal(x)
    return f"({text})" if text.startswith("-") or " " in text else text


def bare(x: Any) -> str:
    """The same without the brackets.

    >>> bare(sympy.Rational(-1, 2)), bare(sympy.sqrt(2))
    ('-1/2', 'sqrt(2)')
    """
    text = told(x)
    return text[1:-1] if text.startswith("(") else text


def raised(x: Any, power: str = "²") -> str:
    """A number with its power, in brackets where the power could be read as of its end alone.

    >>> raised(sympy.Rational(1, 2)), raised(sympy.Integer(3), "⁴")
    ('(1/2)²', '3⁴')
    """
    text = told(x)
    return f"({text}){power}" if "/" in text and not text.startswith("(") else f"{text}{power}"


def each(run: Callable[[Any], Any]) -> Run:
    """A rule that does one thing to every entry.

    >>> each(lambda x: x + 1)(M([[1, 2]]))
    Matrix([[2, 3]])
    """
    return lambda a: M(a.applyfunc(run))
