"""Back-propagation through time by hand: every partial of a small RNN, GRU or LSTM."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.numbers import parse_matrix, parse_number
from regard.work.families.recurrent.cells import (
    GATE_SUFFIXES,
    SCALAR_CHOICES,
    add_time_step,
    cell_shapes,
    check_cell_given,
    start_recurrent,
)
from regard.work.families.recurrent.forward_mode import add_forward_mode
from regard.work.families.recurrent.jacobians import (
    add_clipping,
    add_lstm_jacobians,
    add_rnn_jacobians,
)
from regard.work.families.registry import ExerciseTemplate, family
from regard.work.rules import M
from regard.work.rules.recurrent.gradients import MAX_SUM_TERMS
from regard.work.solution import Solution, SolutionBuilder

_QUESTIONS = ("h_*", "c_*", "J", "dh_*", "dc_*", "dW*", "dU*")


@family(
    "bptt",
    exercises=(
        ExerciseTemplate(
            {"x": (1, 2)},
            {"W": SCALAR_CHOICES, "U": SCALAR_CHOICES, "target": (0, 1)},
            {"cell": ("rnn",)},
            questions=_QUESTIONS,
        ),
        ExerciseTemplate(
            {"x": (2, 2)} | cell_shapes(".", 2, 2),
            {"target": ([1, 0],)},
            {"cell": ("rnn",)},
            questions=_QUESTIONS,
        ),
        ExerciseTemplate(
            {"x": (1, 2)} | cell_shapes("ifoc", 1, 1),
            {"target": (0, 1)},
            {"cell": ("lstm",)},
            questions=_QUESTIONS,
        ),
    ),
)
def solve_bptt(
    given: Mapping[str, Any],
    *,
    cell: str = "rnn",
    max_grad_norm: Any = None,
    forward_mode: str | None = None,
) -> Solution:
    """The gradient of a loss J for every weight of a cell: forward, then back through time.

    dh_t = direct part + Σ over what h_t feeds,   dW = Σ_t ds_t x_tᵀ,   dU = Σ_t ds_t h_{t-1}ᵀ

    A name dv stands for ∂J/∂v. J is the sum of the last state, or with `target` half the squared
    distance from it; with `dh` (a column a step) the direct partials ∂J/∂h_t are given instead.
    `clip` is the largest norm that the whole gradient may have; `forward` names a weight of an LSTM
    whose gradient is worked forward in time too.

    >>> worked = solve_bptt({"x": [[0, 0]], "W": 1, "U": "1/2"})
    >>> worked["dh_1"], worked["dh_0"]
    (Matrix([[1/2]]), Matrix([[1/4]]))
    """
    check_cell_given(cell, given, "bptt of {}", "target dh")
    told = {name: value for name, value in given.items() if name not in ("dh", "target")}
    work, steps = start_recurrent(cell, told, "bptt")
    if steps > MAX_SUM_TERMS:
        raise WorkError(f"x: needs at most {MAX_SUM_TERMS} inputs, a column each, got {steps}")
    if forward_mode is not None and cell != "lstm":
        raise WorkError(f'forward_mode: needs an lstm, got {cell}; try cell = "lstm"')
    for t in range(1, steps + 1):
        add_time_step(work, cell, t)
    _loss(work, steps, given)
    for t in range(steps, 0, -1):
        _arrived(work, t, steps)
        {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[cell](work, t, steps)
    _arrived(work, 0, steps)
    found = _weights(work, cell, steps)
    symbols = any(value.free_symbols for value in work.given.values())
    if max_grad_norm is not None:
        if symbols:
            raise WorkError(
                f"max_grad_norm: needs numbers alone, got {max_grad_norm} beside symbols"
            )
        most = parse_number(max_grad_norm)
        if not most.is_positive:
            raise WorkError(f"max_grad_norm: needs a norm above 0, got {max_grad_norm}")
        add_clipping(work, found, most)
    if forward_mode is not None:
        add_forward_mode(work, steps, forward_mode)
    if not symbols:
        {"rnn": add_rnn_jacobians, "lstm": add_lstm_jacobians}.get(cell, lambda *_: None)(
            work, steps
        )
    return work.build()


def _loss(work: SolutionBuilder, steps: int, given: Mapping[str, Any]) -> None:
    """The direct partials e_t of the loss, given or worked; J itself where it is known."""
    last = f"h_{steps}"
    size = work.values[last].rows
    if "dh" in given:
        told = parse_matrix(given["dh"], "dh")
        if told.shape != (size, steps):
            raise WorkError(
                f"dh: needs {size} rows of {steps} numbers, a column a step, got "
                f"{told.rows}×{told.cols}"
            )
        for t in range(1, steps + 1):
            if t == steps or any(told.col(t - 1)):
                work.add_given(f"e_{t}", told.col(t - 1))
    elif "target" in given:
        told = parse_matrix(given["target"], "target")
        told = M(told.T) if told.shape == (1, size) else told
        if told.shape != (size, 1):
            raise WorkError(f"target: needs {size} numbers, got {told.rows}×{told.cols}")
        work.add_given("y", told)
        work.add_step("J", "half square", last, "y", title="the loss: half the squared distance")
        work.add_step(f"e_{steps}", "subtract", last, "y", title=f"∂J/∂{last}, directly")
    else:
        work.add_step("J", "sum of entries", last, title="the loss: the sum of the last state")
        work.add_step(f"e_{steps}", "ones like", last, title=f"∂J/∂{last}, directly")


def _arrived(work: SolutionBuilder, t: int, steps: int) -> None:
    """dh_t from what the loss says directly and what comes back from step t + 1."""
    later = [name for name in (f"k{t}", f"p{t}", f"q{t}", f"r{t}", f"s{t}") if name in work.values]
    direct, says = f"e_{t}", f"∂J/∂h_{t}, in all: "
    if not later:
        work.add_step(f"dh_{t}", "copy", direct, title=says + "nothing comes after it")
        return
    whole = f"dh_{t}" if direct not in work.values else f"later_{t}"
    if len(later) == 1:
        if whole == f"dh_{t}":
            work.add_step(whole, "copy", *later, title=says + f"what comes back from step {t + 1}")
        else:
            whole = later[0]
    else:
        work.add_step(
            whole, f"sum of {len(later)}", *later, title=f"all that comes back from step {t + 1}"
        )
    if direct in work.values:
        work.add_step(
            f"dh_{t}",
            "add future gradient",
            direct,
            whole,
            title=says + "directly and by later steps",
        )


def _entered(work: SolutionBuilder, t: int, letter: str) -> str:
    """The name of what went into a gate or candidate: with the bias if there is one."""
    return f"{letter}b_{t}" if f"{letter}b_{t}" in work.values else f"{letter}s_{t}"


def _rnn(work: SolutionBuilder, t: int, steps: int) -> None:
    says = f"∂J/∂{_entered(work, t, 'h')}: through tanh"
    work.add_step(f"dhs_{t}", "tanh backward", f"dh_{t}", f"h_{t}", title=says)
    work.add_step(
        f"p{t - 1}", "transpose times", "U", f"dhs_{t}", title=f"back to h_{t - 1} through U"
    )


def _gru(work: SolutionBuilder, t: int, steps: int) -> None:
    d, z, r, g, old = f"dh_{t}", f"z_{t}", f"r_{t}", f"g_{t}", f"h_{t - 1}"
    work.add_step(
        f"dz_{t}", "update gate backward", d, g, old, title=f"∂J/∂z_{t}: new less old state"
    )
    work.add_step(f"dzs_{t}", "σ backward", f"dz_{t}", z, title="through σ")
    work.add_step(f"dg_{t}", "gate backward", d, z, title=f"∂J/∂g_{t}: as far as it is taken")
    work.add_step(f"dgs_{t}", "tanh backward", f"dg_{t}", g, title="through tanh")
    work.add_step(f"dr_{t}", "gate backward", f"dgs_{t}", f"gh_{t}", title=f"∂J/∂r_{t}: by U h")
    work.add_step(f"drs_{t}", "σ backward", f"dr_{t}", r, title="through σ")
    work.add_step(f"dgh_{t}", "gate backward", f"dgs_{t}", r, title="∂J/∂(U h): as far as heard")
    back = f"back to {old} "
    work.add_step(f"k{t - 1}", "keep path backward", d, z, title=back + "along what was kept")
    work.add_step(f"p{t - 1}", "transpose times", "U_z", f"dzs_{t}", title=back + "through U_z")
    work.add_step(f"q{t - 1}", "transpose times", "U_r", f"drs_{t}", title=back + "through U_r")
    work.add_step(f"r{t - 1}", "transpose times", "U", f"dgh_{t}", title=back + "through U")


def _lstm(work: SolutionBuilder, t: int, steps: int) -> None:
    d, i, f, o, g, bent = f"dh_{t}", f"i_{t}", f"f_{t}", f"o_{t}", f"g_{t}", f"t_{t}"
    work.add_step(f"do_{t}", "gate backward", d, bent, title=f"∂J/∂o_{t}: by tanh of the cell")
    whole = f"hc_{t}" if t < steps else f"dc_{t}"
    work.add_step(whole, "cell backward", d, o, bent, title=f"∂J/∂c_{t}: by way of h_{t}")
    if t < steps:
        says = f"∂J/∂c_{t}: by h_{t} and by the next cell"
        work.add_step(f"dc_{t}", "add cell paths", whole, f"kc_{t}", title=says)
    c = f"dc_{t}"
    work.add_step(f"di_{t}", "gate backward", c, g, title=f"∂J/∂i_{t}: by the candidate")
    work.add_step(f"df_{t}", "gate backward", c, f"c_{t - 1}", title=f"∂J/∂f_{t}: by the old cell")
    work.add_step(f"dg_{t}", "gate backward", c, i, title=f"∂J/∂g_{t}: by the input gate")
    for gate in "ifo":
        work.add_step(
            f"d{gate}s_{t}", "σ backward", f"d{gate}_{t}", f"{gate}_{t}", title="through σ"
        )
    work.add_step(f"dgs_{t}", "tanh backward", f"dg_{t}", g, title="through tanh")
    says = f"back to c_{t - 1}, straight: by the forget gate"
    work.add_step(f"kc_{t - 1}" if t > 1 else "dc_0", "gate backward", c, f, title=says)
    for name, (gate, index) in zip("pqrs", GATE_SUFFIXES["lstm"].items(), strict=True):
        says = f"back to h_{t - 1} through U{index}"
        work.add_step(f"{name}{t - 1}", "transpose times", f"U{index}", f"d{gate}s_{t}", title=says)


def _weights(work: SolutionBuilder, cell: str, steps: int) -> list[str]:
    """The gradient of each weight, summed over the steps."""
    found = []
    for gate, index in GATE_SUFFIXES[cell].items():
        found.append(_summed(work, f"dW{index}", f"d{gate}s", "x", steps, 0))
        recurrent = "dgh" if cell == "gru" and gate == "g" else f"d{gate}s"
        found.append(_summed(work, f"dU{index}", recurrent, "h", steps, 1))
        if f"b{index}" in work.values:
            name, parts = f"db{index}", [f"d{gate}s_{t}" for t in range(1, steps + 1)]
            by = f"sum of {steps}" if steps > 1 else "copy"
            found.append(work.add_step(name, by, *parts, title=f"∂J/∂b{index}: over all steps"))
    return found


def _summed(work: SolutionBuilder, name: str, left: str, right: str, steps: int, lag: int) -> str:
    weight, parts = name[1:], []
    for t in range(1, steps + 1):
        whole = name if steps == 1 else f"{name.replace('_', '')}_{t}"
        says = f"∂J/∂{weight}: the part of step {t}" if steps > 1 else f"∂J/∂{weight}"
        taken = (f"{left}_{t}", f"{right}_{t - lag}")
        parts.append(work.add_step(whole, "product with transpose", *taken, title=says))
        if lag:
            wrong = work.values[f"{left}_{t}"] * work.values[f"{right}_{t}"].T
            work.add_mistake(
                whole, "the state after the step was taken, not the one before", M(wrong)
            )
    if steps == 1:
        return name
    return work.add_step(name, f"sum of {steps}", *parts, title=f"∂J/∂{weight}: over all steps")
