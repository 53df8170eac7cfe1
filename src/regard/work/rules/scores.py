"""Rules of additive scores, hard attention and entropy."""

from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.rules.rule import M, Matrix, Rule, format_operand

TIE_TOLERANCE = sympy.Float("1e-30", 30)  # scores closer than this are tied


def _additive_scores(p: Matrix, g: Matrix, v: Matrix, activation: Any = sympy.tanh) -> Matrix:
    weights = list(v)
    if not p.cols == g.cols == len(weights) or 1 not in v.shape:
        raise ShapeError(
            f"additive score: needs one width for queries, keys and vector, got {p.rows}×{p.cols}, "
            f"{g.rows}×{g.cols} and {v.rows}×{v.cols}"
        )
    return M(
        p.rows,
        g.rows,
        lambda i, j: sum(w * activation(p[i, f] + g[j, f]) for f, w in enumerate(weights)),
    )


def _additive_entry(i: int, j: int, p: Matrix, g: Matrix, v: Matrix) -> str:
    terms = (
        f"{format_operand(w)}·tanh({format_operand(p[i, f])} + {format_operand(g[j, f])})"
        for f, w in enumerate(v)
    )
    return " + ".join(terms)


def _is_below(a: Any, b: Any) -> bool:
    if a == b or a == sympy.oo or b == -sympy.oo:
        return False
    if a == -sympy.oo or b == sympy.oo:
        return True
    gap = (b - a).evalf(30)
    if not gap.is_number:
        raise WorkError(f"largest: needs numbers, not symbols, to compare, got {a} and {b}")
    return bool(gap > TIE_TOLERANCE)


def argmax_ties(row: Matrix) -> list[int]:
    """Indices of the maximum, several in a tie.

    >>> argmax_ties(M([[1, 2, 2, 0]]))
    [1, 2]
    """
    entries = list(row)
    return [n for n, x in enumerate(entries) if not any(_is_below(x, y) for y in entries)]


def _row_max(scores: Matrix) -> Matrix:
    return M([scores[i, argmax_ties(scores.row(i))[0]] for i in range(scores.rows)])


def _hardmax(scores: Matrix, top: Matrix) -> Matrix:
    def row_weights(i: int) -> list[Any]:
        # a fully masked row gives zeros
        best = [] if top[i, 0] == -sympy.oo else argmax_ties(scores.row(i))
        return [sympy.Rational(int(j in best), max(len(best), 1)) for j in range(scores.cols)]

    return M([row_weights(i) for i in range(scores.rows)])


def _argmax_one_hot(scores: Matrix, top: Matrix) -> Matrix:
    best = [argmax_ties(scores.row(i))[0] for i in range(scores.rows)]
    return M(scores.rows, scores.cols, lambda i, j: int(j == best[i]))


def _entropy(a: Matrix, log: Any = sympy.log) -> Matrix:
    # 0 log 0 = 0
    return M(
        [sum((-x * log(x) for x in a.row(i) if x != 0), sympy.Integer(0)) for i in range(a.rows)]
    )


SCORE_RULES: dict[str, Rule] = {
    "entropy of rows": Rule(
        _entropy,
        "-Σ a log a over each row of {0}",
        "-\\sum\\nolimits_j ({0})_{{ij}} \\log ({0})_{{ij}}",
        {
            "the sign was left out": lambda a: M(-_entropy(a)),
            "the logarithm was to base 2": lambda a: _entropy(a, lambda x: sympy.log(x, 2)),
            "the logarithm was to base 10": lambda a: _entropy(a, lambda x: sympy.log(x, 10)),
        },
        lambda i, j, a: " - ".join(
            ["", *(f"{format_operand(x)}·log({format_operand(x)})" for x in a.row(i) if x)]
        )[1:],
    ),
    "transpose": Rule(
        lambda a: M(a.T), "{0}ᵀ", "{0}^\\top", {"it was not transposed": lambda a: a}
    ),
    "additive scores": Rule(
        _additive_scores,
        "tanh({0}_i + {1}_j) · {2}, for each query i and key j",
        "\\bigl[\\tanh\\bigl(({0})_i + ({1})_j\\bigr) \\cdot {2}\\bigr]_{{ij}}",
        {
            "tanh was left out": lambda p, g, v: _additive_scores(p, g, v, lambda x: x),
            "queries and keys were swapped": lambda p, g, v: M(_additive_scores(p, g, v).T),
            "the vector after tanh was left out": lambda p, g, v: _additive_scores(
                p, g, M.ones(*v.shape)
            ),
        },
        _additive_entry,
    ),
    "additive scores, columns": Rule(
        lambda p, g, v: M(_additive_scores(M(p.T), M(g.T), v).T),
        "tanh({0}_j + {1}_i) · {2}, for each key i and query j",
        "\\bigl[\\tanh\\bigl(({0})_j + ({1})_i\\bigr) \\cdot {2}\\bigr]_{{ij}}",
        {
            "tanh was left out": lambda p, g, v: M(
                _additive_scores(M(p.T), M(g.T), v, lambda x: x).T
            ),
            "queries and keys were swapped": lambda p, g, v: _additive_scores(M(p.T), M(g.T), v),
        },
        lambda i, j, p, g, v: _additive_entry(j, i, M(p.T), M(g.T), v),
    ),
    "largest of rows": Rule(
        _row_max,
        "the largest in each row of {0}",
        "\\max\\nolimits_j {0}",
        {"the largest of each column was taken": lambda a: _row_max(M(a.T))},
        lambda i, j, a: f"max({', '.join(format_operand(x) for x in a.row(i))})",
    ),
    "largest of columns": Rule(
        lambda a: M(_row_max(M(a.T)).T),
        "the largest in each column of {0}",
        "\\max\\nolimits_i {0}",
        {"the largest of each row was taken": lambda a: M(_row_max(a).T)},
        lambda i, j, a: f"max({', '.join(format_operand(x) for x in a.col(j))})",
    ),
    "hardmax rows": Rule(
        _hardmax,
        "1 where {0} is {1}, divided among ties, else 0",
        "\\lim_{{\\beta \\to \\infty}} \\operatorname{{softmax}}(\\beta\\, {0})",
        {"the first of the tied keys took all the weight": _argmax_one_hot},
    ),
    "hardmax columns": Rule(
        lambda a, top: M(_hardmax(M(a.T), M(top.T)).T),
        "1 where {0} is {1}, divided among ties, else 0",
        "\\lim_{{\\beta \\to \\infty}} \\operatorname{{softmax}}(\\beta\\, {0})",
        {
            "the first of the tied keys took all the weight": lambda a, top: M(
                _argmax_one_hot(M(a.T), M(top.T)).T
            )
        },
    ),
}
