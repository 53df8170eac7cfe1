"""Recurrent cells unrolled over time: RNN, GRU and LSTM with every gate."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from regard.work.exact.numbers import parse_matrix
from regard.work.families.registry import check_choice, check_required, declared_steps, family
from regard.work.rules import M
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


def solve_recurrent(cell: str, given: Mapping[str, Any]) -> Solution:
    """Unroll a recurrent cell over time; vectors are columns, x has one column per time step.

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
    builder, steps = start_recurrent(cell, given)
    for t in range(1, steps + 1):
        add_time_step(builder, cell, t)
    return builder.build()


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
