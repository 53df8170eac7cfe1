"""Back-propagation through time (BPTT) for RNN, GRU and LSTM."""

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
    """Gradient of a loss J with respect to every weight of a cell.

    dh_t = direct part + Σ over successors of h_t,   dW = Σ_t ds_t x_tᵀ,   dU = Σ_t ds_t h_{t-1}ᵀ

    dv stands for ∂J/∂v. J is the sum of the last state, or with `target` half the squared distance
    from it; with `dh` (one column per step) the direct partials ∂J/∂h_t are given instead.

    Args:
        given: matrices by name.
        cell: "rnn", "gru" or "lstm".
        max_grad_norm: clip the gradient to this norm.
        forward_mode: LSTM weight whose gradient is also computed in forward mode.

    >>> solution = solve_bptt({"x": [[0, 0]], "W": 1, "U": "1/2"})
    >>> solution["dh_1"], solution["dh_0"]
    (Matrix([[1/2]]), Matrix([[1/4]]))
    """
    check_cell_given(cell, given, "bptt of {}", "target dh")
    cell_given = {name: value for name, value in given.items() if name not in ("dh", "target")}
    builder, steps = start_recurrent(cell, cell_given, "bptt")
    if steps > MAX_SUM_TERMS:
        raise WorkError(f"x: needs at most {MAX_SUM_TERMS} inputs, one column each, got {steps}")
    if forward_mode is not None and cell != "lstm":
        raise WorkError(f'forward_mode: needs an lstm, got {cell}; try cell = "lstm"')
    for t in range(1, steps + 1):
        add_time_step(builder, cell, t)
    _add_loss(builder, steps, given)
    for t in range(steps, 0, -1):
        _add_state_gradient(builder, t, steps)
        {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[cell](builder, t, steps)
    _add_state_gradient(builder, 0, steps)
    gradients = _add_weight_gradients(builder, cell, steps)
    symbols = any(value.free_symbols for value in builder.given.values())
    if max_grad_norm is not None:
        if symbols:
            raise WorkError(
                f"max_grad_norm: needs numbers alone, got {max_grad_norm} beside symbols"
            )
        max_norm = parse_number(max_grad_norm)
        if not max_norm.is_positive:
            raise WorkError(f"max_grad_norm: needs a norm above 0, got {max_grad_norm}")
        add_clipping(builder, gradients, max_norm)
    if forward_mode is not None:
        add_forward_mode(builder, steps, forward_mode)
    if not symbols:
        {"rnn": add_rnn_jacobians, "lstm": add_lstm_jacobians}.get(cell, lambda *_: None)(
            builder, steps
        )
    return builder.build()


def _add_loss(builder: SolutionBuilder, steps: int, given: Mapping[str, Any]) -> None:
    """Add the direct partials e_t of the loss, and J itself where it is known."""
    last = f"h_{steps}"
    size = builder.values[last].rows
    if "dh" in given:
        dh = parse_matrix(given["dh"], "dh")
        if dh.shape != (size, steps):
            raise WorkError(
                f"dh: needs {size} rows of {steps} numbers, one column per step, got "
                f"{dh.rows}×{dh.cols}"
            )
        for t in range(1, steps + 1):
            if t == steps or any(dh.col(t - 1)):
                builder.add_given(f"e_{t}", dh.col(t - 1))
    elif "target" in given:
        target = parse_matrix(given["target"], "target")
        target = M(target.T) if target.shape == (1, size) else target
        if target.shape != (size, 1):
            raise WorkError(f"target: needs {size} numbers, got {target.rows}×{target.cols}")
        builder.add_given("y", target)
        builder.add_step("J", "half square", last, "y", title="the loss: half the squared distance")
        builder.add_step(f"e_{steps}", "subtract", last, "y", title=f"∂J/∂{last}, direct part")
    else:
        builder.add_step("J", "sum of entries", last, title="the loss: the sum of the last state")
        builder.add_step(f"e_{steps}", "ones like", last, title=f"∂J/∂{last}, direct part")


def _add_state_gradient(builder: SolutionBuilder, t: int, steps: int) -> None:
    """Add dh_t: the direct partial plus the gradient from step t + 1."""
    future = [
        name for name in (f"k{t}", f"p{t}", f"q{t}", f"r{t}", f"s{t}") if name in builder.values
    ]
    direct, title = f"e_{t}", f"∂J/∂h_{t}: "
    if not future:
        builder.add_step(f"dh_{t}", "copy", direct, title=title + "the last step")
        return
    total = f"dh_{t}" if direct not in builder.values else f"later_{t}"
    if len(future) == 1:
        if total == f"dh_{t}":
            builder.add_step(
                total, "copy", *future, title=title + f"the gradient from step {t + 1}"
            )
        else:
            total = future[0]
    else:
        builder.add_step(
            total, f"sum of {len(future)}", *future, title=f"the gradient from step {t + 1}"
        )
    if direct in builder.values:
        builder.add_step(
            f"dh_{t}",
            "add future gradient",
            direct,
            total,
            title=title + "direct and from later steps",
        )


def _preactivation(builder: SolutionBuilder, t: int, letter: str) -> str:
    """Name of the preactivation of a gate or candidate, with the bias if there is one."""
    return f"{letter}b_{t}" if f"{letter}b_{t}" in builder.values else f"{letter}s_{t}"


def _rnn(builder: SolutionBuilder, t: int, steps: int) -> None:
    title = f"∂J/∂{_preactivation(builder, t, 'h')}: through tanh"
    builder.add_step(f"dhs_{t}", "tanh backward", f"dh_{t}", f"h_{t}", title=title)
    builder.add_step(
        f"p{t - 1}", "transpose times", "U", f"dhs_{t}", title=f"back to h_{t - 1} through U"
    )


def _gru(builder: SolutionBuilder, t: int, steps: int) -> None:
    d, z, r, g, old = f"dh_{t}", f"z_{t}", f"r_{t}", f"g_{t}", f"h_{t - 1}"
    builder.add_step(
        f"dz_{t}", "update gate backward", d, g, old, title=f"∂J/∂z_{t}: new minus old state"
    )
    builder.add_step(f"dzs_{t}", "σ backward", f"dz_{t}", z, title="through σ")
    builder.add_step(f"dg_{t}", "gate backward", d, z, title=f"∂J/∂g_{t}: times the update gate")
    builder.add_step(f"dgs_{t}", "tanh backward", f"dg_{t}", g, title="through tanh")
    builder.add_step(
        f"dr_{t}", "gate backward", f"dgs_{t}", f"gh_{t}", title=f"∂J/∂r_{t}: times U h"
    )
    builder.add_step(f"drs_{t}", "σ backward", f"dr_{t}", r, title="through σ")
    builder.add_step(
        f"dgh_{t}", "gate backward", f"dgs_{t}", r, title="∂J/∂(U h): times the reset gate"
    )
    back = f"back to {old} "
    builder.add_step(f"k{t - 1}", "keep path backward", d, z, title=back + "along the direct path")
    builder.add_step(f"p{t - 1}", "transpose times", "U_z", f"dzs_{t}", title=back + "through U_z")
    builder.add_step(f"q{t - 1}", "transpose times", "U_r", f"drs_{t}", title=back + "through U_r")
    builder.add_step(f"r{t - 1}", "transpose times", "U", f"dgh_{t}", title=back + "through U")


def _lstm(builder: SolutionBuilder, t: int, steps: int) -> None:
    d, i, f, o, g, tanh = f"dh_{t}", f"i_{t}", f"f_{t}", f"o_{t}", f"g_{t}", f"t_{t}"
    builder.add_step(
        f"do_{t}", "gate backward", d, tanh, title=f"∂J/∂o_{t}: times tanh of the cell"
    )
    total = f"hc_{t}" if t < steps else f"dc_{t}"
    builder.add_step(total, "cell backward", d, o, tanh, title=f"∂J/∂c_{t}: through h_{t}")
    if t < steps:
        title = f"∂J/∂c_{t}: through h_{t} and the next cell"
        builder.add_step(f"dc_{t}", "add cell paths", total, f"kc_{t}", title=title)
    c = f"dc_{t}"
    builder.add_step(f"di_{t}", "gate backward", c, g, title=f"∂J/∂i_{t}: times the candidate")
    builder.add_step(
        f"df_{t}", "gate backward", c, f"c_{t - 1}", title=f"∂J/∂f_{t}: times the previous cell"
    )
    builder.add_step(f"dg_{t}", "gate backward", c, i, title=f"∂J/∂g_{t}: times the input gate")
    for gate in "ifo":
        builder.add_step(
            f"d{gate}s_{t}", "σ backward", f"d{gate}_{t}", f"{gate}_{t}", title="through σ"
        )
    builder.add_step(f"dgs_{t}", "tanh backward", f"dg_{t}", g, title="through tanh")
    title = f"back to c_{t - 1} directly: times the forget gate"
    builder.add_step(f"kc_{t - 1}" if t > 1 else "dc_0", "gate backward", c, f, title=title)
    for name, (gate, suffix) in zip("pqrs", GATE_SUFFIXES["lstm"].items(), strict=True):
        title = f"back to h_{t - 1} through U{suffix}"
        builder.add_step(
            f"{name}{t - 1}", "transpose times", f"U{suffix}", f"d{gate}s_{t}", title=title
        )


def _add_weight_gradients(builder: SolutionBuilder, cell: str, steps: int) -> list[str]:
    """Add the gradient of each weight, summed over time."""
    gradients = []
    for gate, suffix in GATE_SUFFIXES[cell].items():
        gradients.append(_add_summed(builder, f"dW{suffix}", f"d{gate}s", "x", steps, 0))
        recurrent = "dgh" if cell == "gru" and gate == "g" else f"d{gate}s"
        gradients.append(_add_summed(builder, f"dU{suffix}", recurrent, "h", steps, 1))
        if f"b{suffix}" in builder.values:
            name, parts = f"db{suffix}", [f"d{gate}s_{t}" for t in range(1, steps + 1)]
            rule = f"sum of {steps}" if steps > 1 else "copy"
            gradients.append(
                builder.add_step(name, rule, *parts, title=f"∂J/∂b{suffix}: summed over steps")
            )
    return gradients


def _add_summed(
    builder: SolutionBuilder, name: str, left: str, right: str, steps: int, lag: int
) -> str:
    weight, parts = name[1:], []
    for t in range(1, steps + 1):
        total = name if steps == 1 else f"{name.replace('_', '')}_{t}"
        title = f"∂J/∂{weight}: the term of step {t}" if steps > 1 else f"∂J/∂{weight}"
        inputs = (f"{left}_{t}", f"{right}_{t - lag}")
        parts.append(builder.add_step(total, "product with transpose", *inputs, title=title))
        if lag:
            wrong = builder.values[f"{left}_{t}"] * builder.values[f"{right}_{t}"].T
            builder.add_mistake(
                total, "the state after the step was used, not the previous one", M(wrong)
            )
    if steps == 1:
        return name
    return builder.add_step(
        name, f"sum of {steps}", *parts, title=f"∂J/∂{weight}: summed over steps"
    )
