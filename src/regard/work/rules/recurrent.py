"""Rules of the chain rule, attention over past states, Jacobians, norms and gradient clipping."""

from collections.abc import Mapping

import sympy

from regard.errors import ShapeError
from regard.work.exact import to_float
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
    rule,
)

MAX_SUM_TERMS = 12

_add = elementwise(lambda *terms: sum(terms[1:], terms[0]))


def _sum_rule(mistakes: Mapping[str, str | MatrixFunction], count: int = 2) -> Rule:
    return rule(" + ".join(f"{{{n}}}" for n in range(count)), mistakes)


def _sum_of(count: int) -> Rule:
    """Sum of `count` terms; the common mistake is to leave one out."""
    slots = [f"{{{n}}}" for n in range(count)]
    mistakes: dict[str, str | MatrixFunction] = {
        f"term {n + 1} of the sum was left out": " + ".join(slots[:n] + slots[n + 1 :])
        for n in range(count)
    }
    mistakes |= {f"only term {n + 1} of the sum was taken": slots[n] for n in range(count)}
    mistakes["the mean was taken instead of the sum"] = lambda *inputs: M(_add(*inputs) / count)
    return _sum_rule(mistakes, count)


def _half_square(h: Matrix, target: Matrix) -> Matrix:
    return M([[sum((x**2 for x in h - target), sympy.S.Zero) / 2]])


def _norm(*inputs: Matrix) -> Matrix:
    return M([[sympy.sqrt(sum((x**2 for part in inputs for x in part), sympy.S.Zero))]])


def _norm_of(count: int) -> Rule:
    squares = " + ".join(f"‖{{{n}}}‖²" for n in range(count))
    mistakes = {
        "the root was left out": lambda *inputs: M(_norm(*inputs).applyfunc(lambda x: x**2)),
        "the largest entry was taken": lambda *inputs: M(
            [[max((abs(x) for part in inputs for x in part), key=to_float)]]
        ),
    }
    return rule(f"√({squares})" if count > 1 else "‖{0}‖", mistakes, run=_norm)


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


def _clip_factor(norm: Matrix, max_norm: Matrix) -> Matrix:
    is_above = to_float(norm[0, 0]) > to_float(max_norm[0, 0])
    return M([[max_norm[0, 0] / norm[0, 0] if is_above else sympy.S.One]])


_TANH_OUT = {"the derivative of tanh was left out": "{0}"}
_SIGMOID_USED = "the derivative of σ was used for that of tanh"
_TANH_USED = "the derivative of tanh was used for that of σ"
_DIRECT_OUT = "the direct path was left out"

RECURRENT_RULES: dict[str, Rule] = {
    **{f"sum of {n}": _sum_of(n) for n in range(2, MAX_SUM_TERMS + 1)},
    "sum of entries": rule(
        "𝟏ᵀ {0}",
        {"the mean was taken": lambda a: M([[sum(a) / len(a)]])},
        run=lambda a: M([[sum(a)]]),
        entry=format_sum,
        words="sum of the entries of {0}",
    ),
    "ones like": rule(
        "∂ 𝟏ᵀ {0} / ∂{0}", run=lambda a: M.ones(*a.shape), words="1 for each entry of {0}"
    ),
    "zeros like": rule("0 · {0}", run=lambda a: M.zeros(*a.shape), words="0, of the shape of {0}"),
    "half square": rule(
        "½ ‖{0} - {1}‖²",
        {"the half was left out": lambda h, y: M(2 * _half_square(h, y))},
        run=_half_square,
        entry=lambda h, y: f"½·({format_sum(h - y, format_power)})",
    ),
    "scores of the past": rule(
        "{0}ᵀ {1}",
        {
            "the previous state was taken as the query": "{0}ᵀ {2}",
            "it was divided by √d": lambda keys, query, _: M(
                keys.T * query / sympy.sqrt(keys.rows)
            ),
        },
    ),
    "add context": _sum_rule(
        {
            "the context was left out": "{0}",
            "the mean was taken": elementwise(lambda p, a: (p + a) / 2),
        }
    ),
    **{f"norm of {n}": _norm_of(n) for n in range(1, MAX_SUM_TERMS + 1)},
    "spectral radius": rule("ρ({0})", run=_radius, entry=_radius_entry),
    "spectral norm": rule(
        "‖{0}‖₂",
        {"the root was left out": lambda a: _radius(M(a.T * a))},
        run=lambda a: M(_radius(M(a.T * a)).applyfunc(sympy.sqrt)),
        words="‖{0}‖₂, the spectral norm",
    ),
    "clip by norm": rule(
        "min(1, {1} / {0})",
        {"it was divided the other way": broadcast(lambda norm, max_norm: norm / max_norm)},
        run=_clip_factor,
        entry="min(1, {1} / {0})",
    ),
    "Kronecker with identity": rule(
        "I ⊗ {0}ᵀ",
        run=lambda v, gate: M(sympy.kronecker_product(sympy.eye(gate.rows), v.T)),
        words="I ⊗ {0}ᵀ, one row per entry of {1}",
    ),
    "reshape": rule(
        "reshape({0})",
        {"it was reshaped column by column": lambda row, w: M(M(w.cols, w.rows, list(row)).T)},
        run=lambda row, weight: M(weight.rows, weight.cols, list(row)),
        words="{0} in the shape of {1}",
    ),
}
