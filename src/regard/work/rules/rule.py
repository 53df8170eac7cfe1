"""The Rule record, matrix functions from functions of numbers, and numbers inside formulas."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import sympy

from regard.errors import ShapeError
from regard.work.exact.numbers import format_decimal, format_plain, is_short_form

Matrix = Any  # sympy matrices are not typed by entry
M: Any = sympy.ImmutableMatrix
MatrixFunction = Callable[..., Matrix]
LATEX_SYMBOLS = {  # of a formula in plain text
    "∘": r"\\circ",
    "·": r"\\cdot",
    "ᵀ": r"^\\top",
    "²": "^2",
    "½": r"\\tfrac12",
    "Φ": r"\\Phi",
    r"ρ(?=\()": r"\\rho",
    r"σ(?=\()": r"\\sigma",
    r"\b(tanh|max|min)(?=\()": r"\\\1",
    r"‖(.*?)‖": r"\\lVert \1 \\rVert",
    r"√\((.*)\)$": r"\\sqrt{{\1}}",
    r"diag(?=\()": r"\\operatorname{{diag}}",
    r"(diag\}\}\(.*\)) (?=\{)": r"\1\\, ",
}


class Rule(NamedTuple):
    """What a step computes: a matrix function, its formula, and common mistakes.

    `text` and `latex` are format strings: {0}, {1} … stand for the names of the inputs. `entry` is
    the arithmetic of the first entry: a function of the inputs, or a format string of their first
    entries: {0} as an operand, {0:²} with an exponent, {0:/} with a fraction in brackets, {0:bare}
    without brackets.

    >>> double = Rule(lambda a: M(2 * a), "2 · {0}", entry="2·{0}")
    >>> double.run(M([[1, 2]])), double.tex, double.format_entry(M([[1, 2]]))
    (Matrix([[2, 4]]), '2 \\\\cdot {0}', '2·1')
    """

    run: MatrixFunction
    text: str
    mistakes: Mapping[str, MatrixFunction] = {}  # description: the function computed instead
    entry: str | Callable[..., str] = ""
    latex: str = ""  # `text` with LATEX_SYMBOLS if empty
    is_random: bool = False

    @property
    def tex(self) -> str:
        """The formula in LaTeX, a format string."""
        tex = self.latex or self.text
        for pattern, symbol in () if self.latex else LATEX_SYMBOLS.items():
            tex = re.sub(pattern, symbol, tex)
        return tex

    def format_entry(self, *inputs: Matrix) -> str:
        """Arithmetic of the first entry; empty where the rule has none."""
        if isinstance(self.entry, str):
            return self.entry.format(*(_Operand(value[0, 0]) for value in inputs))
        return self.entry(*inputs)


class _Operand(NamedTuple):
    x: Any

    def __format__(self, style: str) -> str:
        if style == "bare":
            return format_bare(self.x)
        return format_power(self.x, style.strip("/")) if style else format_operand(self.x)


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


def format_sum(numbers: Matrix, form: Callable[[Any], str] = format_operand) -> str:
    """Format a sum of numbers.

    >>> format_sum(M([[1, -2]])), format_sum(M([[1, -2]]), format_power)
    ('1 + (-2)', '1² + (-2)²')
    """
    return " + ".join(map(form, numbers))


def broadcast(run: Callable[..., Any]) -> MatrixFunction:
    """Lift a function of numbers to matrices; a side of length 1 is repeated.

    >>> broadcast(lambda x, y: x * y)(M([[1], [2]]), M([[3, 4]]))
    Matrix([
    [3, 4],
    [6, 8]])
    """

    def lifted(*inputs: Matrix) -> Matrix:
        rows, cols = (max(sides) for sides in zip(*(x.shape for x in inputs), strict=True))
        if any(x.rows not in (1, rows) or x.cols not in (1, cols) for x in inputs):
            raise ShapeError(f"shapes: needs sides of one length, got {_shapes(inputs)}")
        return M(
            [
                [run(*(x[i % x.rows, j % x.cols] for x in inputs)) for j in range(cols)]
                for i in range(rows)
            ]
        )

    return lifted


def elementwise(run: Callable[..., Any]) -> MatrixFunction:
    """Lift a function of numbers to matrices of one shape.

    >>> elementwise(lambda x, y: x + y)(M([[1, 2]]), M([[3, 4]]))
    Matrix([[4, 6]])
    """

    def lifted(*inputs: Matrix) -> Matrix:
        if len({x.shape for x in inputs}) > 1:
            count = "two" if len(inputs) == 2 else "all"
            raise ShapeError(f"shapes: needs {count} of one shape, got {_shapes(inputs)}")
        return broadcast(run)(*inputs)

    return lifted


def _shapes(inputs: Iterable[Matrix]) -> str:
    return " and ".join(f"{x.rows}×{x.cols}" for x in inputs)
