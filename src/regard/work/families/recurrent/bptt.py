"""Back-propagation through time (BPTT) for RNN, GRU and LSTM."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.numbers import parse_matrix, parse_number
from regard.work.families.recurrent.cells import (
    CELL_WEIGHTS,
    GATE_SUFFIXES,
    add_time_step,
    start_recurrent,
)
from regard.work.families.recurrent.forward_mode import add_forward_mode
from regard.work.families.recurrent.jacobians import (
    add_clipping,
    add_lstm_jacobians,
    add_rnn_jacobians,
)
from regard.work.families.registry import check_choice, check_given, expand_names, family
from regard.work.rules import M
from regard.work.rules.recurrent import MAX_SUM_TERMS
from regard.work.solution import Solution, SolutionBuilder


@family("bptt")
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
    check_choice("cell", cell, CELL_WEIGHTS)
    check_given(f"bptt of {cell}", given, expand_names(f"@{cell} target dh"))
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
        _add_state_gradient(builder, t)
        {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[cell](builder, t)
    _add_state_gradient(builder, 0)
    gradients = _add_weight_gradients(builder, cell, steps)
    if max_grad_norm is not None:
        if builder.has_symbols:
            raise WorkError(
                f"max_grad_norm: needs numbers alone, got {max_grad_norm} beside symbols"
            )
        max_norm = parse_number(max_grad_norm)
        if not max_norm.is_positive:
            raise WorkError(f"max_grad_norm: needs a norm above 0, got {max_grad_norm}")
        add_clipping(builder, gradients, max_norm)
    if forward_mode is not None:
        add_forward_mode(builder, steps, forward_mode)
    if cell == "rnn" and not builder.has_symbols:
        add_rnn_jacobians(builder, steps)
    elif cell == "lstm" and not builder.has_symbols:
        add_lstm_jacobians(builder, steps)
    return builder.build()


def _add_loss(builder: SolutionBuilder, steps: int, given: Mapping[str, Any]) -> None:
    """Add the direct partials e_t of the loss, and J itself where it is known."""
    last = f"h_{steps}"
    size = builder.values[last].rows
    if "dh" in given:
        dh = parse_matrix(given["dh"], "dh")
        if dh.shape != (size, steps):
            rule = f"{size} rows of {steps} numbers, one column per step"
            raise WorkError(f"dh: needs {rule}, got {dh.rows}×{dh.cols}")
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


def _add_state_gradient(builder: SolutionBuilder, t: int) -> None:
    """Add dh_t: the direct partial plus the gradient from step t + 1."""
    future = [f"{letter}{t}" for letter in "kpqrs" if f"{letter}{t}" in builder.values]
    name, direct, title = f"dh_{t}", f"e_{t}", f"∂J/∂h_{t}: "
    if not future:
        builder.add_step(name, "copy", direct, title=title + "the last step")
        return
    has_direct, total, later = (
        direct in builder.values,
        future[0],
        f"the gradient from step {t + 1}",
    )
    if len(future) > 1:
        total = f"later_{t}" if has_direct else name
        builder.add_step(total, f"sum of {len(future)}", *future, title=later)
    elif not has_direct:
        builder.add_step(name, "copy", total, title=title + later)
    if has_direct:
        title += "direct and from later steps"
        builder.add_step(name, "add future gradient", direct, total, title=title)


def _rnn(builder: SolutionBuilder, t: int) -> None:
    preactivation = f"hb_{t}" if f"hb_{t}" in builder.values else f"hs_{t}"
    builder.add_steps(
        (f"dhs_{t}", "tanh backward", f"dh_{t} h_{t}", f"∂J/∂{preactivation}: through tanh"),
        (f"p{t - 1}", "transpose times", f"U dhs_{t}", f"back to h_{t - 1} through U"),
    )


def _gru(builder: SolutionBuilder, t: int) -> None:
    d, z, r, g, old = f"dh_{t}", f"z_{t}", f"r_{t}", f"g_{t}", f"h_{t - 1}"
    back = f"back to {old}"
    builder.add_steps(
        (f"dz_{t}", "update gate backward", f"{d} {g} {old}", f"∂J/∂{z}: new minus old state"),
        (f"dzs_{t}", "σ backward", f"dz_{t} {z}", "through σ"),
        (f"dg_{t}", "gate backward", f"{d} {z}", f"∂J/∂{g}: times the update gate"),
        (f"dgs_{t}", "tanh backward", f"dg_{t} {g}", "through tanh"),
        (f"dr_{t}", "gate backward", f"dgs_{t} gh_{t}", f"∂J/∂{r}: times U h"),
        (f"drs_{t}", "σ backward", f"dr_{t} {r}", "through σ"),
        (f"dgh_{t}", "gate backward", f"dgs_{t} {r}", "∂J/∂(U h): times the reset gate"),
        (f"k{t - 1}", "keep path backward", f"{d} {z}", f"{back} along the direct path"),
        (f"p{t - 1}", "transpose times", f"U_z dzs_{t}", f"{back} through U_z"),
        (f"q{t - 1}", "transpose times", f"U_r drs_{t}", f"{back} through U_r"),
        (f"r{t - 1}", "transpose times", f"U dgh_{t}", f"{back} through U"),
    )


def _lstm(builder: SolutionBuilder, t: int) -> None:
    d, c, later = f"dh_{t}", f"dc_{t}", f"kc_{t}"
    is_last = later not in builder.values
    tanh, total = f"t_{t}", c if is_last else f"hc_{t}"
    builder.add_steps(
        (f"do_{t}", "gate backward", f"{d} {tanh}", f"∂J/∂o_{t}: times tanh of the cell"),
        (total, "cell backward", f"{d} o_{t} {tanh}", f"∂J/∂c_{t}: through h_{t}"),
    )
    if not is_last:
        title = f"∂J/∂c_{t}: through h_{t} and the next cell"
        builder.add_step(c, "add cell paths", total, later, title=title)
    kept = f"kc_{t - 1}" if t > 1 else "dc_0"
    builder.add_steps(
        (f"di_{t}", "gate backward", f"{c} g_{t}", f"∂J/∂i_{t}: times the candidate"),
        (f"df_{t}", "gate backward", f"{c} c_{t - 1}", f"∂J/∂f_{t}: times the previous cell"),
        (f"dg_{t}", "gate backward", f"{c} i_{t}", f"∂J/∂g_{t}: times the input gate"),
        (f"dis_{t}", "σ backward", f"di_{t} i_{t}", "through σ"),
        (f"dfs_{t}", "σ backward", f"df_{t} f_{t}", "through σ"),
        (f"dos_{t}", "σ backward", f"do_{t} o_{t}", "through σ"),
        (f"dgs_{t}", "tanh backward", f"dg_{t} g_{t}", "through tanh"),
        (kept, "gate backward", f"{c} f_{t}", f"back to c_{t - 1} directly: times the forget gate"),
    )
    for name, (gate, suffix) in zip("pqrs", GATE_SUFFIXES["lstm"].items(), strict=True):
        title = f"back to h_{t - 1} through U{suffix}"
        inputs = (f"U{suffix}", f"d{gate}s_{t}")
        builder.add_step(f"{name}{t - 1}", "transpose times", *inputs, title=title)


def _add_weight_gradients(builder: SolutionBuilder, cell: str, steps: int) -> list[str]:
    """Add the gradient of each weight, summed over time."""
    gradients = []
    for gate, suffix in GATE_SUFFIXES[cell].items():
        gradients.append(_add_summed(builder, f"dW{suffix}", f"d{gate}s", "x", steps, 0))
        recurrent = "dgh" if cell == "gru" and gate == "g" else f"d{gate}s"
        gradients.append(_add_summed(builder, f"dU{suffix}", recurrent, "h", steps, 1))
        if f"b{suffix}" in builder.values:
            parts = [f"d{gate}s_{t}" for t in range(1, steps + 1)]
            rule = f"sum of {steps}" if steps > 1 else "copy"
            title = f"∂J/∂b{suffix}: summed over steps"
            gradients.append(builder.add_step(f"db{suffix}", rule, *parts, title=title))
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
            wrong = M(builder.values[f"{left}_{t}"] * builder.values[f"{right}_{t}"].T)
            description = "the state after the step was used, not the previous one"
            builder.add_mistake(total, description, wrong)
    if steps == 1:
        return name
    title = f"∂J/∂{weight}: summed over steps"
    return builder.add_step(name, f"sum of {steps}", *parts, title=title)
