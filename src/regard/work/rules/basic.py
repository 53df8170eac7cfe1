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
    format_bare,
    format_operand,
)


def matrix_product(a: Matrix, b: Matrix) -> Matrix:
    """a b; raises a ShapeError with a suggestion where the shapes do not match.

    >>> matrix_product(M([[1, 2]]), M([[3], [4]]))
    Matrix([[11]])
    """
    if a.cols != b.rows:
        hint = ""
        if a.cols == b.cols:
            hint = "; try the second one transposed"
        elif a.rows == b.rows:
            hint = "; try the first one transposed"
        elif b.cols == a.rows:
            hint = "; try them in the other order"
        raise ShapeError(
            f"product: needs as many columns on the left as rows on the right, got "
            f"{a.rows}×{a.cols} times {b.rows}×{b.cols}{hint}"
        )
    return M(a * b)


def product_entry(i: int, j: int, a: Matrix, b: Matrix) -> str:
    """Arithmetic of entry (i, j) of a product.

    >>> product_entry(0, 0, M([[1, 2]]), M([[3], [4]]))
    '1·3 + 2·4'
    """
    terms = [f"{format_operand(a[i, n])}·{format_operand(b[n, j])}" for n in range(a.cols)]
    return " + ".join(terms)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), exact.

    >>> sigmoid(sympy.Integer(0))
    1/2
    """
    return 1 / (1 + sympy.exp(-x))


def _check_same_shape(a: Matrix, b: Matrix) -> None:
    if a.shape != b.shape:
        raise ShapeError(
            f"sum: needs two of one shape, got {a.rows}×{a.cols} and {b.rows}×{b.cols}"
        )


def _add(a: Matrix, b: Matrix) -> Matrix:
    _check_same_shape(a, b)
    return M(a + b)


def _hadamard(a: Matrix, b: Matrix) -> Matrix:
    _check_same_shape(a, b)
    return M(a.multiply_elementwise(b))


def _mask(scores: Matrix, mask: Matrix) -> Matrix:
    _check_same_shape(scores, mask)
    return M(scores.rows, scores.cols, lambda i, j: scores[i, j] if mask[i, j] else -sympy.oo)


def _row_sums(a: Matrix) -> Matrix:
    return M([sum(a.row(i)) for i in range(a.rows)])


def _column_sums(a: Matrix) -> Matrix:
    return M([[sum(a.col(j)) for j in range(a.cols)]])


def _divide_rows(a: Matrix, by: Matrix) -> Matrix:
    # a fully masked row gives zeros, not 0/0
    return M(a.rows, a.cols, lambda i, j: 0 if by[i, 0] == 0 else a[i, j] / by[i, 0])


def _divide_columns(a: Matrix, by: Matrix) -> Matrix:
    return M(a.rows, a.cols, lambda i, j: 0 if by[0, j] == 0 else a[i, j] / by[0, j])


def _quotient_text(a: Any, by: Any) -> str:
    numerator, denominator = (
        f"({text})" if "/" in text and text[0] != "(" else text
        for text in map(format_operand, (a, by))
    )
    return f"{numerator} / {denominator}"


def _scale(a: Matrix, by: Matrix) -> Matrix:
    if by.shape != (1, 1):
        raise ShapeError(f"scale: needs one number, got {by.rows}×{by.cols}")
    # masked scores stay -inf: 0 · -inf is undefined
    return M(a.applyfunc(lambda x: x if x.is_infinite else x * by[0, 0]))


def _transposed(run: MatrixFunction, which: int) -> MatrixFunction:
    def mistaken(*inputs: Matrix) -> Matrix:
        return run(*(M(x.T) if n == which else x for n, x in enumerate(inputs)))

    return mistaken


def _gated_mix(z: Matrix, u: Matrix, v: Matrix) -> Matrix:
    ones = M.ones(*z.shape)
    return _add(_hadamard(M(ones - z), u), _hadamard(z, v))


BASIC_RULES: dict[str, Rule] = {
    "product": Rule(
        matrix_product,
        "{0} {1}",
        "{0} {1}",
        {
            "the second matrix was transposed": _transposed(matrix_product, 1),
            "the first matrix was transposed": _transposed(matrix_product, 0),
            "the factors were swapped": lambda a, b: matrix_product(b, a),
        },
        product_entry,
    ),
    "product with transpose": Rule(
        lambda a, b: matrix_product(a, M(b.T)),
        "{0} {1}ᵀ",
        "{0} {1}^\\top",
        {
            "the transpose was left out": matrix_product,
            "the result was transposed": lambda a, b: matrix_product(b, M(a.T)),
        },
        lambda i, j, a, b: product_entry(i, j, a, M(b.T)),
    ),
    "transpose times": Rule(
        lambda a, b: matrix_product(M(a.T), b),
        "{0}ᵀ {1}",
        "{0}^\\top {1}",
        {
            "the transpose was left out": matrix_product,
            "the result was transposed": lambda a, b: matrix_product(M(b.T), a),
        },
        lambda i, j, a, b: product_entry(i, j, M(a.T), b),
    ),
    "scale": Rule(
        _scale,
        "{1} {0}",
        "{1}\\, {0}",
        {
            "the scale was left out": lambda a, by: a,
            "it was divided instead of multiplied": lambda a, by: M(a / by[0, 0]),
            "the scale was applied twice": lambda a, by: M(a * by[0, 0] ** 2),
        },
        lambda i, j, a, by: f"{format_operand(by[0, 0])}·{format_operand(a[i, j])}",
    ),
    "mask": Rule(
        _mask,
        "{0} where {1} allows, else -inf",
        "{0} + \\log {1}",
        {
            "the other triangle was masked": lambda s, m: _mask(s, M(m.T)),
            "no mask was used": lambda s, m: s,
            "hidden scores were set to 0 instead of -inf": lambda s, m: _hadamard(s, m),
        },
    ),
    "exp": Rule(
        elementwise(lambda x: sympy.exp(x)),
        "exp({0})",
        "\\exp {0}",
        {},
        lambda i, j, a: f"exp({format_bare(a[i, j])})",
    ),
    "sum over rows": Rule(
        _row_sums,
        "row sums of {0}",
        "{0} \\mathbf 1",
        {"columns were added up instead of rows": lambda a: M(_column_sums(a).T)},
        lambda i, j, a: " + ".join(format_operand(x) for x in a.row(i)),
    ),
    "sum over columns": Rule(
        _column_sums,
        "column sums of {0}",
        "\\mathbf 1^\\top {0}",
        {"rows were added up instead of columns": lambda a: M(_row_sums(a).T)},
        lambda i, j, a: " + ".join(format_operand(x) for x in a.col(j)),
    ),
    "divide rows": Rule(
        _divide_rows,
        "{0} / {1}, row by row",
        "\\operatorname{{diag}}({1})^{{-1}} {0}",
        {"it was divided by the column sums": lambda a, by: _divide_columns(a, _column_sums(a))},
        lambda i, j, a, by: _quotient_text(a[i, j], by[i, 0]),
    ),
    "divide columns": Rule(
        _divide_columns,
        "{0} / {1}, column by column",
        "{0} \\operatorname{{diag}}({1})^{{-1}}",
        {"it was divided by the row sums": lambda a, by: _divide_rows(a, _row_sums(a))},
        lambda i, j, a, by: _quotient_text(a[i, j], by[0, j]),
    ),
    "add": Rule(
        _add,
        "{0} + {1}",
        "{0} + {1}",
        {"they were subtracted": lambda a, b: M(a - b)},
        lambda i, j, a, b: f"{format_operand(a[i, j])} + {format_operand(b[i, j])}",
    ),
    "elementwise product": Rule(
        _hadamard,
        "{0} ∘ {1}",
        "{0} \\circ {1}",
        {"they were added instead": _add},
        lambda i, j, a, b: f"{format_operand(a[i, j])}·{format_operand(b[i, j])}",
    ),
    "sigmoid": Rule(
        elementwise(sigmoid),
        "σ({0})",
        "\\sigma({0})",
        {
            "the sign of the exponent": elementwise(lambda x: sigmoid(-x)),
            "tanh was used": elementwise(sympy.tanh),
        },
        lambda i, j, a: f"1 / (1 + exp(-{format_operand(a[i, j])}))",
    ),
    "tanh": Rule(
        elementwise(sympy.tanh),
        "tanh({0})",
        "\\tanh({0})",
        {"σ was used": elementwise(sigmoid), "it was left out": lambda a: a},
        lambda i, j, a: f"tanh({format_bare(a[i, j])})",
    ),
    "gated mix": Rule(
        _gated_mix,
        "(1 - {0}) ∘ {1} + {0} ∘ {2}",
        "(1 - {0}) \\circ {1} + {0} \\circ {2}",
        {"the gate was inverted (the other GRU convention)": lambda z, u, v: _gated_mix(z, v, u)},
        lambda i, j, z, u, v: (
            f"(1 - {format_operand(z[i, j])})·{format_operand(u[i, j])} + "
            f"{format_operand(z[i, j])}·{format_operand(v[i, j])}"
        ),
    ),
}
