"""Rules of products, sums, softmax and gates."""

from typing import Any

import sympy

from regard.errors import ShapeError
from regard.work.rules.rule import (
    M,
    Matrix,
    MatrixFunction,
    Rule,
    elementwise,
    format_operand,
    format_sum,
)


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


def _scale(a: Matrix, by: Matrix) -> Matrix:
    if by.shape != (1, 1):
        raise ShapeError(f"scale: needs one number, got {by.rows}×{by.cols}")
    # masked scores stay -inf: 0 · -inf is undefined
    return M(a.applyfunc(lambda x: x if x.is_infinite else x * by[0, 0]))


_column_sums, _divide_columns = on_transposes(row_sums), on_transposes(_divide_rows)
_add = elementwise(lambda x, y: x + y)
_hadamard = elementwise(lambda x, y: x * y)
_mask = elementwise(lambda score, allowed: score if allowed else -sympy.oo)
_gated_mix = elementwise(lambda z, x, y: (1 - z) * x + z * y)

BASIC_RULES: dict[str, Rule] = {
    "product": Rule(
        matrix_product,
        "{0} {1}",
        {
            "the second matrix was transposed": lambda a, b: matrix_product(a, M(b.T)),
            "the first matrix was transposed": lambda a, b: matrix_product(M(a.T), b),
            "the factors were swapped": lambda a, b: matrix_product(b, a),
        },
        product_entry,
    ),
    "product with transpose": Rule(
        lambda a, b: matrix_product(a, M(b.T)),
        "{0} {1}ᵀ",
        {
            "the transpose was left out": matrix_product,
            "the result was transposed": lambda a, b: matrix_product(b, M(a.T)),
        },
        lambda a, b: product_entry(a, b.T),
    ),
    "transpose times": Rule(
        lambda a, b: matrix_product(M(a.T), b),
        "{0}ᵀ {1}",
        {
            "the transpose was left out": matrix_product,
            "the result was transposed": lambda a, b: matrix_product(M(b.T), a),
        },
        lambda a, b: product_entry(a.T, b),
    ),
    "scale": Rule(
        _scale,
        "{1} {0}",
        {
            "the scale was left out": lambda a, by: a,
            "it was divided instead of multiplied": lambda a, by: M(a / by[0, 0]),
            "the scale was applied twice": lambda a, by: M(a * by[0, 0] ** 2),
        },
        "{1}·{0}",
        "{1}\\, {0}",
    ),
    "mask": Rule(
        _mask,
        "{0} where {1} allows, else -inf",
        {
            "the other triangle was masked": lambda s, m: _mask(s, M(m.T)),
            "no mask was used": lambda s, m: s,
            "hidden scores were set to 0 instead of -inf": _hadamard,
        },
        latex="{0} + \\log {1}",
    ),
    "exp": Rule(elementwise(sympy.exp), "exp({0})", {}, "exp({0:bare})", "\\exp {0}"),
    "sum over rows": Rule(
        row_sums,
        "row sums of {0}",
        {"columns were added up instead of rows": lambda a: M(_column_sums(a).T)},
        lambda a: format_sum(a.row(0)),
        "{0} \\mathbf 1",
    ),
    "sum over columns": Rule(
        _column_sums,
        "column sums of {0}",
        {"rows were added up instead of columns": lambda a: M(row_sums(a).T)},
        lambda a: format_sum(a.col(0)),
        "\\mathbf 1^\\top {0}",
    ),
    "divide rows": Rule(
        _divide_rows,
        "{0} / {1}, row by row",
        {"it was divided by the column sums": lambda a, by: _divide_columns(a, _column_sums(a))},
        "{0:/} / {1:/}",
        "\\operatorname{{diag}}({1})^{{-1}} {0}",
    ),
    "divide columns": Rule(
        _divide_columns,
        "{0} / {1}, column by column",
        {"it was divided by the row sums": lambda a, by: _divide_rows(a, row_sums(a))},
        "{0:/} / {1:/}",
        "{0} \\operatorname{{diag}}({1})^{{-1}}",
    ),
    "add": Rule(_add, "{0} + {1}", {"they were subtracted": lambda a, b: M(a - b)}, "{0} + {1}"),
    "elementwise product": Rule(
        _hadamard, "{0} ∘ {1}", {"they were added instead": _add}, "{0}·{1}"
    ),
    "sigmoid": Rule(
        elementwise(sigmoid),
        "σ({0})",
        {
            "the sign of the exponent": elementwise(lambda x: sigmoid(-x)),
            "tanh was used": elementwise(sympy.tanh),
        },
        "1 / (1 + exp(-{0}))",
    ),
    "tanh": Rule(
        elementwise(sympy.tanh),
        "tanh({0})",
        {"σ was used": elementwise(sigmoid), "it was left out": lambda a: a},
        "tanh({0:bare})",
    ),
    "gated mix": Rule(
        _gated_mix,
        "(1 - {0}) ∘ {1} + {0} ∘ {2}",
        {"the gate was inverted (the other GRU convention)": lambda z, u, v: _gated_mix(z, v, u)},
        "(1 - {0})·{1} + {0}·{2}",
    ),
}
