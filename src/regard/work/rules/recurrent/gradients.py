"""Rules of the chain rule: derivatives of gates and sums over paths."""

from typing import Any

import sympy

from regard.errors import ShapeError
from regard.work.rules.rule import M, Matrix, MatrixFunction, Rule, format_operand, format_power

MAX_SUM_TERMS = 12


def elementwise_product(*inputs: Matrix) -> Matrix:
    """Elementwise (Hadamard) product of matrices of one shape.

    >>> elementwise_product(M([[1, 2]]), M([[3, 4]]))
    Matrix([[3, 8]])
    """
    if len({x.shape for x in inputs}) > 1:
        shapes = " and ".join(f"{x.rows}×{x.cols}" for x in inputs)
        raise ShapeError(f"factors: needs all of one shape, got {shapes}")
    product = inputs[0]
    for x in inputs[1:]:
        product = product.multiply_elementwise(x)
    return M(product)


def tanh_derivative(y: Matrix) -> Matrix:
    """Derivative of tanh from its output y: 1 - y².

    >>> tanh_derivative(M([[0, 1]]))
    Matrix([[1, 0]])
    """
    return M(y.applyfunc(lambda x: 1 - x**2))


def sigmoid_derivative(y: Matrix) -> Matrix:
    """Derivative of σ from its output y: y (1 - y).

    >>> sigmoid_derivative(M([[0, sympy.Rational(1, 2)]]))
    Matrix([[0, 1/4]])
    """
    return M(y.applyfunc(lambda x: x * (1 - x)))


def _sum_of(count: int) -> Rule:
    """Sum of `count` terms; the common mistake is to leave one out."""

    def run(*inputs: Matrix) -> Matrix:
        if len({x.shape for x in inputs}) > 1:
            shapes = " and ".join(f"{x.rows}×{x.cols}" for x in inputs)
            raise ShapeError(f"sum: needs all of one shape, got {shapes}")
        return M(sum(inputs[1:], inputs[0]))

    def without(which: int) -> MatrixFunction:
        return lambda *inputs: run(*(x for n, x in enumerate(inputs) if n != which))

    mistakes: dict[str, MatrixFunction] = {
        f"term {n + 1} of the sum was left out": without(n) for n in range(count)
    }
    mistakes |= {f"only term {n + 1} of the sum was taken": _select(n) for n in range(count)}
    mistakes["the mean was taken instead of the sum"] = lambda *inputs: M(run(*inputs) / count)
    text = " + ".join(f"{{{n}}}" for n in range(count))
    return Rule(
        run,
        text,
        text,
        mistakes,
        lambda i, j, *inputs: " + ".join(format_operand(x[i, j]) for x in inputs),
    )


def _select(which: int) -> MatrixFunction:
    return lambda *inputs: inputs[which]


def _half_square(h: Matrix, target: Matrix) -> Matrix:
    return M([[sum((x**2 for x in h - target), sympy.S.Zero) / 2]])


def _derivative_entry(derivative: str) -> Any:
    return lambda i, j, d, y: (
        f"{format_operand(d[i, j])}·"
        + derivative.replace("y²", format_power(y[i, j])).replace("y", format_operand(y[i, j]))
    )


GRADIENT_RULES: dict[str, Rule] = {
    **{f"sum of {n}": _sum_of(n) for n in range(2, MAX_SUM_TERMS + 1)},
    "copy": Rule(lambda a: a, "{0}", "{0}", {}),
    "sum of entries": Rule(
        lambda a: M([[sum(a)]]),
        "sum of the entries of {0}",
        "\\mathbf 1^\\top {0}",
        {"the mean was taken": lambda a: M([[sum(a) / len(a)]])},
        lambda i, j, a: " + ".join(format_operand(x) for x in a),
    ),
    "ones like": Rule(
        lambda a: M.ones(*a.shape),
        "1 for each entry of {0}",
        "\\partial\\, \\mathbf 1^\\top {0} / \\partial {0}",
        {},
    ),
    "half square": Rule(
        _half_square,
        "½ ‖{0} - {1}‖²",
        "\\tfrac12 \\lVert {0} - {1} \\rVert^2",
        {"the half was left out": lambda h, y: M(2 * _half_square(h, y))},
        lambda i, j, h, y: (
            "½·(" + " + ".join(f"{format_power(a - b)}" for a, b in zip(h, y, strict=True)) + ")"
        ),
    ),
    "subtract": Rule(
        lambda a, b: M(a - b),
        "{0} - {1}",
        "{0} - {1}",
        {
            "they were added": lambda a, b: M(a + b),
            "they were swapped": lambda a, b: M(b - a),
        },
        lambda i, j, a, b: f"{format_operand(a[i, j])} - {format_operand(b[i, j])}",
    ),
    "add future gradient": Rule(
        lambda e, future: M(e + future),
        "{0} + {1}",
        "{0} + {1}",
        {
            "only the direct part was taken, not the gradient from later steps": lambda e, future: (
                e
            ),
            "the direct part was left out": lambda e, future: future,
        },
        lambda i, j, e, future: f"{format_operand(e[i, j])} + {format_operand(future[i, j])}",
    ),
    "tanh backward": Rule(
        lambda d, y: elementwise_product(d, tanh_derivative(y)),
        "{0} ∘ (1 - {1}²)",
        "{0} \\circ (1 - {1}^2)",
        {
            "the derivative of tanh was left out": lambda d, y: d,
            "the derivative of σ was used for that of tanh": lambda d, y: elementwise_product(
                d, sigmoid_derivative(y)
            ),
            "1 - y was used for 1 - y²": lambda d, y: elementwise_product(
                d, M(y.applyfunc(lambda x: 1 - x))
            ),
            "the derivative was taken at the output, not at the input": lambda d, y: (
                elementwise_product(d, tanh_derivative(M(y.applyfunc(sympy.tanh))))
            ),
        },
        _derivative_entry("(1 - y²)"),
    ),
    "σ backward": Rule(
        lambda d, y: elementwise_product(d, sigmoid_derivative(y)),
        "{0} ∘ {1} ∘ (1 - {1})",
        "{0} \\circ {1} \\circ (1 - {1})",
        {
            "the derivative of σ was left out": lambda d, y: d,
            "the derivative of tanh was used for that of σ": lambda d, y: elementwise_product(
                d, tanh_derivative(y)
            ),
            "(1 - y) was left out": elementwise_product,
        },
        _derivative_entry("y·(1 - y)"),
    ),
    "gate backward": Rule(
        lambda d, y: elementwise_product(d, y),
        "{0} ∘ {1}",
        "{0} \\circ {1}",
        {"the other factor was left out": lambda d, y: d},
        lambda i, j, d, y: f"{format_operand(d[i, j])}·{format_operand(y[i, j])}",
    ),
    "update gate backward": Rule(
        lambda d, new, old: elementwise_product(d, M(new - old)),
        "{0} ∘ ({1} - {2})",
        "{0} \\circ ({1} - {2})",
        {
            "new and old were swapped": lambda d, new, old: elementwise_product(d, M(old - new)),
            "the old state was left out": lambda d, new, old: elementwise_product(d, new),
        },
        lambda i, j, d, n, o: (
            f"{format_operand(d[i, j])}·({format_operand(n[i, j])} - {format_operand(o[i, j])})"
        ),
    ),
    "keep path backward": Rule(
        lambda d, z: elementwise_product(d, M(z.applyfunc(lambda x: 1 - x))),
        "{0} ∘ (1 - {1})",
        "{0} \\circ (1 - {1})",
        {"z was used for 1 - z": elementwise_product},
        lambda i, j, d, z: f"{format_operand(d[i, j])}·(1 - {format_operand(z[i, j])})",
    ),
    "cell backward": Rule(
        lambda d, o, y: elementwise_product(d, o, tanh_derivative(y)),
        "{0} ∘ {1} ∘ (1 - {2}²)",
        "{0} \\circ {1} \\circ (1 - {2}^2)",
        {
            "the derivative of tanh was left out": lambda d, o, y: elementwise_product(d, o),
            "the output gate was left out": lambda d, o, y: elementwise_product(
                d, tanh_derivative(y)
            ),
            "the derivative of σ was used for that of tanh": lambda d, o, y: elementwise_product(
                d, o, sigmoid_derivative(y)
            ),
        },
        lambda i, j, d, o, y: (
            f"{format_operand(d[i, j])}·{format_operand(o[i, j])}·(1 - {format_power(y[i, j])})"
        ),
    ),
    "add cell paths": Rule(
        lambda h, c: M(h + c),
        "{0} + {1}",
        "{0} + {1}",
        {
            "the path through h was left out": lambda h, c: c,
            "the path through the next cell was left out": lambda h, c: h,
        },
        lambda i, j, h, c: f"{format_operand(h[i, j])} + {format_operand(c[i, j])}",
    ),
}
