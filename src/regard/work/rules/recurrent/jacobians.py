"""The rules of how far a gradient reaches: Jacobians, norms, clipping, and states by weights."""

from typing import Any

import sympy

from regard.errors import ShapeError
from regard.work.exact.evaluate import to_float
from regard.work.rules.recurrent.gradients import (
    MAX_SUM_TERMS,
    elementwise_product,
    sigmoid_derivative,
    tanh_derivative,
)
from regard.work.rules.rule import M, Matrix, MatrixFunction, Rule, format_operand, format_power


def _diag(v: Matrix) -> Matrix:
    return M(sympy.diag(*v))


def _norm(*parts: Matrix) -> Matrix:
    return M([[sympy.sqrt(sum((x**2 for part in parts for x in part), sympy.S.Zero))]])


def _radius(a: Matrix) -> Matrix:
    """The largest size of an eigenvalue; exact up to 2×2, else to 50 digits."""
    if a.rows != a.cols:
        raise ShapeError(f"spectral radius: needs a square matrix, got {a.rows}×{a.cols}")
    if a.rows == 1:
        return M([[abs(a[0, 0])]])
    if a.rows == 2:
        half, product = a.trace() / 2, a.det()
        apart = half**2 - product
        if to_float(apart) < 0:  # a pair a ± b i, of size √(a² + b²)
            return M([[sympy.sqrt(product)]])
        return M([[abs(half) + sympy.sqrt(apart)]])
    roots = sympy.Poly(a.evalf(60).charpoly().as_expr()).nroots(n=50, maxsteps=200)
    return M([[max((abs(root) for root in roots), key=lambda x: x.evalf(30))]])


def _radius_entry(i: int, j: int, a: Matrix) -> str:
    if a.rows != 2:
        return ""
    return f"the largest |λ| of the roots of λ² - {format_operand(a.trace())}·λ + {format_operand(a.det())}"


def _norm_of(count: int) -> Rule:
    text = " + ".join(f"‖{{{n}}}‖²" for n in range(count))
    tex = " + ".join(f"\\lVert {{{n}}} \\rVert^2" for n in range(count))
    squared: MatrixFunction = lambda *parts: M(_norm(*parts).applyfunc(lambda x: x**2))  # noqa: E731
    return Rule(
        _norm,
        f"√({text})" if count > 1 else "‖{0}‖",
        f"\\sqrt{{{{{tex}}}}}" if count > 1 else "\\lVert {0} \\rVert",
        {
            "the root was left out": squared,
            "the largest entry was taken": lambda *parts: M([[_largest(*parts)]]),
        },
    )


def _largest(*parts: Matrix) -> Any:
    return max((abs(x) for part in parts for x in part), key=lambda x: to_float(x))


def _kept_under(norm: Matrix, most: Matrix) -> Matrix:
    much = to_float(norm[0, 0]) > to_float(most[0, 0])
    return M([[most[0, 0] / norm[0, 0] if much else sympy.S.One]])


def _rows_by(v: Matrix, a: Matrix) -> Matrix:
    if v.shape != (a.rows, 1):
        raise ShapeError(f"rows: needs a number for each of {a.rows}, got {v.rows}×{v.cols}")
    return M(a.rows, a.cols, lambda i, j: v[i, 0] * a[i, j])


JACOBIAN_RULES: dict[str, Rule] = {
    **{f"norm of {n}": _norm_of(n) for n in range(1, MAX_SUM_TERMS + 1)},
    "Jacobian of a step": Rule(
        lambda y, u: M(_diag(tanh_derivative(y)) * u),
        "diag(1 - {0}²) {1}",
        "\\operatorname{{diag}}(1 - {0}^2)\\, {1}",
        {
            "the slope of tanh was left out": lambda y, u: u,
            "the slopes were put on the wrong side": lambda y, u: M(u * _diag(tanh_derivative(y))),
            "U was transposed": lambda y, u: M(_diag(tanh_derivative(y)) * u.T),
            "the slope of σ was used for that of tanh": lambda y, u: M(
                _diag(sigmoid_derivative(y)) * u
            ),
        },
        lambda i, j, y, u: f"(1 - {format_power(y[i, 0])})·{format_operand(u[i, j])}",
    ),
    "Jacobian of a gate": Rule(
        lambda v, y, u: M(_diag(elementwise_product(v, sigmoid_derivative(y))) * u),
        "diag({0} ∘ {1} ∘ (1 - {1})) {2}",
        "\\operatorname{{diag}}({0} \\circ {1} \\circ (1 - {1}))\\, {2}",
        {"the slope of σ was left out": lambda v, y, u: M(_diag(v) * u)},
        lambda i, j, v, y, u: (
            f"{format_operand(v[i, 0])}·{format_operand(y[i, 0])}·(1 - {format_operand(y[i, 0])})·{format_operand(u[i, j])}"
        ),
    ),
    "Jacobian of the candidate": Rule(
        lambda v, y, u: M(_diag(elementwise_product(v, tanh_derivative(y))) * u),
        "diag({0} ∘ (1 - {1}²)) {2}",
        "\\operatorname{{diag}}({0} \\circ (1 - {1}^2))\\, {2}",
        {"the slope of tanh was left out": lambda v, y, u: M(_diag(v) * u)},
        lambda i, j, v, y, u: (
            f"{format_operand(v[i, 0])}·(1 - {format_power(y[i, 0])})·{format_operand(u[i, j])}"
        ),
    ),
    "scale columns by o tanh'": Rule(
        lambda b, o, y: M(b * _diag(elementwise_product(o, tanh_derivative(y)))),
        "{0} diag({1} ∘ (1 - {2}²))",
        "{0} \\operatorname{{diag}}({1} \\circ (1 - {2}^2))",
        {"the slope of tanh was left out": lambda b, o, y: M(b * _diag(o))},
        lambda i, j, b, o, y: (
            f"{format_operand(b[i, j])}·{format_operand(o[j, 0])}·(1 - {format_power(y[j, 0])})"
        ),
    ),
    "diagonal and rest": Rule(
        lambda f, rest: M(_diag(f) + rest),
        "diag({0}) + {1}",
        "\\operatorname{{diag}}({0}) + {1}",
        {
            "the path through h was left out": lambda f, rest: _diag(f),
            "the direct path was left out": lambda f, rest: rest,
        },
    ),
    "spectral radius": Rule(_radius, "ρ({0})", "\\rho({0})", {}, _radius_entry),
    "spectral norm": Rule(
        lambda a: M(_radius(M(a.T * a)).applyfunc(sympy.sqrt)),
        "‖{0}‖, the largest gain",
        "\\lVert {0} \\rVert_2",
        {"the root was left out": lambda a: _radius(M(a.T * a))},
    ),
    "clip by norm": Rule(
        _kept_under,
        "min(1, {1} / {0})",
        "\\min(1, {1} / {0})",
        {
            "it was divided the other way": lambda norm, most: M([[norm[0, 0] / most[0, 0]]]),
        },
        lambda i, j, norm, most: (
            f"min(1, {format_power(most[0, 0], '')} / {format_operand(norm[0, 0])})"
        ),
    ),
    "Kronecker with identity": Rule(
        lambda v, gate: M(sympy.kronecker_product(sympy.eye(gate.rows), v.T)),
        "I ⊗ {0}ᵀ, a row for each entry of {1}",
        "I \\otimes {0}^\\top",
        {},
    ),
    "reshape": Rule(
        lambda row, weight: M(weight.rows, weight.cols, list(row)),
        "{0} in the shape of {1}",
        "\\operatorname{{fold}}({0})",
        {"it was folded column by column": lambda row, w: M(M(w.cols, w.rows, list(row)).T)},
    ),
    "scale rows by vector": Rule(
        _rows_by,
        "diag({0}) {1}",
        "\\operatorname{{diag}}({0})\\, {1}",
        {"the factor was left out": lambda v, a: a},
        lambda i, j, v, a: f"{format_operand(v[i, 0])}·{format_operand(a[i, j])}",
    ),
    "scale rows by σ'": Rule(
        lambda y, a: _rows_by(sigmoid_derivative(y), a),
        "diag({0} ∘ (1 - {0})) {1}",
        "\\operatorname{{diag}}({0} \\circ (1 - {0}))\\, {1}",
        {
            "the slope of σ was left out": lambda y, a: a,
            "the slope of tanh was used for that of σ": lambda y, a: _rows_by(
                tanh_derivative(y), a
            ),
        },
        lambda i, j, y, a: (
            f"{format_operand(y[i, 0])}·(1 - {format_operand(y[i, 0])})·{format_operand(a[i, j])}"
        ),
    ),
    "scale rows by tanh'": Rule(
        lambda y, a: _rows_by(tanh_derivative(y), a),
        "diag(1 - {0}²) {1}",
        "\\operatorname{{diag}}(1 - {0}^2)\\, {1}",
        {
            "the slope of tanh was left out": lambda y, a: a,
            "the slope of σ was used for that of tanh": lambda y, a: _rows_by(
                sigmoid_derivative(y), a
            ),
        },
        lambda i, j, y, a: f"(1 - {format_power(y[i, 0])})·{format_operand(a[i, j])}",
    ),
    "scale rows by o tanh'": Rule(
        lambda o, y, a: _rows_by(elementwise_product(o, tanh_derivative(y)), a),
        "diag({0} ∘ (1 - {1}²)) {2}",
        "\\operatorname{{diag}}({0} \\circ (1 - {1}^2))\\, {2}",
        {
            "the slope of tanh was left out": lambda o, y, a: _rows_by(o, a),
            "the output gate was left out": lambda o, y, a: _rows_by(tanh_derivative(y), a),
        },
        lambda i, j, o, y, a: (
            f"{format_operand(o[i, 0])}·(1 - {format_power(y[i, 0])})·{format_operand(a[i, j])}"
        ),
    ),
}
