"""The rules of what a step of a gated cell owes to the state before it."""

import sympy

from regard.work.rules.recurrent.gradients import tanh_derivative
from regard.work.rules.rule import M, Matrix, Rule, format_operand, format_power


def _held(z: Matrix, r: Matrix, g: Matrix, u: Matrix) -> Matrix:
    kept = sympy.diag(*(1 - x for x in z))
    heard = [a * b * c for a, b, c in zip(z, r, tanh_derivative(g), strict=True)]
    return M(kept + sympy.diag(*heard) * u)


def _held_entry(i: int, j: int, z: Matrix, r: Matrix, g: Matrix, u: Matrix) -> str:
    kept = f"(1 - {format_operand(z[i, 0])}) + " if i == j else ""
    return f"{kept}{format_operand(z[i, 0])}·{format_operand(r[i, 0])}·(1 - {format_power(g[i, 0])})·{format_operand(u[i, j])}"


GATE_RULES: dict[str, Rule] = {
    "Jacobian with fixed gates": Rule(
        _held,
        "diag(1 - {0}) + diag({0} ∘ {1} ∘ (1 - {2}²)) {3}",
        "\\operatorname{{diag}}(1 - {0}) + \\operatorname{{diag}}({0} \\circ {1} \\circ "
        "(1 - {2}^2))\\, {3}",
        {
            "the reset gate was left out": lambda z, r, g, u: _held(z, M.ones(*r.shape), g, u),
            "what is kept was left out": lambda z, r, g, u: M(
                _held(z, r, g, u) - sympy.diag(*(1 - x for x in z))
            ),
        },
        _held_entry,
    ),
}
