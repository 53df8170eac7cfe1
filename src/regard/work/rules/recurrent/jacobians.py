"""Rules of Jacobians, norms, gradient clipping and forward-mode derivatives."""

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


def _norm(*inputs: Matrix) -> Matrix:
    return M([[sympy.sqrt(sum((x**2 for part in inputs for x in part), sympy.S.Zero))]])


def _radius(a: Matrix) -> Matrix:
    """Spectral radius, the largest |eigenvalue|: exact up to 2×2, else to 50 digits."""
    if a.rows != a.cols:
        raise ShapeError(f"spectral radius: needs a square matrix, got {a.rows}×{a.cols}")
    if a.rows == 1:
        return M([[abs(a[0, 0])]])
    if a.rows == 2:
        half_trace, product = a.trace() / 2, a.det()
        discriminant = half_trace**2 - product
        if to_float(discriminant) < 0:  # complex pair a ± b i, |λ| = √(a² + b²)
            return M([[sympy.sqrt(product)]])
        return M([[abs(half_trace) + sympy.sqrt(discriminant)]])
    roots = sympy.Poly(a.evalf(60).charpoly().as_expr()).nroots(n=50, maxsteps=200)
    return M([[max((abs(root) for root in roots), key=lambda x: x.evalf(30))]])


def _radius_entry(i: int, j: int, a: Matrix) -> str:
    if a.rows != 2:
        return ""
    trace, det = format_operand(a.trace()), format_operand(a.det())
    return f"the largest |λ| of the roots of λ² - {trace}·λ + {det}"


def _norm_of(count: int) -> Rule:
    text = " + ".join(f"‖{{{n}}}‖²" for n in range(count))
    tex = " + ".join(f"\\lVert {{{n}}} \\rVert^2" for n in range(count))
    squared: MatrixFunction = lambda *inputs: M(_norm(*inputs).applyfunc(lambda x: x**2))  # noqa: E731
    return Rule(
        _norm,
        f"√({text})" if count > 1 else "‖{0}‖",
        f"\\sqrt{{{{{tex}}}}}" if count > 1 else "\\lVert {0} \\rVert",
        {
            "the root was left out": squared,
            "the largest entry was taken": lambda *inputs: M([[_max_abs(*inputs)]]),
        },
    )


def _max_abs(*inputs: Matrix) -> Any:
    return max((abs(x) for part in inputs for x in part), key=lambda x: to_float(x))


def _clip_factor(norm: Matrix, max_norm: Matrix) -> Matrix:
    is_above = to_float(norm[0, 0]) > to_float(max_norm[0, 0])
    return M([[max_norm[0, 0] / norm[0, 0] if is_above else sympy.S.One]])


def _scale_rows(v: Matrix, a: Matrix) -> Matrix:
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
            "the derivative of tanh was left out": lambda y, u: u,
            "the derivatives were put on the wrong side": lambda y, u: M(
                u * _diag(tanh_derivative(y))
            ),
            "U was transposed": lambda y, u: M(_diag(tanh_derivative(y)) * u.T),
            "the derivative of σ was used for that of tanh": lambda y, u: M(
                _diag(sigmoid_derivative(y)) * u
            ),
        },
        lambda i, j, y, u: f"(1 - {format_power(y[i, 0])})·{format_operand(u[i, j])}",
    ),
    "Jacobian of a gate": Rule(
        lambda v, y, u: M(_diag(elementwise_product(v, sigmoid_derivative(y))) * u),
        "diag({0} ∘ {1} ∘ (1 - {1})) {2}",
        "\\operatorname{{diag}}({0} \\circ {1} \\circ (1 - {1}))\\, {2}",
        {"the derivative of σ was left out": lambda v, y, u: M(_diag(v) * u)},
        lambda i, j, v, y, u: (
            f"{format_operand(v[i, 0])}·{format_operand(y[i, 0])}·"
            f"(1 - {format_operand(y[i, 0])})·{format_operand(u[i, j])}"
        ),
    ),
    "Jacobian of the candidate": Rule(
        lambda v, y, u: M(_diag(elementwise_product(v, tanh_derivative(y))) * u),
        "diag({0} ∘ (1 - {1}²)) {2}",
        "\\operatorname{{diag}}({0} \\circ (1 - {1}^2))\\, {2}",
        {"the derivative of tanh was left out": lambda v, y, u: M(_diag(v) * u)},
        lambda i, j, v, y, u: (
            f"{format_operand(v[i, 0])}·(1 - {format_power(y[i, 0])})·{format_operand(u[i, j])}"
        ),
    ),
    "scale columns by o tanh'": Rule(
        lambda b, o, y: M(b * _diag(elementwise_product(o, tanh_derivative(y)))),
        "{0} diag({1} ∘ (1 - {2}²))",
        "{0} \\operatorname{{diag}}({1} \\circ (1 - {2}^2))",
        {"the derivative of tanh was left out": lambda b, o, y: M(b * _diag(o))},
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
        "‖{0}‖₂, the spectral norm",
        "\\lVert {0} \\rVert_2",
        {"the root was left out": lambda a: _radius(M(a.T * a))},
    ),
    "clip by norm": Rule(
        _clip_factor,
        "min(1, {1} / {0})",
        "\\min(1, {1} / {0})",
        {
            "it was divided the other way": lambda norm, max_norm: M(
                [[norm[0, 0] / max_norm[0, 0]]]
            ),
        },
        lambda i, j, norm, max_norm: (
            f"min(1, {format_power(max_norm[0, 0], '')} / {format_operand(norm[0, 0])})"
        ),
    ),
    "Kronecker with identity": Rule(
        lambda v, gate: M(sympy.kronecker_product(sympy.eye(gate.rows), v.T)),
        "I ⊗ {0}ᵀ, one row per entry of {1}",
        "I \\otimes {0}^\\top",
        {},
    ),
    "reshape": Rule(
        lambda row, weight: M(weight.rows, weight.cols, list(row)),
        "{0} in the shape of {1}",
        "\\operatorname{{reshape}}({0})",
        {"it was reshaped column by column": lambda row, w: M(M(w.cols, w.rows, list(row)).T)},
    ),
    "scale rows by vector": Rule(
        _scale_rows,
        "diag({0}) {1}",
        "\\operatorname{{diag}}({0})\\, {1}",
        {"the factor was left out": lambda v, a: a},
        lambda i, j, v, a: f"{format_operand(v[i, 0])}·{format_operand(a[i, j])}",
    ),
    "scale rows by σ'": Rule(
        lambda y, a: _scale_rows(sigmoid_derivative(y), a),
        "diag({0} ∘ (1 - {0})) {1}",
        "\\operatorname{{diag}}({0} \\circ (1 - {0}))\\, {1}",
        {
            "the derivative of σ was left out": lambda y, a: a,
            "the derivative of tanh was used for that of σ": lambda y, a: _scale_rows(
                tanh_derivative(y), a
            ),
        },
        lambda i, j, y, a: (
            f"{format_operand(y[i, 0])}·(1 - {format_operand(y[i, 0])})·{format_operand(a[i, j])}"
        ),
    ),
    "scale rows by tanh'": Rule(
        lambda y, a: _scale_rows(tanh_derivative(y), a),
        "diag(1 - {0}²) {1}",
        "\\operatorname{{diag}}(1 - {0}^2)\\, {1}",
        {
            "the derivative of tanh was left out": lambda y, a: a,
            "the derivative of σ was used for that of tanh": lambda y, a: _scale_rows(
                sigmoid_derivative(y), a
            ),
        },
        lambda i, j, y, a: f"(1 - {format_power(y[i, 0])})·{format_operand(a[i, j])}",
    ),
    "scale rows by o tanh'": Rule(
        lambda o, y, a: _scale_rows(elementwise_product(o, tanh_derivative(y)), a),
        "diag({0} ∘ (1 - {1}²)) {2}",
        "\\operatorname{{diag}}({0} \\circ (1 - {1}^2))\\, {2}",
        {
            "the derivative of tanh was left out": lambda o, y, a: _scale_rows(o, a),
            "the output gate was left out": lambda o, y, a: _scale_rows(tanh_derivative(y), a),
        },
        lambda i, j, o, y, a: (
            f"{format_operand(o[i, 0])}·(1 - {format_power(y[i, 0])})·{format_operand(a[i, j])}"
        ),
    ),
}
