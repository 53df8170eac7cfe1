"""Rules of the Jacobian of a gated cell."""

import sympy

from regard.work.rules.recurrent.gradients import tanh_derivative
from regard.work.rules.rule import M, Matrix, Rule, format_operand, format_power


def _fixed_gate_jacobian(z: Matrix, r: Matrix, g: Matrix, u: Matrix) -> Matrix:
    direct = sympy.diag(*(1 - x for x in z))
    candidate = [a * b * c for a, b, c in zip(z, r, tanh_derivative(g), strict=True)]
    return M(direct + sympy.diag(*candidate) * u)


def _fixed_gate_entry(i: int, j: int, z: Matrix, r: Matrix, g: Matrix, u: Matrix) -> str:
    direct = f"(1 - {format_operand(z[i, 0])}) + " if i == j else ""
    gates = f"{format_operand(z[i, 0])}·{format_operand(r[i, 0])}"
    return f"{direct}{gates}·(1 - {format_power(g[i, 0])})·{format_operand(u[i, j])}"


GATE_RULES: dict[str, Rule] = {
    "Jacobian with fixed gates": Rule(
        _fixed_gate_jacobian,
        "diag(1 - {0}) + diag({0} ∘ {1} ∘ (1 - {2}²)) {3}",
        "\\operatorname{{diag}}(1 - {0}) + \\operatorname{{diag}}({0} \\circ {1} \\circ "
        "(1 - {2}^2))\\, {3}",
        {
            "the reset gate was left out": lambda z, r, g, u: _fixed_gate_jacobian(
                z, M.ones(*r.shape), g, u
            ),
            "the direct path was left out": lambda z, r, g, u: M(
                _fixed_gate_jacobian(z, r, g, u) - sympy.diag(*(1 - x for x in z))
            ),
        },
        _fixed_gate_entry,
    ),
}
