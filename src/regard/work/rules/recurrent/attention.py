"""Rules of an RNN with attention over its past states."""

import sympy

from regard.work.rules.rule import M, Matrix, Rule, format_operand


def _terms(i: int, keys: Matrix, query: Matrix) -> str:
    return " + ".join(
        f"{format_operand(keys[n, i])}·{format_operand(query[n, 0])}" for n in range(keys.rows)
    )


RECURRENT_ATTENTION_RULES: dict[str, Rule] = {
    "zeros like": Rule(lambda a: M.zeros(*a.shape), "0, of the shape of {0}", "0 \\cdot {0}", {}),
    "scores of the past": Rule(
        lambda keys, query, previous: M(keys.T * query),
        "{0}ᵀ {1}",
        "{0}^\\top {1}",
        {
            "the previous state was taken as the query": lambda keys, query, previous: M(
                keys.T * previous
            ),
            "it was divided by √d": lambda keys, query, previous: M(
                keys.T * query / sympy.sqrt(keys.rows)
            ),
        },
        lambda i, j, keys, query, previous: _terms(i, keys, query),
    ),
    "add context": Rule(
        lambda p, a: M(p + a),
        "{0} + {1}",
        "{0} + {1}",
        {
            "the context was left out": lambda p, a: p,
            "the mean was taken": lambda p, a: M((p + a) / 2),
        },
        lambda i, j, p, a: f"{format_operand(p[i, j])} + {format_operand(a[i, j])}",
    ),
}
