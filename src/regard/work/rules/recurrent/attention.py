"""The rules of a recurrence that looks back at its own states."""

import sympy

from regard.work.rules.rule import M, Matrix, Rule, format_operand


def _terms(i: int, keys: Matrix, query: Matrix) -> str:
    return " + ".join(
        f"{format_operand(keys[n, i])}·{format_operand(query[n, 0])}" for n in range(keys.rows)
    )


RECURRENT_ATTENTION_RULES: dict[str, Rule] = {
    "zeros like": Rule(lambda a: M.zeros(*a.shape), "0, of the shape of {0}", "0 \\cdot {0}", {}),
    "scores of the past": Rule(
        lambda keys, query, before: M(keys.T * query),
        "{0}ᵀ {1}",
        "{0}^\\top {1}",
        {
            "the state before was taken as the query": lambda keys, query, before: M(
                keys.T * before
            ),
            "it was divided by √d": lambda keys, query, before: M(
                keys.T * query / sympy.sqrt(keys.rows)
            ),
        },
        lambda i, j, keys, query, before: _terms(i, keys, query),
    ),
    "add context": Rule(
        lambda p, a: M(p + a),
        "{0} + {1}",
        "{0} + {1}",
        {
            "what is remembered was left out": lambda p, a: p,
            "the mean was taken": lambda p, a: M((p + a) / 2),
        },
        lambda i, j, p, a: f"{format_operand(p[i, j])} + {format_operand(a[i, j])}",
    ),
}
