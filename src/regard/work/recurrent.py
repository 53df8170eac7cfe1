"""Recurrent cells by hand: RNN, GRU and LSTM, unrolled over a few steps with all their gates."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.given import need_known
from regard.work.numbers import matrix
from regard.work.rules import M, Matrix
from regard.work.solution import Solution, Working, applied

NEEDS = {
    "rnn": ("W", "U"),
    "gru": ("W_z", "U_z", "W_r", "U_r", "W", "U"),
    "lstm": ("W_i", "U_i", "W_f", "U_f", "W_o", "U_o", "W_c", "U_c"),
}


def unrolled(family: str, given: Mapping[str, Any]) -> Solution:
    """A cell over a few steps; vectors are columns, x has one input a column.

    rnn:   h' = tanh(W x + U h)
    gru:   z = σ(W_z x + U_z h), r = σ(W_r x + U_r h), g = tanh(W x + r ∘ (U h)),
           h' = (1 - z) ∘ h + z ∘ g
    lstm:  i, f, o = σ(W x + U h), g = tanh(W_c x + U_c h), c' = f ∘ c + i ∘ g, h' = o ∘ tanh c'

    The states h (and c) are zeros if not given; b, b_z … are added where given.

    >>> worked = unrolled("rnn", {"x": [[0, 0]], "W": 1, "U": 1})
    >>> worked["h_2"]
    Matrix([[0]])
    """
    need_known_cell(family, given)
    work, steps = begun(family, given)
    for t in range(1, steps + 1):
        forward(work, family, t)
    return work.done()


def need_known_cell(family: str, given: Mapping[str, Any], whole: str = "{}") -> None:
    """Raise unless the cell is one that is known, and every given name one that it takes.

    >>> need_known_cell("rnn", {"b_h": 1})
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: given: needs names that rnn takes, got 'b_h'; try b
    """
    if family not in tuple(NEEDS):
        raise WorkError(f"family: needs one of {', '.join(NEEDS)}, got {family!r}")
    need_known(whole.format(family), given)


def begun(family: str, given: Mapping[str, Any]) -> tuple[Working, int]:
    """A cell before its first step, its states and inputs named by time; and how many inputs.

    >>> work, steps = begun("rnn", {"x": [[1, 2]], "W": 1, "U": 1})
    >>> list(work.given), steps
    (['W', 'U', 'h_0', 'x_1', 'x_2'], 2)
    """
    missing = [name for name in ("x", *NEEDS[family]) if name not in given]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for a {family}, got none")
    inputs = matrix(given["x"], "x")
    size = matrix(given[NEEDS[family][1]], "U").rows
    rest = {name: value for name, value in given.items() if name not in ("x", "h", "c")}
    start = {"h_0": matrix(given.get("h", [[0]] * size), "h")}
    if family == "lstm":
        start["c_0"] = matrix(given.get("c", [[0]] * size), "c")
    xs = {f"x_{t + 1}": M(inputs.col(t)) for t in range(inputs.cols)}
    return Working(family, {**rest, **start, **xs}), inputs.cols


def forward(work: Working, family: str, t: int) -> None:
    """One step of a cell in time.

    >>> work, _ = begun("rnn", {"x": 0, "W": 1, "U": 1})
    >>> forward(work, "rnn", 1)
    >>> [step.name for step in work.steps]
    ['hx_1', 'hh_1', 'hs_1', 'h_1']
    """
    {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[family](work, t)


def _sum(work: Working, t: int, letter: str, weights: str, says: str) -> str:
    """W x + U h (+ b) of one gate, in the steps that a hand takes."""
    a = work.step(f"{letter}x_{t}", "product", f"W{weights}", f"x_{t}", says=f"{says}: the input")
    b = work.step(f"{letter}h_{t}", "product", f"U{weights}", f"h_{t - 1}", says="and the state")
    total = work.step(f"{letter}s_{t}", "add", a, b, says="together")
    if f"b{weights}" in work.values:
        total = work.step(f"{letter}b_{t}", "add", total, f"b{weights}", says="with the bias")
    return total


def _rnn(work: Working, t: int) -> None:
    total = _sum(work, t, "h", "", "the new state")
    work.step(f"h_{t}", "tanh", total, says=f"the state after step {t}")


def _gru(work: Working, t: int) -> None:
    z = work.step(
        f"z_{t}", "sigmoid", _sum(work, t, "z", "_z", "the update gate"), says="how much is new"
    )
    r = work.step(
        f"r_{t}", "sigmoid", _sum(work, t, "r", "_r", "the reset gate"), says="how much is heard"
    )
    x = work.step(f"gx_{t}", "product", "W", f"x_{t}", says="the candidate: the input")
    h = work.step(f"gh_{t}", "product", "U", f"h_{t - 1}", says="and the state")
    heard = work.step(f"gr_{t}", "by entry", r, h, says="as far as it is heard")
    before = applied("product", work.values["U"], _heard(work, r, f"h_{t - 1}"))
    work.slip(heard, "the state was reset before the product, U (r ∘ h): the other GRU", before)
    total = work.step(f"gs_{t}", "add", x, heard, says="together")
    if "b" in work.values:
        total = work.step(f"gb_{t}", "add", total, "b", says="with the bias")
    g = work.step(f"g_{t}", "tanh", total, says="the candidate")
    work.step(f"h_{t}", "keep and take", z, f"h_{t - 1}", g, says=f"the state after step {t}")


def _heard(work: Working, r: str, h: str) -> Matrix:
    return applied("by entry", work.values[r], work.values[h])


def _lstm(work: Working, t: int) -> None:
    says = {"i": "how much comes in", "f": "how much is kept", "o": "how much is shown"}
    gates = {
        one: work.step(
            f"{one}_{t}", "sigmoid", _sum(work, t, one, f"_{one}", f"the gate {one}"), says=what
        )
        for one, what in says.items()
    }
    g = work.step(f"g_{t}", "tanh", _sum(work, t, "g", "_c", "the candidate"), says="the candidate")
    kept = work.step(f"k_{t}", "by entry", gates["f"], f"c_{t - 1}", says="what is kept")
    new = work.step(f"n_{t}", "by entry", gates["i"], g, says="what comes in")
    c = work.step(f"c_{t}", "add", kept, new, says=f"the cell after step {t}")
    bent = work.step(f"t_{t}", "tanh", c, says="the cell, bent")
    work.step(f"h_{t}", "by entry", gates["o"], bent, says=f"the state after step {t}")
