"""Back-propagation through time (BPTT) for RNN, GRU and LSTM, and its comparison with autograd."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.errors import WorkError
from regard.work.exact import evaluate_digits, parse_matrix, parse_number
from regard.work.families.recurrent.cells import (
    CELL_WEIGHTS,
    GATE_SUFFIXES,
    add_time_step,
    start_recurrent,
)
from regard.work.families.recurrent.jacobians import (
    add_clipping,
    add_forward_mode,
    add_lstm_jacobians,
    add_rnn_jacobians,
)
from regard.work.families.registry import (
    DECLARATIONS,
    check_choice,
    check_given,
    declared_steps,
    expand_names,
    family,
)
from regard.work.rules import M, Matrix
from regard.work.rules.recurrent import MAX_SUM_TERMS
from regard.work.solution import Solution, SolutionBuilder

if TYPE_CHECKING:
    from torch import Tensor


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
            raise WorkError(f"max_grad_norm: needs numbers alone, got {max_grad_norm} and symbols")
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
    builder.add_steps(*declared_steps("rnn", "backward", t=t, preactivation=preactivation, p=t - 1))


def _gru(builder: SolutionBuilder, t: int) -> None:
    builder.add_steps(*declared_steps("gru", "backward", t=t, p=t - 1))


def _lstm(builder: SolutionBuilder, t: int) -> None:
    c, later = f"dc_{t}", f"kc_{t}"
    is_last = later not in builder.values
    total = c if is_last else f"hc_{t}"
    builder.add_steps(*declared_steps("lstm", "backward_output", t=t, total=total))
    if not is_last:
        title = f"∂J/∂c_{t}: through h_{t} and the next cell"
        builder.add_step(c, "add cell paths", total, later, title=title)
    before = f"kc_{t - 1}" if t > 1 else "dc_0"
    builder.add_steps(*declared_steps("lstm", "backward", t=t, p=t - 1, before=before))
    for name, (gate, suffix) in zip("pqrs", GATE_SUFFIXES["lstm"].items(), strict=True):
        title = f"back to h_{t - 1} through U{suffix}"
        inputs = (f"U{suffix}", f"d{gate}s_{t}")
        builder.add_step(f"{name}{t - 1}", "transpose times", *inputs, title=title)


def _add_weight_gradients(builder: SolutionBuilder, cell: str, steps: int) -> list[str]:
    """Add the gradient of each weight, summed over time."""
    gradients, declared = [], DECLARATIONS[cell]["gradients"]
    for gate, suffix in GATE_SUFFIXES[cell].items():
        inner, through = declared[gate], declared["U" if cell == "gru" and gate == "g" else gate]
        lines = {"W": f"({inner}) x_tᵀ", "U": f"({through}) h_(t-1)ᵀ", "b": inner}
        builder.formulas |= {
            f"d{weight}{suffix}": f"∂J/∂{weight}{suffix} = Σ_t {line}"
            for weight, line in lines.items()
            if f"{weight}{suffix}" in builder.values
        }
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


# forward rules of the cells, in torch
TORCH_RULES: dict[str, Callable[..., Any]] = {
    "product": lambda a, b: a @ b,
    "add": lambda a, b: a + b,
    "elementwise product": lambda a, b: a * b,
    "sigmoid": lambda a: a.sigmoid(),
    "tanh": lambda a: a.tanh(),
    "gated mix": lambda z, u, v: (1 - z) * u + z * v,
}


class GradientComparison(NamedTuple):
    """One gradient: parameter name, largest absolute entry, and largest error against autograd."""

    name: str
    max_abs: float
    max_error: float


def compare_with_autograd(solution: Solution) -> list[GradientComparison]:
    """Compare every gradient of a bptt solution with autograd in float64.

    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> solution = solve_bptt({"x": [[1, 0]], "W": 1, "U": "1/2"})
    >>> [comparison.name for comparison in compare_with_autograd(solution)]
    ['W', 'U', 'h_0']
    """
    if solution.family != "bptt" or any(v.free_symbols for v in solution.given.values()):
        raise WorkError(f"autograd: needs the family bptt with numbers, got {solution.family}")
    leaves = {name: _tensor(value).requires_grad_() for name, value in solution.given.items()}
    values: dict[str, Any] = dict(leaves)
    for step in solution.steps:
        if step.rule in TORCH_RULES and all(name in values for name in step.inputs):
            values[step.name] = TORCH_RULES[step.rule](*(values[name] for name in step.inputs))
    by_hand = solution.values()
    # any loss J with the direct partials e_t has the same gradients
    loss: Any = sum(
        (_tensor(e) * values[f"h{name[1:]}"]).sum()
        for name, e in by_hand.items()
        if name.startswith("e_") and f"h{name[1:]}" in by_hand
    )
    loss.backward()
    comparisons = []
    for name, leaf in leaves.items():
        if f"d{name}" in by_hand and leaf.grad is not None:
            expected = _tensor(by_hand[f"d{name}"])
            error = (expected - leaf.grad).abs().max().item()
            comparisons.append(GradientComparison(name, expected.abs().max().item(), error))
    return comparisons


def autograd_as_text(comparisons: list[GradientComparison]) -> str:
    """Format the comparison as a table.

    >>> print(autograd_as_text([GradientComparison("W", 0.5, 0.0)]))
    ∂J/∂       max |value|      autograd error
    W             0.500000     less than 1e-12
    """
    width = max(5, *(len(comparison.name) for comparison in comparisons))
    lines = [f"{'∂J/∂':<{width}}  {'max |value|':>15}  {'autograd error':>18}"]
    for name, max_abs, error in comparisons:
        off = "less than 1e-12" if error < 1e-12 else f"{error:.1e}"
        lines.append(f"{name:<{width}}  {max_abs:>15.6f}  {off:>18}")
    return "\n".join(lines)


def _tensor(value: Matrix) -> "Tensor":
    import torch  # slow to import; the rest of work does not need it

    rows = value.applyfunc(lambda x: evaluate_digits(x, 20)).tolist()
    return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)
