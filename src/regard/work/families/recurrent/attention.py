"""An RNN that looks back at its own states: recurrence and attention in one step, by hand."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.families.recurrent.cells import CELL_NAMES, cell_shapes, start_recurrent
from regard.work.families.registry import ExerciseTemplate, check_given, family
from regard.work.solution import Solution, SolutionBuilder

RECURRENT_SCORE_WEIGHTS = {"dot": (), "scaled": (), "additive": ("W_1", "W_2", "V_a")}
QUERY_SOURCES = ("candidate", "previous")
_QUESTIONS = ("p_*", "s_*", "A_*", "a_*", "h_*")


@family(
    "recurrent-attention",
    given=f"{CELL_NAMES['rnn']} W_1 W_2 V_a",
    exercises=(
        ExerciseTemplate({"x": (1, 2)}, {"W": (1, 2), "U": (1, -1)}, questions=_QUESTIONS),
        ExerciseTemplate({"x": (1, 3)}, {"W": (1, 2), "U": (1, -1)}, questions=_QUESTIONS),
        ExerciseTemplate(
            {"x": (2, 2)} | cell_shapes(".", 2, 2),
            option_choices={"score": ("dot", "scaled")},
            questions=_QUESTIONS,
        ),
    ),
)
def solve_recurrent_attention(
    given: Mapping[str, Any], *, score: str = "dot", query: str = "candidate"
) -> Solution:
    """An RNN whose every state adds a mixture of the states before it; vectors are columns.

    p_t = tanh(W x_t + U h_{t-1}),   a_t = Σ_{j<t} α_tj h_j,   h_t = p_t + a_t,   a_1 = 0

    The query cannot be h_t, which a_t is to make: it is the `candidate` p_t, or the state `before`.
    Scores are dot, scaled (1/√d) or additive: V_aᵀ tanh(W_1 query + W_2 h_j).

    >>> worked = solve_recurrent_attention({"x": [[0, 0]], "W": 1, "U": 1, "h": "1/2"})
    >>> worked["a_1"], worked["a_2"] == worked["h_1"]
    (Matrix([[0]]), True)
    """
    if score not in tuple(RECURRENT_SCORE_WEIGHTS):
        raise WorkError(f"score: needs one of {', '.join(RECURRENT_SCORE_WEIGHTS)}, got {score!r}")
    if query not in QUERY_SOURCES:
        raise WorkError(
            f"query: needs candidate or previous, got {query!r}; h_t itself needs a_t, and a_t h_t"
        )
    missing = [name for name in RECURRENT_SCORE_WEIGHTS[score] if name not in given]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for the score {score}, got none")
    check_given("recurrent-attention", given)
    work, steps = start_recurrent("rnn", given, "recurrent-attention")
    if score == "scaled":
        size = work.values["h_0"].rows
        work.add_given("β", 1 / sympy.sqrt(size))
    for t in range(1, steps + 1):
        _step(work, t, score, query)
    _remarks(work, steps)
    return work.build()


def _step(work: SolutionBuilder, t: int, score: str, query: str) -> None:
    x = work.add_step(f"hx_{t}", "product", "W", f"x_{t}", title="the candidate: the input")
    h = work.add_step(f"hh_{t}", "product", "U", f"h_{t - 1}", title="and the state")
    total = work.add_step(f"hs_{t}", "add", x, h, title="together")
    if "b" in work.values:
        total = work.add_step(f"hb_{t}", "add", total, "b", title="with the bias")
    p = work.add_step(f"p_{t}", "tanh", total, title=f"what an RNN alone would make of step {t}")
    if t == 1:
        work.add_step("a_1", "zeros like", p, title="nothing came before: nothing to look back at")
    else:
        _look_back(work, t, score, p if query == "candidate" else f"h_{t - 1}")
    says = f"the state after step {t}: what is new and what is remembered"
    work.add_step(f"h_{t}", "add context", p, f"a_{t}", title=says)


def _look_back(work: SolutionBuilder, t: int, score: str, query: str) -> None:
    states = [f"h_{j}" for j in range(1, t)]
    if t == 2:
        keys = states[0]
    else:
        keys = work.add_step(
            f"H_{t}", f"join {t - 1}", *states, title="the states so far, as columns"
        )
    says = "the scores: how well each earlier state fits"
    if score == "additive":
        q = work.add_step(f"q_{t}", "product", "W_1", query, title="the query as the score sees it")
        k = work.add_step(
            f"k_{t}", "product", "W_2", keys, title="the states as the score sees them"
        )
        name = work.add_step(f"s_{t}", "additive scores, columns", q, k, "V_a", title=says)
    else:
        name = work.add_step(f"s_{t}", "scores of the past", keys, query, f"h_{t - 1}", title=says)
    if score == "scaled":
        name = work.add_step(f"z_{t}", "scale", name, "β", title="scaled")
    e = work.add_step(f"e_{t}", "exp", name, title="the exponentials")
    n = work.add_step(f"n_{t}", "sum over columns", e, title="what they are divided by")
    says = "the weights: over what came before, they add up to 1"
    work.add_step(f"A_{t}", "divide columns", e, n, title=says)
    work.add_step(f"a_{t}", "product", keys, f"A_{t}", title="the mixture of earlier states")


def _remarks(work: SolutionBuilder, steps: int) -> None:
    work.add_remark(
        "The query is not h_t: a_t goes into h_t, so that h_t cannot go into a_t. Each step looks "
        "only at earlier ones (their weights are strictly below the diagonal), and waits for them: "
        "nothing here runs in parallel over time."
    )
    if any(value.free_symbols for value in work.given.values()):
        return
    sizes = [max(abs(to_float(x)) for x in work.values[f"h_{t}"]) for t in range(1, steps + 1)]
    told = ", ".join(f"{size:.3g}" for size in sizes)
    work.add_remark(
        f"The largest entries of h_1 to h_{steps} are {told}: each step may add 1 to the "
        "largest before it, so that |h_t| ≤ t, and no tanh holds it back."
    )
