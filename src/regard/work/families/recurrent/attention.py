"""RNN with attention over its own past states."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.families.recurrent.cells import add_preactivation, start_recurrent
from regard.work.families.registry import check_choice, check_required, family
from regard.work.solution import Solution, SolutionBuilder

RECURRENT_SCORE_WEIGHTS = {"dot": (), "scaled": (), "additive": ("W_1", "W_2", "V_a")}
QUERY_SOURCES = ("candidate", "previous")


@family("recurrent-attention")
def solve_recurrent_attention(
    given: Mapping[str, Any], *, score: str = "dot", query: str = "candidate"
) -> Solution:
    """RNN that adds an attention context over past states; vectors are columns.

    p_t = tanh(W x_t + U h_{t-1}),   a_t = Σ_{j<t} α_tj h_j,   h_t = p_t + a_t,   a_1 = 0

    The query cannot be h_t, which depends on a_t: it is the candidate p_t or the previous state.

    Args:
        given: matrices by name.
        score: "dot", "scaled" (1/√d) or "additive": V_aᵀ tanh(W_1 query + W_2 h_j).
        query: "candidate" or "previous".

    >>> solution = solve_recurrent_attention({"x": [[0, 0]], "W": 1, "U": 1, "h": "1/2"})
    >>> solution["a_1"], solution["a_2"] == solution["h_1"]
    (Matrix([[0]]), True)
    """
    check_choice("score", score, RECURRENT_SCORE_WEIGHTS)
    if query not in QUERY_SOURCES:
        raise WorkError(
            f"query: needs candidate or previous, got {query!r}; h_t itself depends on a_t"
        )
    check_required(f"the score {score}", given, *RECURRENT_SCORE_WEIGHTS[score])
    builder, steps = start_recurrent("rnn", given, "recurrent-attention")
    if score == "scaled":
        builder.add_given("β", 1 / sympy.sqrt(builder.values["h_0"].rows))
    for t in range(1, steps + 1):
        _add_step(builder, t, score, query)
    _remarks(builder, steps)
    return builder.build()


def _add_step(builder: SolutionBuilder, t: int, score: str, query: str) -> None:
    total = add_preactivation(builder, t, "h", "", "the candidate")
    p = builder.add_step(f"p_{t}", "tanh", total, title=f"the state of a plain RNN at step {t}")
    if t == 1:
        builder.add_step("a_1", "zeros like", p, title="no past states yet: zeros")
    else:
        _add_context(builder, t, score, p if query == "candidate" else f"h_{t - 1}")
    title = f"the state after step {t}: candidate plus context"
    builder.add_step(f"h_{t}", "add context", p, f"a_{t}", title=title)


def _add_context(builder: SolutionBuilder, t: int, score: str, query: str) -> None:
    keys, title = "h_1", "the scores of the past states"
    if t > 2:
        states = [f"h_{j}" for j in range(1, t)]
        join = f"join {t - 1}"
        keys = builder.add_step(f"H_{t}", join, *states, title="the past states, as columns")
    scores = f"s_{t}"
    if score == "additive":
        builder.add_steps(
            (f"q_{t}", "product", f"W_1 {query}", "the query, projected for the score"),
            (f"k_{t}", "product", f"W_2 {keys}", "the states, projected for the score"),
            (scores, "additive scores, columns", f"q_{t} k_{t} V_a", title),
        )
    else:
        builder.add_steps((scores, "scores of the past", f"{keys} {query} h_{t - 1}", title))
    if score == "scaled":
        scores = builder.add_step(f"z_{t}", "scale", scores, "β", title="scaled")
    weights = "the weights of the past states: they sum to 1"
    builder.add_steps(
        (f"e_{t}", "exp", scores, "the exponentials"),
        (f"n_{t}", "sum over columns", f"e_{t}", "the normaliser"),
        (f"A_{t}", "divide columns", f"e_{t} n_{t}", weights),
        (f"a_{t}", "product", f"{keys} A_{t}", "the context: weighted mean of the past states"),
    )


def _remarks(builder: SolutionBuilder, steps: int) -> None:
    builder.add_remark(
        "The query is not h_t, because h_t depends on a_t. Each step attends to earlier ones only "
        "(a strictly lower triangular map) and needs their results: no parallelism over time."
    )
    if builder.has_symbols:
        return
    sizes = [max(abs(to_float(x)) for x in builder.values[f"h_{t}"]) for t in range(1, steps + 1)]
    maxima = ", ".join(f"{size:.3g}" for size in sizes)
    builder.add_remark(
        f"The largest entries of h_1 to h_{steps} are {maxima}: each step adds at most 1 to the "
        "largest before it, so |h_t| ≤ t: no tanh bounds it."
    )
