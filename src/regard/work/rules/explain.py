"""Rules of a single attention weight: dot product, soft cap, softmax."""

import sympy

from regard.errors import ShapeError
from regard.work.rules.rule import M, Matrix, Rule, format_operand


def _softcap(a: Matrix, cap: Matrix) -> Matrix:
    return M(a.applyfunc(lambda x: cap[0, 0] * sympy.tanh(x / cap[0, 0])))


def _weight(score: Matrix, lse: Matrix) -> Matrix:
    if score.shape != (1, 1) or lse.shape != (1, 1):
        raise ShapeError(f"weight: needs one score and one number, got {score.rows}×{score.cols}")
    return M([[0 if score[0].is_infinite else sympy.exp(score[0] - lse[0])]])


def _sum_with_remainder(terms: Matrix, rest: Matrix) -> Matrix:
    return M([[sum(terms) + rest[0, 0]]])


EXPLAIN_RULES: dict[str, Rule] = {
    "sum with remainder": Rule(
        _sum_with_remainder,
        "sum of {0} + {1}",
        "{0} \\mathbf 1 + {1}",
        {"the rest was left out": lambda terms, rest: M([[sum(terms)]])},
        lambda i, j, terms, rest: " + ".join(format_operand(x) for x in (*terms, rest[0])),
    ),
    "softcap": Rule(
        _softcap,
        "{1} tanh({0} / {1})",
        "{1} \\tanh({0} / {1})",
        {"the cap was left out": lambda a, cap: a},
        lambda i, j, a, cap: (
            f"{format_operand(cap[0])}·tanh({format_operand(a[i, j])} / {format_operand(cap[0])})"
        ),
    ),
    "weight": Rule(
        _weight,
        "exp({0} - {1})",
        "e^{{{0} - {1}}}",
        {"it was not divided by the sum": lambda score, lse: M(score.applyfunc(sympy.exp))},
        lambda i, j, score, lse: f"exp({format_operand(score[0])} - {format_operand(lse[0])})",
    ),
}
