"""Rules of a Transformer block: bias, norms, activations, quotients and squares."""

from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.rules.basic import matrix_product, product_entry, row_sums, sigmoid
from regard.work.rules.rule import (
    M,
    Matrix,
    Rule,
    broadcast,
    elementwise,
    format_operand,
    format_power,
    format_sum,
)


def _add_to_rows(a: Matrix, row: Matrix, sign: int = 1) -> Matrix:
    """Add a vector, given as row or column, to every row."""
    entries = list(row)
    if 1 not in row.shape or len(entries) != a.cols:
        raise ShapeError(f"bias: needs {a.cols} numbers, got {row.rows}×{row.cols}")
    return M(a.rows, a.cols, lambda i, j: a[i, j] + sign * entries[j])


def _affine(x: Matrix, w: Matrix, b: Matrix, sign: int = 1) -> Matrix:
    return _add_to_rows(matrix_product(x, w), b, sign)


def _affine_entry(x: Matrix, w: Matrix, b: Matrix) -> str:
    return f"{product_entry(x, w)} + {format_operand(b[0, 0])}"


def _row_means(a: Matrix) -> Matrix:
    return M([sum(a.row(i)) / a.cols for i in range(a.rows)])


def _variance(c: Matrix, less: int = 0) -> Matrix:
    return M([sum(x**2 for x in c.row(i)) / (c.cols - less) for i in range(c.rows)])


def _inverse_std(v: Matrix, eps: Matrix) -> Matrix:
    if any(x + eps[0, 0] == 0 for x in v):
        raise WorkError("eps: needs more than 0 where all features of a token are equal, got 0")
    return broadcast(lambda x, e: 1 / sympy.sqrt(x + e))(v, eps)


def _gain_and_shift(n: Matrix, gain: Matrix, shift: Matrix) -> Matrix:
    g = list(gain)
    if len(g) != n.cols:
        raise ShapeError(f"gain: needs {n.cols} numbers, got {gain.rows}×{gain.cols}")
    return _add_to_rows(M(n.rows, n.cols, lambda i, j: n[i, j] * g[j]), shift)


def _gain(n: Matrix, gain: Matrix) -> Matrix:
    return _gain_and_shift(n, gain, M.zeros(1, n.cols))


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
    if b[0, 0] == 0:
        raise WorkError("quotient: needs a divisor other than 0, got 0")
    return M([[a[0, 0] / b[0, 0]]])


BLOCK_RULES: dict[str, Rule] = {
    "affine": Rule(
        _affine,
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
        {"the bias was left out": lambda w, x, b: matrix_product(w, x)},
        lambda w, x, b: _affine_entry(x.T, w.T, b),
    ),
    "mean of rows": Rule(
        _row_means,
        "the mean of each row of {0}",
        {
            "the sum was not divided": row_sums,
            "the mean was taken over tokens, not features": lambda a: _row_means(M(a.T)),
        },
        lambda a: f"({format_sum(a.row(0))}) / {a.cols}",
        "\\operatorname{{mean}}({0})",
    ),
    "centre rows": Rule(
        broadcast(lambda x, mean: x - mean),
        "{0} - {1}, row by row",
        {
            "the mean was added": broadcast(lambda x, mean: x + mean),
            "the mean of each column was subtracted": lambda a, m: _add_to_rows(
                a, _row_means(M(a.T)), -1
            ),
        },
        "{0} - {1}",
        "{0} - {1} \\mathbf 1^\\top",
    ),
    "variance of rows": Rule(
        _variance,
        "the mean of the squares in each row of {0}",
        {
            "divided by n - 1 instead of n": lambda c: _variance(c, 1),
            "the sum was not divided": lambda c: M(c.cols * _variance(c)),
            "the square root was already taken": lambda c: M(_variance(c).applyfunc(sympy.sqrt)),
        },
        lambda c: f"({format_sum(c.row(0), format_power)}) / {c.cols}",
        "\\operatorname{{mean}}({0}^{{\\circ 2}})",
    ),
    "inverse std": Rule(
        _inverse_std,
        "1 / √({0} + {1})",
        {
            "the square root was left out": broadcast(lambda v, e: 1 / (v + e)),
            "ε was added outside the square root": broadcast(lambda v, e: 1 / (sympy.sqrt(v) + e)),
            "it was not inverted": broadcast(lambda v, e: sympy.sqrt(v + e)),
        },
        "1 / √({0} + {1})",
        "({0} + {1})^{{-1/2}}",
    ),
    "scale rows": Rule(
        broadcast(lambda x, r: x * r),
        "{0} · {1}, row by row",
        {"it was divided": broadcast(lambda x, r: x * (1 / r))},
        "{0}·{1}",
        "\\operatorname{{diag}}({1})\\, {0}",
    ),
    "gain and shift": Rule(
        _gain_and_shift,
        "{1} ∘ {0} + {2}, row by row",
        {
            "the gain was left out": lambda n, g, s: _add_to_rows(n, s),
            "the shift was left out": lambda n, g, s: _gain(n, g),
            "the shift was scaled too": lambda n, g, s: _gain(_add_to_rows(n, s), g),
        },
        "{1}·{0} + {2}",
        "{0} \\operatorname{{diag}}({1}) + \\mathbf 1 {2}",
    ),
    "gain": Rule(
        _gain,
        "{1} ∘ {0}, row by row",
        {"it was left out": lambda n, g: n},
        "{1}·{0}",
        "{0} \\operatorname{{diag}}({1})",
    ),
    "add to rows": Rule(
        _add_to_rows,
        "{0} + {1}, row by row",
        {"it was left out": lambda a, row: a},
        "{0} + {1}",
        "{0} + \\mathbf 1 {1}",
    ),
    "relu": Rule(
        elementwise(relu),
        "max(0, {0})",
        {
            "it was left out": lambda a: a,
            "the absolute value was taken": elementwise(sympy.Abs),
            "the negative part was kept": elementwise(lambda x: x - relu(x)),
        },
        "max(0, {0:bare})",
    ),
    "gelu": Rule(
        elementwise(gelu),
        "{0} ∘ Φ({0})",
        {"it was left out": lambda a: a, "relu was used": elementwise(relu)},
        "{0}·Φ({0:bare})",
    ),
    "silu": Rule(
        elementwise(lambda x: x * sigmoid(x)),
        "{0} ∘ σ({0})",
        {"only σ was taken": elementwise(sigmoid), "relu was used": elementwise(relu)},
        "{0} / (1 + exp(-{0}))",
    ),
    "quotient": Rule(
        _quotient,
        "{0} / {1}",
        {"they were multiplied": elementwise(lambda a, b: a * b)},
        "{0} / {1}",
    ),
    "square": Rule(
        elementwise(lambda x: x**2),
        "{0}²",
        {"it was doubled": elementwise(lambda x: 2 * x), "it was not squared": lambda a: a},
        "{0:²}",
    ),
}
