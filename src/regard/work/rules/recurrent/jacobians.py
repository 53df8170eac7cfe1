"""Rules of Jacobians, norms, gradient clipping and forward-mode derivatives."""

import sympy

from regard.errors import ShapeError
from regard.work.exact.evaluate import to_float
from regard.work.rules.recurrent.gradients import MAX_SUM_TERMS
from regard.work.rules.rule import M, Matrix, Rule, broadcast, format_operand

# derivatives from the output y of tanh and σ; diag(v) a is v times each row of a
_by_tanh = broadcast(lambda y, a: (1 - y**2) * a)
_by_sigmoid = broadcast(lambda y, a: y * (1 - y) * a)
_by_vector = broadcast(lambda v, a: v * a)
_by_output_and_tanh = broadcast(lambda o, y, a: o * (1 - y**2) * a)


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


def _radius_entry(a: Matrix) -> str:
    if a.rows != 2:
        return ""
    trace, det = format_operand(a.trace()), format_operand(a.det())
    return f"the largest |λ| of the roots of λ² - {trace}·λ + {det}"


def _norm_of(count: int) -> Rule:
    squares = " + ".join(f"‖{{{n}}}‖²" for n in range(count))
    mistakes = {
        "the root was left out": lambda *inputs: M(_norm(*inputs).applyfunc(lambda x: x**2)),
        "the largest entry was taken": lambda *inputs: M(
            [[max((abs(x) for part in inputs for x in part), key=to_float)]]
        ),
    }
    return Rule(_norm, f"√({squares})" if count > 1 else "‖{0}‖", mistakes)


def _clip_factor(norm: Matrix, max_norm: Matrix) -> Matrix:
    is_above = to_float(norm[0, 0]) > to_float(max_norm[0, 0])
    return M([[max_norm[0, 0] / norm[0, 0] if is_above else sympy.S.One]])


def _fixed_gate_jacobian(z: Matrix, r: Matrix, g: Matrix, u: Matrix) -> Matrix:
    candidate = [a * b * (1 - c**2) for a, b, c in zip(z, r, g, strict=True)]
    return M(sympy.diag(*(1 - x for x in z)) + sympy.diag(*candidate) * u)


JACOBIAN_RULES: dict[str, Rule] = {
    **{f"norm of {n}": _norm_of(n) for n in range(1, MAX_SUM_TERMS + 1)},
    "Jacobian of a step": Rule(
        _by_tanh,
        "diag(1 - {0}²) {1}",
        {
            "the derivative of tanh was left out": lambda y, u: u,
            "the derivatives were put on the wrong side": lambda y, u: _by_tanh(M(y.T), u),
            "U was transposed": lambda y, u: _by_tanh(y, M(u.T)),
            "the derivative of σ was used for that of tanh": _by_sigmoid,
        },
        "(1 - {0:²})·{1}",
    ),
    "Jacobian of a gate": Rule(
        broadcast(lambda v, y, u: v * (y * (1 - y)) * u),
        "diag({0} ∘ {1} ∘ (1 - {1})) {2}",
        {"the derivative of σ was left out": broadcast(lambda v, y, u: v * u)},
        "{0}·{1}·(1 - {1})·{2}",
    ),
    "Jacobian of the candidate": Rule(
        _by_output_and_tanh,
        "diag({0} ∘ (1 - {1}²)) {2}",
        {"the derivative of tanh was left out": broadcast(lambda v, y, u: v * u)},
        "{0}·(1 - {1:²})·{2}",
    ),
    "Jacobian with fixed gates": Rule(
        _fixed_gate_jacobian,
        "diag(1 - {0}) + diag({0} ∘ {1} ∘ (1 - {2}²)) {3}",
        {
            "the reset gate was left out": lambda z, r, g, u: _fixed_gate_jacobian(
                z, M.ones(*r.shape), g, u
            ),
            "the direct path was left out": lambda z, r, g, u: M(
                _fixed_gate_jacobian(z, r, g, u) - sympy.diag(*(1 - x for x in z))
            ),
        },
        "(1 - {0}) + {0}·{1}·(1 - {2:²})·{3}",
    ),
    "scale columns by o tanh'": Rule(
        lambda b, o, y: M(b * sympy.diag(*(c * (1 - x**2) for c, x in zip(o, y, strict=True)))),
        "{0} diag({1} ∘ (1 - {2}²))",
        {"the derivative of tanh was left out": lambda b, o, y: _by_vector(M(o.T), b)},
        "{0}·{1}·(1 - {2:²})",
    ),
    "diagonal and rest": Rule(
        lambda f, rest: M(sympy.diag(*f) + rest),
        "diag({0}) + {1}",
        {
            "the path through h was left out": lambda f, rest: M(sympy.diag(*f)),
            "the direct path was left out": lambda f, rest: rest,
        },
    ),
    "spectral radius": Rule(_radius, "ρ({0})", {}, _radius_entry),
    "spectral norm": Rule(
        lambda a: M(_radius(M(a.T * a)).applyfunc(sympy.sqrt)),
        "‖{0}‖₂, the spectral norm",
        {"the root was left out": lambda a: _radius(M(a.T * a))},
        latex="\\lVert {0} \\rVert_2",
    ),
    "clip by norm": Rule(
        _clip_factor,
        "min(1, {1} / {0})",
        {"it was divided the other way": broadcast(lambda norm, max_norm: norm / max_norm)},
        "min(1, {1:/} / {0})",
    ),
    "Kronecker with identity": Rule(
        lambda v, gate: M(sympy.kronecker_product(sympy.eye(gate.rows), v.T)),
        "I ⊗ {0}ᵀ, one row per entry of {1}",
        latex="I \\otimes {0}^\\top",
    ),
    "reshape": Rule(
        lambda row, weight: M(weight.rows, weight.cols, list(row)),
        "{0} in the shape of {1}",
        {"it was reshaped column by column": lambda row, w: M(M(w.cols, w.rows, list(row)).T)},
        latex="\\operatorname{{reshape}}({0})",
    ),
    "scale rows by vector": Rule(
        _by_vector, "diag({0}) {1}", {"the factor was left out": lambda v, a: a}, "{0}·{1}"
    ),
    "scale rows by σ'": Rule(
        _by_sigmoid,
        "diag({0} ∘ (1 - {0})) {1}",
        {
            "the derivative of σ was left out": lambda y, a: a,
            "the derivative of tanh was used for that of σ": _by_tanh,
        },
        "{0}·(1 - {0})·{1}",
    ),
    "scale rows by tanh'": Rule(
        _by_tanh,
        "diag(1 - {0}²) {1}",
        {
            "the derivative of tanh was left out": lambda y, a: a,
            "the derivative of σ was used for that of tanh": _by_sigmoid,
        },
        "(1 - {0:²})·{1}",
    ),
    "scale rows by o tanh'": Rule(
        _by_output_and_tanh,
        "diag({0} ∘ (1 - {1}²)) {2}",
        {
            "the derivative of tanh was left out": broadcast(lambda o, y, a: o * a),
            "the output gate was left out": broadcast(lambda o, y, a: (1 - y**2) * a),
        },
        "{0}·(1 - {1:²})·{2}",
    ),
}
