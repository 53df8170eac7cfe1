"""Recurrent cells by hand: RNN, GRU and LSTM, unrolled over a few steps with all their gates."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.numbers import parse_matrix
from regard.work.families.given import check_given
from regard.work.rules import M, Matrix
from regard.work.solution import Solution, SolutionBuilder, apply_rule

CELL_WEIGHTS = {
    "rnn": ("W", "U"),
    "gru": ("W_z", "U_z", "W_r", "U_r", "W", "U"),
    "lstm": ("W_i", "U_i", "W_f", "U_f", "W_o", "U_o", "W_c", "U_c"),
}


def solve_recurrent(cell: str, given: Mapping[str, Any]) -> Solution:
    """A cell over a few steps; vectors are columns, x has one input a column.

    rnn:   h' = tanh(W x + U h)
    gru:   z = σ(W_z x + U_z h), r = σ(W_r x + U_r h), g = tanh(W x + r ∘ (U h)),
           h' = (1 - z) ∘ h + z ∘ g
    lstm:  i, f, o = σ(W x + U h), g = tanh(W_c x + U_c h), c' = f ∘ c + i ∘ g, h' = o ∘ tanh c'

    The states h (and c) are zeros if not given; b, b_z … are added where given.

    >>> worked = solve_recurrent("rnn", {"x": [[0, 0]], "W": 1, "U": 1})
    >>> worked["h_2"]
    Matrix([[0]])
    """
    check_cell_given(cell, given)
    work, steps = start_recurrent(cell, given)
    for t in range(1, steps + 1):
        add_time_step(work, cell, t)
    return work.build()


def check_cell_given(cell: str, given: Mapping[str, Any], family_pattern: str = "{}") -> None:
    """Raise unless the cell is one that is known, and every given name one that it takes.

    >>> check_cell_given("rnn", {"b_h": 1})
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: given: needs names that rnn takes, got 'b_h'; try b
    """
    if cell not in tuple(CELL_WEIGHTS):
        raise WorkError(f"family: needs one of {', '.join(CELL_WEIGHTS)}, got {cell!r}")
    check_given(family_pattern.format(cell), given)


def start_recurrent(cell: str, given: Mapping[str, Any]) -> tuple[SolutionBuilder, int]:
    """A cell before its first step, its states and inputs named by time; and how many inputs.

    >>> work, steps = start_recurrent("rnn", {"x": [[1, 2]], "W": 1, "U": 1})
    >>> list(work.given), steps
    (['W', 'U', 'h_0', 'x_1', 'x_2'], 2)
    """
    missing = [name for name in ("x", *CELL_WEIGHTS[cell]) if name not in given]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for a {cell}, got none")
    inputs = parse_matrix(given["x"], "x")
    size = parse_matrix(given[CELL_WEIGHTS[cell][1]], "U").rows
    rest = {name: value for name, value in given.items() if name not in ("x", "h", "c")}
    start = {"h_0": parse_matrix(given.get("h", [[0]] * size), "h")}
    if cell == "lstm":
        start["c_0"] = parse_matrix(given.get("c", [[0]] * size), "c")
    xs = {f"x_{t + 1}": M(inputs.col(t)) for t in range(inputs.cols)}
    return SolutionBuilder(cell, {**rest, **start, **xs}), inputs.cols


def add_time_step(builder: SolutionBuilder, cell: str, t: int) -> None:
    """One step of a cell in time.

    >>> work, _ = start_recurrent("rnn", {"x": 0, "W": 1, "U": 1})
    >>> add_time_step(work, "rnn", 1)
    >>> [step.name for step in work.steps]
    ['hx_1', 'hh_1', 'hs_1', 'h_1']
    """
    {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[cell](builder, t)


def _sum(work: SolutionBuilder, t: int, letter: str, weights: str, says: str) -> str:
    """W x + U h (+ b) of one gate, in the steps that a hand takes."""
    a = work.add_step(
        f"{letter}x_{t}", "product", f"W{weights}", f"x_{t}", title=f"{says}: the input"
    )
    b = work.add_step(
        f"{letter}h_{t}", "product", f"U{weights}", f"h_{t - 1}", title="and the state"
    )
    total = work.add_step(f"{letter}s_{t}", "add", a, b, title="together")
    if f"b{weights}" in work.values:
        total = work.add_step(f"{letter}b_{t}", "add", total, f"b{weights}", title="with the bias")
    return total


def _rnn(work: SolutionBuilder, t: int) -> None:
    total = _sum(work, t, "h", "", "the new state")
    work.add_step(f"h_{t}", "tanh", total, title=f"the state after step {t}")


def _gru(work: SolutionBuilder, t: int) -> None:
    z = work.add_step(
        f"z_{t}", "sigmoid", _sum(work, t, "z", "_z", "the update gate"), title="how much is new"
    )
    r = work.add_step(
        f"r_{t}", "sigmoid", _sum(work, t, "r", "_r", "the reset gate"), title="how much is heard"
    )
    x = work.add_step(f"gx_{t}", "product", "W", f"x_{t}", title="the candidate: the input")
    h = work.add_step(f"gh_{t}", "product", "U", f"h_{t - 1}", title="and the state")
    heard = work.add_step(f"gr_{t}", "elementwise product", r, h, title="as far as it is heard")
    before = apply_rule("product", work.values["U"], _heard(work, r, f"h_{t - 1}"))
    work.add_mistake(
        heard, "the state was reset before the product, U (r ∘ h): the other GRU", before
    )
    total = work.add_step(f"gs_{t}", "add", x, heard, title="together")
    if "b" in work.values:
        total = work.add_step(f"gb_{t}", "add", total, "b", title="with the bias")
    g = work.add_step(f"g_{t}", "tanh", total, title="the candidate")
    work.add_step(f"h_{t}", "gated mix", z, f"h_{t - 1}", g, title=f"the state after step {t}")


def _heard(work: SolutionBuilder, r: str, h: str) -> Matrix:
    return apply_rule("elementwise product", work.values[r], work.values[h])


def _lstm(work: SolutionBuilder, t: int) -> None:
    says = {"i": "how much comes in", "f": "how much is kept", "o": "how much is shown"}
    gates = {
        one: work.add_step(
            f"{one}_{t}", "sigmoid", _sum(work, t, one, f"_{one}", f"the gate {one}"), title=what
        )
        for one, what in says.items()
    }
    g = work.add_step(
        f"g_{t}", "tanh", _sum(work, t, "g", "_c", "the candidate"), title="the candidate"
    )
    kept = work.add_step(
        f"k_{t}", "elementwise product", gates["f"], f"c_{t - 1}", title="what is kept"
    )
    new = work.add_step(f"n_{t}", "elementwise product", gates["i"], g, title="what comes in")
    c = work.add_step(f"c_{t}", "add", kept, new, title=f"the cell after step {t}")
    bent = work.add_step(f"t_{t}", "tanh", c, title="the cell, bent")
    work.add_step(
        f"h_{t}", "elementwise product", gates["o"], bent, title=f"the state after step {t}"
    )
