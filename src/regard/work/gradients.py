"""Back-propagation through time by hand: every partial of a small RNN, GRU or LSTM."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.gradient_paths import clipped, lstm_paths, rnn_paths
from regard.work.numbers import matrix, number
from regard.work.recurrent import begun, need_known_cell
from regard.work.recurrent import forward as one_step
from regard.work.rules import M
from regard.work.rules.gradients import MOST
from regard.work.sensitivity import sensitivity
from regard.work.solution import Solution, Working

WEIGHTS = {
    "rnn": {"h": ""},
    "gru": {"z": "_z", "r": "_r", "g": ""},
    "lstm": {"i": "_i", "f": "_f", "o": "_o", "g": "_c"},
}


def bptt(
    given: Mapping[str, Any], *, cell: str = "rnn", clip: Any = None, forward: str | None = None
) -> Solution:
    """The gradient of a loss J for every weight of a cell: forward, then back through time.

    dh_t = direct part + Σ over what h_t feeds,   dW = Σ_t ds_t x_tᵀ,   dU = Σ_t ds_t h_{t-1}ᵀ

    A name dv stands for ∂J/∂v. J is the sum of the last state, or with `target` half the squared
    distance from it; with `dh` (a column a step) the direct partials ∂J/∂h_t are given instead.
    `clip` is the largest norm that the whole gradient may have; `forward` names a weight of an LSTM
    whose gradient is worked forward in time too.

    >>> worked = bptt({"x": [[0, 0]], "W": 1, "U": "1/2"})
    >>> worked["dh_1"], worked["dh_0"]
    (Matrix([[1/2]]), Matrix([[1/4]]))
    """
    need_known_cell(cell, given, "bptt of {}")
    told = {name: value for name, value in given.items() if name not in ("dh", "target")}
    work, steps = begun(cell, told)
    work.family = "bptt"
    if steps > MOST:
        raise WorkError(f"x: needs at most {MOST} inputs, a column each, got {steps}")
    if forward is not None and cell != "lstm":
        raise WorkError(f'forward: needs an lstm, got {cell}; try cell = "lstm"')
    for t in range(1, steps + 1):
        one_step(work, cell, t)
    _loss(work, steps, given)
    for t in range(steps, 0, -1):
        _arrived(work, t, steps)
        {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[cell](work, t, steps)
    _arrived(work, 0, steps)
    found = _weights(work, cell, steps)
    symbols = any(value.free_symbols for value in work.given.values())
    if clip is not None:
        if symbols:
            raise WorkError(f"clip: needs numbers alone, got {clip} beside symbols")
        most = number(clip)
        if not most.is_positive:
            raise WorkError(f"clip: needs a norm above 0, got {clip}")
        clipped(work, found, most)
    if forward is not None:
        sensitivity(work, steps, forward)
    if not symbols:
        {"rnn": rnn_paths, "lstm": lstm_paths}.get(cell, lambda *_: None)(work, steps)
    return work.done()


def _loss(work: Working, steps: int, given: Mapping[str, Any]) -> None:
    """The direct partials e_t of the loss, given or worked; J itself where it is known."""
    last = f"h_{steps}"
    size = work.values[last].rows
    if "dh" in given:
        told = matrix(given["dh"], "dh")
        if told.shape != (size, steps):
            raise WorkError(
                f"dh: needs {size} rows of {steps} numbers, a column a step, got "
                f"{told.rows}×{told.cols}"
            )
        for t in range(1, steps + 1):
            if t == steps or any(told.col(t - 1)):
                work.given[f"e_{t}"] = work.values[f"e_{t}"] = M(told.col(t - 1))
    elif "target" in given:
        told = matrix(given["target"], "target")
        told = M(told.T) if told.shape == (1, size) else told
        if told.shape != (size, 1):
            raise WorkError(f"target: needs {size} numbers, got {told.rows}×{told.cols}")
        work.given["y"] = work.values["y"] = told
        work.step("J", "half square", last, "y", says="the loss: half the squared distance")
        work.step(f"e_{steps}", "subtract", last, "y", says=f"∂J/∂{last}, directly")
    else:
        work.step("J", "sum of entries", last, says="the loss: the sum of the last state")
        work.step(f"e_{steps}", "ones like", last, says=f"∂J/∂{last}, directly")


def _arrived(work: Working, t: int, steps: int) -> None:
    """dh_t from what the loss says directly and what comes back from step t + 1."""
    later = [name for name in (f"k{t}", f"p{t}", f"q{t}", f"r{t}", f"s{t}") if name in work.values]
    direct, says = f"e_{t}", f"∂J/∂h_{t}, in all: "
    if not later:
        work.step(f"dh_{t}", "same", direct, says=says + "nothing comes after it")
        return
    whole = f"dh_{t}" if direct not in work.values else f"later_{t}"
    if len(later) == 1:
        if whole == f"dh_{t}":
            work.step(whole, "same", *later, says=says + f"what comes back from step {t + 1}")
        else:
            whole = later[0]
    else:
        work.step(
            whole, f"sum of {len(later)}", *later, says=f"all that comes back from step {t + 1}"
        )
    if direct in work.values:
        work.step(
            f"dh_{t}", "direct and later", direct, whole, says=says + "directly and by later steps"
        )


def _entered(work: Working, t: int, letter: str) -> str:
    """The name of what went into a gate or candidate: with the bias if there is one."""
    return f"{letter}b_{t}" if f"{letter}b_{t}" in work.values else f"{letter}s_{t}"


def _rnn(work: Working, t: int, steps: int) -> None:
    says = f"∂J/∂{_entered(work, t, 'h')}: through tanh"
    work.step(f"dhs_{t}", "through tanh", f"dh_{t}", f"h_{t}", says=says)
    work.step(f"p{t - 1}", "transpose times", "U", f"dhs_{t}", says=f"back to h_{t - 1} through U")


def _gru(work: Working, t: int, steps: int) -> None:
    d, z, r, g, old = f"dh_{t}", f"z_{t}", f"r_{t}", f"g_{t}", f"h_{t - 1}"
    work.step(f"dz_{t}", "by new less old", d, g, old, says=f"∂J/∂z_{t}: new less old state")
    work.step(f"dzs_{t}", "through σ", f"dz_{t}", z, says="through σ")
    work.step(f"dg_{t}", "by what it gates", d, z, says=f"∂J/∂g_{t}: as far as it is taken")
    work.step(f"dgs_{t}", "through tanh", f"dg_{t}", g, says="through tanh")
    work.step(f"dr_{t}", "by what it gates", f"dgs_{t}", f"gh_{t}", says=f"∂J/∂r_{t}: by U h")
    work.step(f"drs_{t}", "through σ", f"dr_{t}", r, says="through σ")
    work.step(f"dgh_{t}", "by what it gates", f"dgs_{t}", r, says="∂J/∂(U h): as far as heard")
    back = f"back to {old} "
    work.step(f"k{t - 1}", "by what is kept", d, z, says=back + "along what was kept")
    work.step(f"p{t - 1}", "transpose times", "U_z", f"dzs_{t}", says=back + "through U_z")
    work.step(f"q{t - 1}", "transpose times", "U_r", f"drs_{t}", says=back + "through U_r")
    work.step(f"r{t - 1}", "transpose times", "U", f"dgh_{t}", says=back + "through U")


def _lstm(work: Working, t: int, steps: int) -> None:
    d, i, f, o, g, bent = f"dh_{t}", f"i_{t}", f"f_{t}", f"o_{t}", f"g_{t}", f"t_{t}"
    work.step(f"do_{t}", "by what it gates", d, bent, says=f"∂J/∂o_{t}: by tanh of the cell")
    whole = f"hc_{t}" if t < steps else f"dc_{t}"
    work.step(whole, "from state to cell", d, o, bent, says=f"∂J/∂c_{t}: by way of h_{t}")
    if t < steps:
        says = f"∂J/∂c_{t}: by h_{t} and by the next cell"
        work.step(f"dc_{t}", "two paths", whole, f"kc_{t}", says=says)
    c = f"dc_{t}"
    work.step(f"di_{t}", "by what it gates", c, g, says=f"∂J/∂i_{t}: by the candidate")
    work.step(f"df_{t}", "by what it gates", c, f"c_{t - 1}", says=f"∂J/∂f_{t}: by the old cell")
    work.step(f"dg_{t}", "by what it gates", c, i, says=f"∂J/∂g_{t}: by the input gate")
    for gate in "ifo":
        work.step(f"d{gate}s_{t}", "through σ", f"d{gate}_{t}", f"{gate}_{t}", says="through σ")
    work.step(f"dgs_{t}", "through tanh", f"dg_{t}", g, says="through tanh")
    says = f"back to c_{t - 1}, straight: by the forget gate"
    work.step(f"kc_{t - 1}" if t > 1 else "dc_0", "by what it gates", c, f, says=says)
    for name, (gate, index) in zip("pqrs", WEIGHTS["lstm"].items(), strict=True):
        says = f"back to h_{t - 1} through U{index}"
        work.step(f"{name}{t - 1}", "transpose times", f"U{index}", f"d{gate}s_{t}", says=says)


def _weights(work: Working, cell: str, steps: int) -> list[str]:
    """The gradient of each weight, summed over the steps."""
    found = []
    for gate, index in WEIGHTS[cell].items():
        found.append(_summed(work, f"dW{index}", f"d{gate}s", "x", steps, 0))
        recurrent = "dgh" if cell == "gru" and gate == "g" else f"d{gate}s"
        found.append(_summed(work, f"dU{index}", recurrent, "h", steps, 1))
        if f"b{index}" in work.values:
            name, parts = f"db{index}", [f"d{gate}s_{t}" for t in range(1, steps + 1)]
            by = f"sum of {steps}" if steps > 1 else "same"
            found.append(work.step(name, by, *parts, says=f"∂J/∂b{index}: over all steps"))
    return found


def _summed(work: Working, name: str, left: str, right: str, steps: int, lag: int) -> str:
    weight, parts = name[1:], []
    for t in range(1, steps + 1):
        whole = name if steps == 1 else f"{name.replace('_', '')}_{t}"
        says = f"∂J/∂{weight}: the part of step {t}" if steps > 1 else f"∂J/∂{weight}"
        taken = (f"{left}_{t}", f"{right}_{t - lag}")
        parts.append(work.step(whole, "product with transpose", *taken, says=says))
        if lag:
            wrong = work.values[f"{left}_{t}"] * work.values[f"{right}_{t}"].T
            work.slip(whole, "the state after the step was taken, not the one before", M(wrong))
    if steps == 1:
        return name
    return work.step(name, f"sum of {steps}", *parts, says=f"∂J/∂{weight}: over all steps")
