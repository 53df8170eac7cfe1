"""Rules of additive scores, soft cap, hard attention, entropy, and a single weight."""

from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.exact import is_infinity
from regard.work.rules.basic import on_transposes
from regard.work.rules.rule import M, Matrix, Rule, broadcast, format_operand, format_sum, rule

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


def _additive_entry(p: Matrix, g: Matrix, v: Matrix) -> str:
    return " + ".join(
        f"{format_operand(w)}·tanh({format_operand(x)} + {format_operand(y)})"
        for w, x, y in zip(v, p.row(0), g.row(0), strict=True)
    )


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


def _max_entry(row: Matrix) -> str:
    return f"max({', '.join(map(format_operand, row))})"


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


def _entropy_entry(a: Matrix) -> str:
    terms = (f"{format_operand(x)}·log({format_operand(x)})" for x in a.row(0) if x)
    return " - ".join(["", *terms])[1:]


def _weight(score: Matrix, lse: Matrix) -> Matrix:
    if score.shape != (1, 1) or lse.shape != (1, 1):
        raise ShapeError(f"weight: needs one score and one number, got {score.rows}×{score.cols}")
    return M([[0 if is_infinity(score[0]) else sympy.exp(score[0] - lse[0])]])


_ADDITIVE = "[tanh(({0})_i + ({1})_j) · {2}]_ij"
_SOFTMAX_LIMIT = "lim_(β→∞) softmax(β {0})"

SCORE_RULES: dict[str, Rule] = {
    "entropy of rows": rule(
        "-Σ_j ({0})_ij log ({0})_ij",
        {
            "the sign was left out": lambda a: M(-_entropy(a)),
            "the logarithm was to base 2": lambda a: _entropy(a, lambda x: sympy.log(x, 2)),
            "the logarithm was to base 10": lambda a: _entropy(a, lambda x: sympy.log(x, 10)),
        },
        run=_entropy,
        entry=_entropy_entry,
        words="-Σ a log a over each row of {0}",
    ),
    "additive scores": rule(
        _ADDITIVE,
        {
            "tanh was left out": lambda p, g, v: _additive_scores(p, g, v, lambda x: x),
            "queries and keys were swapped": lambda p, g, v: M(_additive_scores(p, g, v).T),
            "the vector after tanh was left out": lambda p, g, v: _additive_scores(
                p, g, M.ones(*v.shape)
            ),
        },
        run=_additive_scores,
        entry=_additive_entry,
        words="tanh({0}_i + {1}_j) · {2}, for each query i and key j",
    ),
    "additive scores, columns": rule(
        _ADDITIVE.replace("_i ", "_j ").replace("_j)", "_i)"),
        {
            "tanh was left out": on_transposes(
                lambda p, g, v: _additive_scores(p, g, v, lambda x: x)
            ),
            "queries and keys were swapped": lambda p, g, v: _additive_scores(M(p.T), M(g.T), v),
        },
        run=on_transposes(_additive_scores),
        entry=lambda p, g, v: _additive_entry(p.T, g.T, v),
        words="tanh({0}_j + {1}_i) · {2}, for each key i and query j",
    ),
    "largest of rows": rule(
        "max_j {0}",
        {"the largest of each column was taken": lambda a: _row_max(M(a.T))},
        run=_row_max,
        entry=lambda a: _max_entry(a.row(0)),
        words="the largest in each row of {0}",
    ),
    "largest of columns": rule(
        "max_i {0}",
        {"the largest of each row was taken": lambda a: M(_row_max(a).T)},
        run=on_transposes(_row_max),
        entry=lambda a: _max_entry(a.col(0)),
        words="the largest in each column of {0}",
    ),
    **{
        f"hardmax {axis}": rule(
            _SOFTMAX_LIMIT,
            {"the first of the tied keys took all the weight": adapt(_argmax_one_hot)},
            run=adapt(_hardmax),
            words="1 where {0} is {1}, divided among ties, else 0",
        )
        for axis, adapt in {"rows": lambda run: run, "columns": on_transposes}.items()
    },
    "sum with remainder": rule(
        "{0} 𝟏 + {1}",
        {"the rest was left out": lambda terms, rest: M([[sum(terms)]])},
        run=lambda terms, rest: M([[sum(terms) + rest[0, 0]]]),
        entry=lambda terms, rest: format_sum((*terms, rest[0])),
        words="sum of {0} + {1}",
    ),
    "softcap": rule(
        "{1} tanh({0} / {1})",
        {"the cap was left out": "{0}"},
        run=broadcast(lambda x, cap: cap * sympy.tanh(x / cap)),
        entry="{1} · tanh({0} / {1})",
    ),
    "weight": rule(
        "exp({0} - {1})",
        {"the exponential was not divided by the sum": "exp({0})"},
        run=_weight,
        entry="exp({0} - {1})",
    ),
}
