"""Rules of products, sums, softmax, gates, norms and activations."""

from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.exact import is_infinity
from regard.work.rules.rule import (
    M,
    Matrix,
    MatrixFunction,
    Rule,
    broadcast,
    elementwise,
    format_operand,
    format_power,
    format_sum,
    matrix_product,
    maximum,
    product_entry,
    rule,
)


def on_transposes(run: MatrixFunction) -> MatrixFunction:
    """A function that treats columns as `run` treats rows.

    >>> on_transposes(row_sums)(M([[1, 2], [3, 4]]))
    Matrix([[4, 6]])
    """
    return lambda *inputs: M(run(*(M(x.T) for x in inputs)).T)


def row_sums(a: Matrix) -> Matrix:
    """Sum of each row, as a column.

    >>> row_sums(M([[1, 2]]))
    Matrix([[3]])
    """
    return M([sum(a.row(i)) for i in range(a.rows)])


def _divide_rows(a: Matrix, by: Matrix) -> Matrix:
    # a fully masked row gives zeros, not 0/0
    return M(a.rows, a.cols, lambda i, j: 0 if by[i, 0] == 0 else a[i, j] / by[i, 0])


def _share_entry(a: Matrix, by: Matrix) -> str:
    text = f"{format_operand(a[0, 0])} / {format_operand(by[0, 0])}"
    return f"{text}, undefined, set to 0" if by[0, 0] == 0 else text


def _scale(a: Matrix, by: Matrix) -> Matrix:
    if by.shape != (1, 1):
        raise ShapeError(f"scale: needs one number, got {by.rows}×{by.cols}")
    # masked scores stay -inf: 0 · -inf is undefined
    return M(a.applyfunc(lambda x: x if is_infinity(x) else x * by[0, 0]))


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
    return maximum(sympy.Integer(0), x)


def _quotient(a: Matrix, b: Matrix) -> Matrix:
    if b[0, 0] == 0:
        raise WorkError("quotient: needs a divisor other than 0, got 0")
    return M([[a[0, 0] / b[0, 0]]])


_column_sums, _divide_columns = on_transposes(row_sums), on_transposes(_divide_rows)
_mask = elementwise(lambda score, allowed: score if allowed else -sympy.oo)
_relu = "max(0, {0})"

BASIC_RULES: dict[str, Rule] = {
    "scale": rule(
        "{1} {0}",
        {
            "the scale was left out": "{0}",
            "it was divided instead of multiplied": lambda a, by: M(a / by[0, 0]),
            "the scale was applied twice": lambda a, by: M(a * by[0, 0] ** 2),
        },
        run=_scale,
        entry="{1} · {0}",
    ),
    "mask": rule(
        "{0} + log {1}",
        {
            "the other triangle was masked": lambda s, m: _mask(s, M(m.T)),
            "no mask was used": "{0}",
            "hidden scores were set to 0 instead of -inf": "{0} ∘ {1}",
        },
        run=_mask,
        words="{0} where {1} allows, else -inf",
    ),
    "sum over rows": rule(
        "{0} 𝟏",
        {"columns were added up instead of rows": lambda a: M(_column_sums(a).T)},
        run=row_sums,
        entry=lambda a: format_sum(a.row(0)),
        words="row sums of {0}",
    ),
    "sum over columns": rule(
        "𝟏ᵀ {0}",
        {"rows were added up instead of columns": lambda a: M(row_sums(a).T)},
        run=_column_sums,
        entry=lambda a: format_sum(a.col(0)),
        words="column sums of {0}",
    ),
    "divide rows": rule(
        "diag({1})⁻¹ {0}",
        {
            "{0} was not divided by its row sums": "{0}",
            "it was divided by the column sums": lambda a, by: _divide_columns(a, _column_sums(a)),
            "it was divided by the number of keys": lambda a, by: M(a / a.cols),
        },
        run=_divide_rows,
        entry=_share_entry,
        words="{0} / {1}, row by row",
    ),
    "divide columns": rule(
        "{0} diag({1})⁻¹",
        {
            "{0} was not divided by its column sums": "{0}",
            "it was divided by the row sums": lambda a, by: _divide_rows(a, row_sums(a)),
            "it was divided by the number of keys": lambda a, by: M(a / a.rows),
        },
        run=_divide_columns,
        entry=_share_entry,
        words="{0} / {1}, column by column",
    ),
    "affine": rule(
        "{0} {1} + {2}",
        {
            "the bias was left out": "{0} {1}",
            "the bias was subtracted": lambda x, w, b: _affine(x, w, b, -1),
            "the matrix was transposed": lambda x, w, b: _affine(x, M(w.T), b),
        },
        run=_affine,
        entry=_affine_entry,
    ),
    "affine, columns": rule(
        "{0} {1} + {2}",
        {"the bias was left out": "{0} {1}"},
        run=lambda w, x, b: M(_affine(M(x.T), M(w.T), b).T),
        entry=lambda w, x, b: _affine_entry(x.T, w.T, b),
    ),
    "mean of rows": rule(
        "mean({0})",
        {
            "the sum was not divided": row_sums,
            "the mean was taken over tokens, not features": lambda a: _row_means(M(a.T)),
        },
        run=_row_means,
        entry=lambda a: f"({format_sum(a.row(0))}) / {a.cols}",
        words="the mean of each row of {0}",
    ),
    "centre rows": rule(
        "{0} - {1} 𝟏ᵀ",
        {
            "the mean was not subtracted": "{0}",
            "the mean was added": broadcast(lambda x, mean: x + mean),
            "the mean of each column was subtracted": lambda a, m: _add_to_rows(
                a, _row_means(M(a.T)), -1
            ),
        },
        run=broadcast(lambda x, mean: x - mean),
        entry="{0} - {1}",
        words="{0} - {1}, row by row",
    ),
    "variance of rows": rule(
        "mean({0}^(∘2))",
        {
            "divided by n - 1 instead of n": lambda c: _variance(c, 1),
            "the sum was not divided": lambda c: M(c.cols * _variance(c)),
            "the square root was already taken": lambda c: M(_variance(c).applyfunc(sympy.sqrt)),
        },
        run=_variance,
        entry=lambda c: f"({format_sum(c.row(0), format_power)}) / {c.cols}",
        words="the mean of the squares in each row of {0}",
    ),
    "inverse std": rule(
        "1 / √({0} + {1})",
        {
            "the square root was left out": broadcast(lambda v, e: 1 / (v + e)),
            "ε was added outside the square root": broadcast(lambda v, e: 1 / (sympy.sqrt(v) + e)),
            "it was not inverted": broadcast(lambda v, e: sympy.sqrt(v + e)),
        },
        run=_inverse_std,
        entry="1 / √({0} + {1})",
    ),
    "scale rows": rule(
        "diag({1}) {0}",
        {"it was divided": broadcast(lambda x, r: x * (1 / r))},
        run=broadcast(lambda x, r: x * r),
        entry="{0} · {1}",
        words="{0} · {1}, row by row",
    ),
    "gain and shift": rule(
        "{0} diag({1}) + 𝟏 {2}",
        {
            "the gain was left out": lambda n, g, s: _add_to_rows(n, s),
            "the shift was left out": lambda n, g, s: _gain(n, g),
            "the shift was scaled too": lambda n, g, s: _gain(_add_to_rows(n, s), g),
        },
        run=_gain_and_shift,
        entry="{1} · {0} + {2}",
        words="{1} ∘ {0} + {2}, row by row",
    ),
    "gain": rule(
        "{0} diag({1})",
        {"{1} was left out": "{0}"},
        run=_gain,
        entry="{1} · {0}",
        words="{1} ∘ {0}, row by row",
    ),
    "add to rows": rule(
        "{0} + 𝟏 {1}",
        {"{1} was left out": "{0}"},
        run=_add_to_rows,
        entry="{0} + {1}",
        words="{0} + {1}, row by row",
    ),
    "relu": rule(
        _relu,
        {
            "relu was left out": "{0}",
            "the absolute value was taken": elementwise(sympy.Abs),
            "the negative part was kept": f"{{0}} - {_relu}",
        },
    ),
    "gelu": rule(
        "{0} ∘ Φ({0})",
        {"gelu was left out": "{0}", "relu was used": _relu},
        run=elementwise(lambda x: x * (1 + sympy.erf(x / sympy.sqrt(2))) / 2),
        entry="{0} ∘ Φ({0})",
    ),
    "quotient": rule(
        "{0} / {1}", {"they were multiplied": "{0} ∘ {1}"}, run=_quotient, entry="{0} / {1}"
    ),
}
