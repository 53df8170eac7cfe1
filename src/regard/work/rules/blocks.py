"""Rules of a Transformer block: bias, norms, activations, and counting."""

from collections.abc import Callable
from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.rules.basic import matrix_product, product_entry, sigmoid
from regard.work.rules.rule import M, Matrix, Rule, elementwise, format_bare, format_operand


def _add_to_rows(a: Matrix, row: Matrix, sign: int = 1) -> Matrix:
    """Add a vector, given as row or column, to every row."""
    entries = list(row)
    if 1 not in row.shape or len(entries) != a.cols:
        raise ShapeError(f"bias: needs {a.cols} numbers, got {row.rows}×{row.cols}")
    return M(a.rows, a.cols, lambda i, j: a[i, j] + sign * entries[j])


def _affine(x: Matrix, w: Matrix, b: Matrix, sign: int = 1) -> Matrix:
    return _add_to_rows(matrix_product(x, w), b, sign)


def _affine_entry(i: int, j: int, x: Matrix, w: Matrix, b: Matrix) -> str:
    return f"{product_entry(i, j, x, w)} + {format_operand(list(b)[j])}"


def _row_means(a: Matrix) -> Matrix:
    return M([sum(a.row(i)) / a.cols for i in range(a.rows)])


def _mean_entry(i: int, j: int, a: Matrix) -> str:
    return f"({' + '.join(format_operand(x) for x in a.row(i))}) / {a.cols}"


def _column_means(a: Matrix) -> list[Any]:
    return [sum(a.col(j)) / a.rows for j in range(a.cols)]


def _centre(a: Matrix, mean: Matrix, sign: int = 1) -> Matrix:
    return M(a.rows, a.cols, lambda i, j: a[i, j] - sign * mean[i, 0])


def _variance(c: Matrix, less: int = 0) -> Matrix:
    return M([sum(x**2 for x in c.row(i)) / (c.cols - less) for i in range(c.rows)])


def _variance_entry(i: int, j: int, c: Matrix) -> str:
    return f"({' + '.join(f'{format_operand(x)}²' for x in c.row(i))}) / {c.cols}"


def _inverse_std(v: Matrix, eps: Matrix) -> Matrix:
    e = eps[0, 0]
    if any(x + e == 0 for x in v):
        raise WorkError("eps: needs more than 0 where all features of a token are equal, got 0")
    return M(v.applyfunc(lambda x: 1 / sympy.sqrt(x + e)))


def _scale_rows(a: Matrix, r: Matrix) -> Matrix:
    return M(a.rows, a.cols, lambda i, j: a[i, j] * r[i, 0])


def _gain_and_shift(n: Matrix, gain: Matrix, shift: Matrix) -> Matrix:
    g = list(gain)
    if len(g) != n.cols:
        raise ShapeError(f"gain: needs {n.cols} numbers, got {gain.rows}×{gain.cols}")
    return _add_to_rows(M(n.rows, n.cols, lambda i, j: n[i, j] * g[j]), shift)


def relu(x: Any) -> Any:
    """max(0, x), exact; left unevaluated for symbols.

    >>> relu(sympy.sqrt(2) - 2), relu(sympy.Integer(3)), relu(sympy.Symbol("a"))
    (0, 3, Max(0, a))
    """
    if x.free_symbols:
        return sympy.Max(0, x)
    value = x if x.is_Rational else x.evalf(30)
    return x if value > 0 else sympy.Integer(0)


def gelu(x: Any) -> Any:
    """x Φ(x), with Φ the standard normal CDF.

    >>> gelu(sympy.Integer(0))
    0
    """
    return x * (1 + sympy.erf(x / sympy.sqrt(2))) / 2


def _quotient(a: Matrix, b: Matrix) -> Matrix:
    numerator, denominator = a[0, 0], b[0, 0]
    if denominator == 0:
        raise WorkError("quotient: needs a divisor other than 0, got 0")
    return M([[numerator / denominator]])


def _from_integer(make: Callable[[int], Rule]) -> Callable[[str], Rule]:
    return lambda text: make(int(text))


def _times(n: int) -> Rule:
    return Rule(
        elementwise(lambda x: n * x),
        f"{n} · {{0}}",
        f"{n} \\cdot {{0}}",
        {f"the {n} was left out": lambda a: a},
        lambda i, j, a: f"{n}·{format_operand(a[i, j])}",
    )


def _plus(n: int) -> Rule:
    return Rule(
        elementwise(lambda x: x + n),
        f"{{0}} + {n}",
        f"{{0}} + {n}",
        {f"the {n} was left out": lambda a: a},
        lambda i, j, a: f"{format_operand(a[i, j])} + {n}",
    )


ARITHMETIC_MAKERS = {r"times (\d+)": _from_integer(_times), r"plus (\d+)": _from_integer(_plus)}

BLOCK_RULES: dict[str, Rule] = {
    "affine": Rule(
        _affine,
        "{0} {1} + {2}",
        "{0} {1} + {2}",
        {
            "the bias was left out": lambda x, w, b: matrix_product(x, w),
            "the bias was subtracted": lambda x, w, b: _affine(x, w, b, -1),
            "the matrix was transposed": lambda x, w, b: _affine(x, M(w.T), b),
        },
        _affine_entry,
    ),
    "affine, columns": Rule(
        lambda w, x, b: M(_affine(M(x.T), M(w.T), b).T),
        "{0} {1} + {2}",
        "{0} {1} + {2}",
        {"the bias was left out": lambda w, x, b: matrix_product(w, x)},
        lambda i, j, w, x, b: _affine_entry(j, i, M(x.T), M(w.T), b),
    ),
    "mean of rows": Rule(
        _row_means,
        "the mean of each row of {0}",
        "\\operatorname{{mean}}({0})",
        {
            "the sum was not divided": lambda a: M([sum(a.row(i)) for i in range(a.rows)]),
            "the mean was taken over tokens, not features": lambda a: M(_column_means(a)),
        },
        _mean_entry,
    ),
    "centre rows": Rule(
        _centre,
        "{0} - {1}, row by row",
        "{0} - {1} \\mathbf 1^\\top",
        {
            "the mean was added": lambda a, m: _centre(a, m, -1),
            "the mean of each column was subtracted": lambda a, m: _add_to_rows(
                a, M([_column_means(a)]), -1
            ),
        },
        lambda i, j, a, m: f"{format_operand(a[i, j])} - {format_operand(m[i, 0])}",
    ),
    "variance of rows": Rule(
        _variance,
        "the mean of the squares in each row of {0}",
        "\\operatorname{{mean}}({0}^{{\\circ 2}})",
        {
            "divided by n - 1 instead of n": lambda c: _variance(c, 1),
            "the sum was not divided": lambda c: M(c.cols * _variance(c)),
            "the square root was already taken": lambda c: M(_variance(c).applyfunc(sympy.sqrt)),
        },
        _variance_entry,
    ),
    "inverse std": Rule(
        _inverse_std,
        "1 / √({0} + {1})",
        "({0} + {1})^{{-1/2}}",
        {
            "the square root was left out": lambda v, e: M(
                v.applyfunc(lambda x: 1 / (x + e[0, 0]))
            ),
            "ε was added outside the square root": lambda v, e: M(
                v.applyfunc(lambda x: 1 / (sympy.sqrt(x) + e[0, 0]))
            ),
            "it was not inverted": lambda v, e: M(v.applyfunc(lambda x: sympy.sqrt(x + e[0, 0]))),
        },
        lambda i, j, v, e: f"1 / √({format_operand(v[i, j])} + {format_operand(e[0, 0])})",
    ),
    "scale rows": Rule(
        _scale_rows,
        "{0} · {1}, row by row",
        "\\operatorname{{diag}}({1})\\, {0}",
        {"it was divided": lambda a, r: _scale_rows(a, M(r.applyfunc(lambda x: 1 / x)))},
        lambda i, j, a, r: f"{format_operand(a[i, j])}·{format_operand(r[i, 0])}",
    ),
    "gain and shift": Rule(
        _gain_and_shift,
        "{1} ∘ {0} + {2}, row by row",
        "{0} \\operatorname{{diag}}({1}) + \\mathbf 1 {2}",
        {
            "the gain was left out": lambda n, g, s: _add_to_rows(n, s),
            "the shift was left out": lambda n, g, s: _gain_and_shift(n, g, M.zeros(1, n.cols)),
            "the shift was scaled too": lambda n, g, s: _gain_and_shift(
                _add_to_rows(n, s), g, 0 * s
            ),
        },
        lambda i, j, n, g, s: (
            f"{format_operand(list(g)[j])}·{format_operand(n[i, j])} + {format_operand(list(s)[j])}"
        ),
    ),
    "gain": Rule(
        lambda n, g: _gain_and_shift(n, g, M.zeros(1, n.cols)),
        "{1} ∘ {0}, row by row",
        "{0} \\operatorname{{diag}}({1})",
        {"it was left out": lambda n, g: n},
        lambda i, j, n, g: f"{format_operand(list(g)[j])}·{format_operand(n[i, j])}",
    ),
    "add to rows": Rule(
        _add_to_rows,
        "{0} + {1}, row by row",
        "{0} + \\mathbf 1 {1}",
        {"it was left out": lambda a, row: a},
        lambda i, j, a, row: f"{format_operand(a[i, j])} + {format_operand(list(row)[j])}",
    ),
    "relu": Rule(
        elementwise(relu),
        "max(0, {0})",
        "\\max(0, {0})",
        {
            "it was left out": lambda a: a,
            "the absolute value was taken": elementwise(sympy.Abs),
            "the negative part was kept": elementwise(lambda x: x - relu(x)),
        },
        lambda i, j, a: f"max(0, {format_bare(a[i, j])})",
    ),
    "gelu": Rule(
        elementwise(gelu),
        "{0} ∘ Φ({0})",
        "{0} \\circ \\Phi({0})",
        {"it was left out": lambda a: a, "relu was used": elementwise(relu)},
        lambda i, j, a: f"{format_operand(a[i, j])}·Φ({format_bare(a[i, j])})",
    ),
    "silu": Rule(
        elementwise(lambda x: x * sigmoid(x)),
        "{0} ∘ σ({0})",
        "{0} \\circ \\sigma({0})",
        {
            "only σ was taken": elementwise(sigmoid),
            "relu was used": elementwise(relu),
        },
        lambda i, j, a: f"{format_operand(a[i, j])} / (1 + exp(-{format_operand(a[i, j])}))",
    ),
    "quotient": Rule(
        _quotient,
        "{0} / {1}",
        "{0} / {1}",
        {"they were multiplied": lambda a, b: M([[a[0, 0] * b[0, 0]]])},
        lambda i, j, a, b: f"{format_operand(a[0, 0])} / {format_operand(b[0, 0])}",
    ),
    "square": Rule(
        elementwise(lambda x: x**2),
        "{0}²",
        "{0}^2",
        {"it was doubled": elementwise(lambda x: 2 * x), "it was not squared": lambda a: a},
        lambda i, j, a: f"{format_operand(a[i, j])}²",
    ),
}
