"""Recurrent cells unrolled over time, statements on their gates, attention over past states."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact import parse_matrix, parse_number, to_float
from regard.work.families.registry import check_choice, check_required, declared_steps, family
from regard.work.rules import M, Matrix
from regard.work.solution import Solution, SolutionBuilder, apply_rule

CELL_WEIGHTS = {
    "rnn": ("W", "U"),
    "gru": ("W_z", "U_z", "W_r", "U_r", "W", "U"),
    "lstm": ("W_i", "U_i", "W_f", "U_f", "W_o", "U_o", "W_c", "U_c"),
}
GATE_SUFFIXES = {  # gate or candidate: suffix of its weights
    "rnn": {"h": ""},
    "gru": {"z": "_z", "r": "_r", "g": ""},
    "lstm": {"i": "_i", "f": "_f", "o": "_o", "g": "_c"},
}


def solve_recurrent(
    cell: str, given: Mapping[str, Any], *, convention: str = "columns"
) -> Solution:
    """Unroll a recurrent cell over time; vectors are columns, x has one column per time step.

    With convention "rows" vectors are rows, x W in place of W x, and x has one row per time step.

    rnn:   h' = tanh(W x + U h)
    gru:   z = σ(W_z x + U_z h), r = σ(W_r x + U_r h), g = tanh(W x + r ∘ (U h)),
           h' = (1 - z) ∘ h + z ∘ g
    lstm:  i, f, o = σ(W x + U h), g = tanh(W_c x + U_c h), c' = f ∘ c + i ∘ g, h' = o ∘ tanh c'

    The initial states h (and c) default to zeros; biases b, b_z … are optional.

    >>> solution = solve_recurrent("rnn", {"x": [[0, 0]], "W": 1, "U": 1})
    >>> solution["h_2"]
    Matrix([[0]])
    """
    check_choice("cell", cell, CELL_WEIGHTS)
    check_choice("convention", convention, ("columns", "rows"))
    is_row = convention == "rows"
    builder, steps = start_recurrent(cell, _transposed(given) if is_row else given)
    builder.is_turned = is_row
    for t in range(1, steps + 1):
        add_time_step(builder, cell, t)
    return _with_rows(builder.build()) if is_row else builder.build()


def _transposed(given: Mapping[str, Any]) -> dict[str, Matrix]:
    return {name: M(parse_matrix(value, name).T) for name, value in given.items()}


def _with_rows(solution: Solution) -> Solution:
    """The same steps with vectors as rows: (W x)ᵀ = xᵀ Wᵀ, all else goes entry by entry."""
    steps = (
        replace(
            step,
            value=M(step.value.T),
            inputs=step.inputs[::-1] if step.rule == "product" else step.inputs,
        )
        for step in solution.steps
    )
    mistakes = (one._replace(value=M(one.value.T)) for one in solution.mistakes)
    given = _transposed(solution.given)
    return replace(solution, given=given, steps=tuple(steps), mistakes=tuple(mistakes))


for _cell in CELL_WEIGHTS:
    family(_cell)(partial(solve_recurrent, _cell))


def start_recurrent(
    cell: str, given: Mapping[str, Any], family: str | None = None
) -> tuple[SolutionBuilder, int]:
    """A builder with states and inputs named by time (h_0, x_1, x_2 …), and the sequence length.

    >>> builder, steps = start_recurrent("rnn", {"x": [[1, 2]], "W": 1, "U": 1})
    >>> list(builder.given), steps
    (['W', 'U', 'h_0', 'x_1', 'x_2'], 2)
    """
    check_required(f"a {cell}", given, "x", *CELL_WEIGHTS[cell])
    inputs = parse_matrix(given["x"], "x")
    size = parse_matrix(given[CELL_WEIGHTS[cell][1]], "U").rows
    rest = {name: value for name, value in given.items() if name not in ("x", "h", "c")}
    states = {"h_0": parse_matrix(given.get("h", [[0]] * size), "h")}
    if cell == "lstm":
        states["c_0"] = parse_matrix(given.get("c", [[0]] * size), "c")
    xs = {f"x_{t + 1}": M(inputs.col(t)) for t in range(inputs.cols)}
    return SolutionBuilder(family or cell, {**rest, **states, **xs}), inputs.cols


def add_time_step(builder: SolutionBuilder, cell: str, t: int) -> None:
    """Add the steps of one time step of a cell.

    >>> builder, _ = start_recurrent("rnn", {"x": 0, "W": 1, "U": 1})
    >>> add_time_step(builder, "rnn", 1)
    >>> [step.name for step in builder.steps]
    ['hx_1', 'hh_1', 'hs_1', 'h_1']
    """
    {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[cell](builder, t)


def add_preactivation(
    builder: SolutionBuilder, t: int, letter: str, suffix: str, title: str
) -> str:
    """Add W x + U h (+ b) of one gate at time step t; return the name of the result.

    >>> builder, _ = start_recurrent("rnn", {"x": 3, "W": 2, "U": 1, "b": 1})
    >>> builder.values[add_preactivation(builder, 1, "h", "", "the new state")]
    Matrix([[7]])
    """
    x, h = builder.add_steps(
        (f"{letter}x_{t}", "product", f"W{suffix} x_{t}", f"{title}: the input"),
        (f"{letter}h_{t}", "product", f"U{suffix} h_{t - 1}", "the previous state"),
    )
    return _add_sum(builder, t, letter, x, h, f"b{suffix}")


def _add_sum(builder: SolutionBuilder, t: int, letter: str, x: str, h: str, bias: str) -> str:
    total = builder.add_step(f"{letter}s_{t}", "add", x, h, title="their sum")
    if bias in builder.values:
        total = builder.add_step(f"{letter}b_{t}", "add", total, bias, title="with the bias")
    return total


def _add_gates(builder: SolutionBuilder, t: int, titles: Mapping[str, str]) -> None:
    for gate, title in titles.items():
        total = add_preactivation(builder, t, gate, f"_{gate}", title)
        builder.add_step(f"{gate}_{t}", "sigmoid", total, title=title)


def _rnn(builder: SolutionBuilder, t: int) -> None:
    total = add_preactivation(builder, t, "h", "", "the new state")
    builder.add_step(f"h_{t}", "tanh", total, title=f"the state after step {t}")


def _gru(builder: SolutionBuilder, t: int) -> None:
    _add_gates(builder, t, {"z": "the update gate", "r": "the reset gate"})
    x, _, reset = builder.add_steps(*declared_steps("gru", "candidate", t=t, p=t - 1))
    # Cho et al. (2014) reset before the product; cuDNN and torch after it, as here
    values = builder.values
    reset_first = apply_rule("elementwise product", values[f"r_{t}"], values[f"h_{t - 1}"])
    description = "the state was reset before the product, U (r ∘ h): the other GRU"
    builder.add_mistake(reset, description, apply_rule("product", values["U"], reset_first))
    total = _add_sum(builder, t, "g", x, reset, "b")
    builder.add_steps(*declared_steps("gru", "state", t=t, total=total, p=t - 1))


def _lstm(builder: SolutionBuilder, t: int) -> None:
    _add_gates(builder, t, {"i": "the input gate", "f": "the forget gate", "o": "the output gate"})
    total = add_preactivation(builder, t, "g", "_c", "the candidate")
    builder.add_steps(*declared_steps("lstm", "state", t=t, total=total, p=t - 1))


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


GRU_GIVEN = ("W", "U", "x")


@family("gates")
def solve_gates(given: Mapping[str, Any], *, gate_eps: Any = "1/1000") -> Solution:
    """Decide six statements on gates, each by a computation.

    Given: a GRU's candidate (W, U, x, h) and an LSTM's weights and states (W_i, U_i … h, c).
    `gate_eps` is the distance of a gate "about 0" or "about 1" from 0 or 1.

    >>> zeros = {f"{w}_{g}": 0 for w in "WU" for g in "ifoc"}
    >>> solution = solve_gates({"W": 1, "U": 1, "x": 0, "h": 1, "c": -1, **zeros})
    >>> solution.remarks[0]
    '1. z ≈ 0 keeps the state: true. With z = 1/1000 it changes by 0.000238, which is z ‖g - h‖.'
    """
    check_required("gates", given, *GRU_GIVEN, "h", "c", *CELL_WEIGHTS["lstm"])
    size, inputs = parse_matrix(given["U"], "U").rows, parse_matrix(given["W"], "W").cols
    lstm = {name: given[name] for name in CELL_WEIGHTS["lstm"]} | {"h": given["h"], "c": given["c"]}
    builder, _ = start_recurrent("lstm", lstm | {"x": [[0]] * inputs}, "gates")
    gate_value = parse_number(gate_eps)
    gates = {"z_0": gate_value, "z_1": 1 - gate_value, "r_0": 0, "r_1": 1}
    gru = {name: parse_matrix(given[name], name) for name in GRU_GIVEN}
    gru |= {name: M([[value]] * size) for name, value in gates.items()}
    for name, value in gru.items():
        builder.add_given(name, M(value.T) if value.shape == (1, size) else value)
    _add_gru_statements(builder, gate_value)
    _add_lstm_statements(builder)
    return builder.build()


def _add_gru_statements(builder: SolutionBuilder, gate_value: Any) -> None:
    """Statements 1 and 2."""
    builder.add_steps(*declared_steps("gates", "update"))
    builder.add_remark(
        f"1. z ≈ 0 keeps the state: true. With z = {gate_value} it changes by "
        f"{builder.number('an'):.3g}, which is z ‖g - h‖."
    )
    builder.add_steps(*declared_steps("gates", "forget"))
    without_reset, with_reset = builder.number("na"), builder.number("nb")
    enough = "not" if with_reset > 2 * without_reset else "too here"
    builder.add_remark(
        f"2. z ≈ 1 and r ≈ 0 forget the state: true, ‖∂h'/∂h‖ = {without_reset:.3g}. z ≈ 1 alone "
        f"does {enough}: with r = 1 it is {with_reset:.3g}, because the candidate depends on h."
    )


def _add_lstm_statements(builder: SolutionBuilder) -> None:
    """Statements 3 to 6."""
    add_time_step(builder, "lstm", 1)
    builder.add_steps(*declared_steps("gates", "no_input"))
    moved = builder.number("bn")
    verdict = "true here, since it is at a fixed point" if moved == 0 else "false"
    builder.add_remark(
        f"3. In an LSTM x = 0 leaves h unchanged: {verdict}; it changes by {moved:.3g}, because "
        "the gates and the candidate depend on h. Only h = c = 0 (without bias) is a fixed point."
    )
    builder.add_steps(*declared_steps("gates", "closed"))
    norm = builder.number("Bn")
    verdict = "false" if norm else "true here, since U_i and U_c are 0"
    builder.add_remark(
        f"4. f = 0 stops back-propagation: {verdict}. The direct path from cell to cell is 0, but "
        f"through i and the candidate ‖∂c/∂h‖ = {norm:.3g}; it vanishes only if U is 0."
    )
    gates = [to_float(x) for name in ("i_1", "f_1", "o_1") for x in builder.values[name]]
    cell = min(map(to_float, builder.values["c_1"]))
    solution = "here its smallest is" if cell < 0 else "though here its smallest is"
    builder.add_remark(
        f"5. Gates are not negative: true, σ lies in (0, 1); here {min(gates):.3g} to "
        f"{max(gates):.3g}. The cell cannot be negative either: false. The candidate lies in "
        f"(-1, 1) and c may start below 0; {solution} {cell:.3g}."
    )
    title = "statement 6: the sum of gate"
    sums = builder.add_steps(
        *((f"s_{gate}", "sum of entries", f"{gate}_1", f"{title} {gate}") for gate in "ifo")
    )
    sums_text = ", ".join(f"{builder.number(name):.3g}" for name in sums)
    builder.add_remark(
        f"6. Gates are distributions over the units: false. Each unit has its own σ; the sums of "
        f"i, f and o are {sums_text}, and nothing normalises them to 1."
    )
