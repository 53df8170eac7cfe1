"""The Rule record: a formula that is computed and printed, its words, and common mistakes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import sympy

from regard.errors import ShapeError
from regard.formulas import FUNCTIONS, LETTER_FUNCTIONS, FormulaTree, parse_formula, row
from regard.work.exact import format_decimal, format_plain, is_short_form

Matrix = Any  # sympy matrices are not typed by entry
M: Any = sympy.ImmutableMatrix
MatrixFunction = Callable[..., Matrix]


class Rule(NamedTuple):
    """What a step computes: a matrix function, its formula, and common mistakes.

    `entry` is the arithmetic of the first entry: a function of the inputs, or a formula of their
    first entries. `words` are what plain text shows in place of a formula with too many signs.

    >>> double = rule("2 · {0}")
    >>> double.run(M([[1, 2]])), double.text, double.tex, double.format_entry(M([[1, 2]]))
    (Matrix([[2, 4]]), '2 · {0}', '2 \\\\cdot {0}', '2·1')
    """

    run: MatrixFunction
    formula: FormulaTree
    mistakes: Mapping[str, MatrixFunction] = {}  # description: the function computed instead
    entry: Callable[..., str] | None = None  # arithmetic of the first entry
    words: str = ""
    is_random: bool = False

    @property
    def text(self) -> str:
        """The formula in plain text, a format string."""
        return self.words or self.formula.text

    @property
    def tex(self) -> str:
        """The formula in LaTeX, with {0}, {1} … for the inputs."""
        return self.formula.tex

    def format_entry(self, *inputs: Matrix) -> str:
        """Arithmetic of the first entry; empty where the rule has none."""
        return self.entry(*inputs) if self.entry is not None else ""


def rule(
    formula: str,
    mistakes: Mapping[str, str | MatrixFunction] | None = None,
    *,
    run: MatrixFunction | None = None,
    entry: str | Callable[..., str] | None = None,
    words: str = "",
) -> Rule:
    """A rule from formulas: the step itself and each mistake are computed from what is printed.

    Args:
        formula: the step, in plain notation; A B is the matrix product, A ∘ B entry by entry.
        mistakes: description, and the formula (or function) computed instead.
        run: the function, where the formula cannot be computed.
        entry: as of a `Rule`; from the formula if None, unless `run` is given.
        words: as of a `Rule`.

    >>> rule("{0} ∘ (1 - {1}²)").format_entry(M([[3]]), M([["1/2"]]))
    '3·(1 - (1/2)²)'
    """
    functions = {
        description: partial(evaluate, wrong) if isinstance(wrong, str) else wrong
        for description, wrong in (mistakes or {}).items()
    }
    if entry is None:
        entry = partial(_entry_of, formula) if run is None else None
    elif isinstance(entry, str):
        entry = partial(_entry_of_first, entry)
    run = partial(evaluate, formula) if run is None else run
    return Rule(run, parse_formula(formula, fractions=True), functions, entry, words)


def evaluate(formula: str, *inputs: Matrix) -> Matrix:
    """Compute a formula in plain notation from matrices; powers and functions are elementwise.

    >>> evaluate("{0}ᵀ {0} + 1", M([[1, 2]]))
    Matrix([
    [2, 3],
    [3, 5]])
    """
    return M(_evaluate(parse_formula(formula), inputs))


def _evaluate(node: FormulaTree, inputs: Sequence[Matrix]) -> Any:
    """A matrix, or a number where the formula has one."""
    if node.kind == "slot":
        return inputs[int(node.sign[1:-1])]
    if node.kind == "number":
        return {"½": sympy.S.Half}.get(node.sign) or sympy.Integer(node.sign)
    if node.kind == "fence":
        inside = _evaluate(node.parts[1], inputs)
        return _norm(inside) if node.parts[0].sign == "‖" else inside
    if node.kind == "root":
        return _lift(sympy.sqrt)(_evaluate(node.parts[0], inputs))
    if node.kind == "raised":
        base, power = _evaluate(node.parts[0], inputs), node.parts[1].text
        return M(base.T) if power == "⊤" else _lift(lambda x: x ** int(power))(base)
    if name := _function(node):
        arguments = [_evaluate(part, inputs) for part in _arguments(node)]
        return CALLS[name](*arguments) if name in CALLS else _lift(ELEMENTWISE[name])(*arguments)
    total = None
    for sign, term in _split(node.parts, "+-"):
        value = _evaluate_term(term, inputs)
        if total is None:
            total = -value if sign == "-" else value
        else:
            total = _lift(lambda x, y, s=sign: x - y if s == "-" else x + y)(total, value)
    return total


def _evaluate_term(parts: Sequence[FormulaTree], inputs: Sequence[Matrix]) -> Any:
    result = None
    for sign, factors in _split(parts, "∘·/"):
        values = [_evaluate(factor, inputs) for factor in factors]
        value = values[0]
        for other in values[1:]:
            is_scaled = not (isinstance(value, sympy.MatrixBase) and hasattr(other, "shape"))
            value = value * other if is_scaled else matrix_product(value, other)
        if result is None:
            result = value
        else:
            divides = sign == "/"
            result = _lift(lambda x, y, d=divides: x / y if d else x * y)(result, value)
    return result


def _entry_of(formula: str, *inputs: Matrix) -> str:
    return "" if formula in ("{0}", "{0}ᵀ") else _entry(parse_formula(formula), inputs)


def _entry_of_first(formula: str, *inputs: Matrix) -> str:
    return _entry_of(formula, *(M(x[:1, :1]) for x in inputs))


def _entry(node: FormulaTree, inputs: Sequence[Matrix]) -> str:
    """Arithmetic of the first entry of a formula."""
    if node.kind == "slot":
        return format_operand(inputs[int(node.sign[1:-1])][0, 0])
    if node.kind == "fence":
        opening, inside, closing = node.parts
        return f"{opening.sign}{_entry(inside, inputs)}{closing.sign}"
    if node.kind == "root":
        return f"√({_bare(node.parts[0], inputs)})"
    if node.kind == "raised":
        base, power = node.parts[0], node.text[len(node.parts[0].text) :]
        power = power.strip("ᵀ")
        if base.kind == "slot" and power:
            return format_power(inputs[int(base.sign[1:-1])][0, 0], power)
        return _entry(base, inputs) + power
    if node.kind == "sup":
        return f"{_entry(node.parts[0], inputs)}^({_entry(node.parts[1], inputs)})"
    if name := _function(node):
        arguments = ", ".join(_bare(part, inputs) for part in _arguments(node))
        if name != "diag":
            return f"{name}({arguments})"
        is_sum = any(part.sign and part.sign in "+-" for part in _arguments(node)[0].parts)
        return f"({arguments})" if is_sum else _entry(_arguments(node)[0], inputs)
    if node.kind != "row":
        return node.text
    text = ""
    for n, (sign, term) in enumerate(_split(node.parts, "+-")):
        text += (f" {sign} " if n else sign.strip("+")) + _entry_term(term, inputs)
    return text


def _entry_term(parts: Sequence[FormulaTree], inputs: Sequence[Matrix]) -> str:
    text, is_quotient = "", any(part.sign == "/" for part in parts)
    for n, (sign, factors) in enumerate(_split(parts, "∘·/")):
        text += (" / " if sign == "/" else "·") if n else ""
        is_scaled = any(_function(x) == "diag" or x.kind == "number" for x in factors)
        is_pair = len(factors) == 2 and not is_scaled
        values = [_evaluate(factor, inputs) for factor in factors] if is_pair else []
        if any(len(value) > 1 for value in values):
            text += product_entry(*values)
        elif is_quotient and factors[0].kind == "slot":
            text += format_power(inputs[int(factors[0].sign[1:-1])][0, 0], "")
        else:
            text += "·".join(_entry(factor, inputs) for factor in factors)
    return text


def _bare(node: FormulaTree, inputs: Sequence[Matrix]) -> str:
    text = _entry(node, inputs)
    return text[1:-1] if node.kind == "slot" and text.startswith("(") else text


def _function(node: FormulaTree) -> str:
    """Name of the function that a formula calls; "" where it is something else."""
    is_call = node.kind == "row" and len(node.parts) == 2 and node.parts[1].kind == "fence"
    name = node.parts[0].sign if is_call else ""
    return name if name in (*FUNCTIONS, *LETTER_FUNCTIONS, *CALLS) else ""


def _arguments(node: FormulaTree) -> list[FormulaTree]:
    inside = node.parts[1].parts[1]
    parts = inside.parts if inside.kind == "row" and not _function(inside) else (inside,)
    return [row(*part) for _, part in _split(parts, ",")]


def _split(parts: Sequence[FormulaTree], signs: str) -> list[tuple[str, list[FormulaTree]]]:
    """Parts between these signs, each with the sign before it; spaces are left out."""
    result: list[tuple[str, list[FormulaTree]]] = [("+", [])]
    for part in parts:
        if part.kind == "sign" and part.sign in signs:
            result.append((part.sign, []))
        elif part.kind not in ("space", "product"):
            result[-1][1].append(part)
    return [one for one in result if one[1]]


def _lift(run: Callable[..., Any]) -> MatrixFunction:
    """Lift a function of numbers to numbers and matrices; matrices have one shape."""

    def lifted(*inputs: Any) -> Any:
        matrices = [x for x in inputs if isinstance(x, sympy.MatrixBase)]
        if len(matrices) == len(inputs):
            return elementwise(run)(*inputs)
        if not matrices:
            return run(*inputs)
        full = [x if isinstance(x, sympy.MatrixBase) else M([[x]]) for x in inputs]
        return broadcast(run)(*full)

    return lifted


def _norm(a: Matrix) -> Any:
    return M([[sympy.sqrt(sum((x**2 for x in a), sympy.S.Zero))]])


def _diagonal(v: Matrix) -> Matrix:
    return M(sympy.diag(*v))


def matrix_product(a: Matrix, b: Matrix) -> Matrix:
    """a b; raises a ShapeError where the shapes do not match.

    >>> matrix_product(M([[1, 2]]), M([[3], [4]]))
    Matrix([[11]])
    """
    if a.cols != b.rows:
        raise ShapeError(
            f"product: needs as many columns on the left as rows on the right, got "
            f"{a.rows}×{a.cols} times {b.rows}×{b.cols}"
        )
    return M(a * b)


def product_entry(a: Matrix, b: Matrix) -> str:
    """Arithmetic of the first entry of a product.

    >>> product_entry(M([[1, 2]]), M([[3], [4]]))
    '1·3 + 2·4'
    """
    terms = zip(a.row(0), b.col(0), strict=True)
    return " + ".join(f"{format_operand(x)}·{format_operand(y)}" for x, y in terms)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), exact.

    >>> sigmoid(sympy.Integer(0))
    1/2
    """
    return 1 / (1 + sympy.exp(-x))


def maximum(x: Any, y: Any) -> Any:
    """The larger of two numbers, exact; left unevaluated for symbols.

    >>> maximum(sympy.Integer(0), sympy.sqrt(2) - 2)
    0
    """
    if x.free_symbols or y.free_symbols:
        return sympy.Max(x, y)
    return y if (y - x if (y - x).is_Rational else (y - x).evalf(30)) > 0 else x


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "exp": sympy.exp, "log": sympy.log, "tanh": sympy.tanh, "σ": sigmoid, "max": maximum,
}  # fmt: skip
CALLS: dict[str, MatrixFunction] = {"diag": _diagonal}


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
