"""Vanishing and exploding gradients: Jacobian products, forget gates, clipping."""

from typing import Any

from regard.work.exact.evaluate import to_float
from regard.work.exact.numbers import format_decimal
from regard.work.families.registry import declared_steps
from regard.work.solution import SolutionBuilder


def add_rnn_jacobians(builder: SolutionBuilder, steps: int) -> None:
    """Add the Jacobians of an RNN, their products, and norms by distance.

    ∂h_T/∂h_t = Π diag(1 - h²) U,   ‖∂h_T/∂h_t‖ ≤ ‖U‖^(T - t)

    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> solution = solve_bptt({"x": [[0, 0]], "W": 1, "U": "1/2"})
    >>> solution["G_0"], solution["ρ"]
    (Matrix([[1/4]]), Matrix([[1/2]]))
    """
    builder.add_steps(*declared_steps("bptt", "norms_of_u"))
    for t in range(1, steps + 1):
        title = f"∂h_{t}/∂h_{t - 1}: the Jacobian of step {t}"
        builder.add_step(f"J_{t}", "Jacobian of a step", f"h_{t}", "U", title=title)
    product = f"J_{steps}"
    norms_by_distance = []
    for t in range(steps - 1, -1, -1):
        title = f"∂h_{steps}/∂h_{t}: over a distance of {steps - t}"
        step = ("copy", product) if t == steps - 1 else ("product", product, f"J_{t + 1}")
        product = builder.add_step(f"G_{t}", *step, title=title)
        builder.add_step(f"n_{t}", "norm of 1", product, title="its Frobenius norm")
        norm = format_decimal(builder.values[f"n_{t}"][0], 3)
        norms_by_distance.append(f"{norm} at distance {steps - t}")
    builder.add_remark(f"‖∂h_{steps}/∂h_t‖ is {', '.join(norms_by_distance)}.")
    builder.add_remark(_radius_remark(builder.number("ρ"), builder.number("u")))
    builder.add_remark(
        "The derivative of tanh is at most 1 (of σ at most ¼): it can only shrink a gradient. "
        "Only U can make it explode."
    )


def _radius_remark(radius: float, gain: float) -> str:
    norms = f"ρ(U) = {radius:.4g} and ‖U‖ = {gain:.4g}"
    if gain < 1:
        return (
            f"{norms}: ‖U‖ < 1, so each step back shrinks the gradient by a factor of {gain:.4g} "
            "or less; it vanishes exponentially for any input."
        )
    if radius < 1:
        return (
            f"{norms}: ρ < 1, so it vanishes in the long run, but may grow for a few "
            "steps (‖U‖ ≥ 1)."
        )
    if radius == 1:
        return (
            f"{norms}: the boundary. Without tanh it would neither grow nor shrink in the long "
            "run; with derivatives of tanh below 1 it vanishes."
        )
    return (
        f"{norms}: ρ > 1, so it explodes where the derivatives of tanh stay above 1/ρ = "
        f"{1 / radius:.4g}, and vanishes where the units are saturated."
    )


def add_lstm_jacobians(builder: SolutionBuilder, steps: int) -> None:
    """Add the Jacobian of the LSTM cell: the direct path and the path through the state.

    direct: ∂c_t/∂c_{t-1} = diag(f_t);   total: diag(f_t) + (∂c_t/∂h_{t-1}) (∂h_{t-1}/∂c_{t-1})

    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> zeros = {f"{w}_{g}": 0 for w in "WU" for g in "ifoc"}
    >>> solve_bptt({"x": [[1, 1]], **zeros}, cell="lstm")["F_0"]
    Matrix([[1/4]])
    """
    for t in range(steps - 1, -1, -1):
        title = f"∂c_{steps}/∂c_{t} along the direct path: the product of the forget gates"
        step = ("elementwise product", f"F_{t + 1}", f"f_{t + 1}")
        step = ("copy", f"f_{steps}") if t == steps - 1 else step
        builder.add_step(f"F_{t}", *step, title=title)
    direct = [to_float(x) for x in builder.values["F_0"]]
    gate = (sum(direct) / len(direct)) ** (1 / steps)
    builder.add_remark(
        f"Along the direct path ∂c_{steps}/∂c_0 is "
        f"({', '.join(f'{x:.4g}' for x in direct)}): the product of the forget gates."
    )
    builder.add_remark(
        f"A forget gate of {gate:.4g} per step leaves {gate**100:.3g} after 100 steps; for the "
        "gradient to survive T steps, 1 - f must be about 1/T or less."
    )
    if steps > 1:
        _add_total_jacobian(builder, steps)


def _add_total_jacobian(builder: SolutionBuilder, t: int) -> None:
    """Add the total ∂c_t/∂c_{t-1} of the last step, with the path through the state."""
    h, by_c = f"h_{t - 1}", f"∂c_{t}/∂c_{t - 1}"
    builder.add_steps(*declared_steps("bptt", "total_jacobian", p=t - 1, t=t))
    largest = max(abs(to_float(x)) for x in builder.values["D"])
    builder.add_remark(
        f"{by_c} = diag(f_{t}) holds for a fixed {h}; the path through {h} adds up to "
        f"{largest:.3g}, and remains when f is 0 (unless U is 0)."
    )


def add_clipping(builder: SolutionBuilder, gradients: list[str], max_norm: Any) -> None:
    """Add gradient clipping by the global norm.

    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> solution = solve_bptt({"x": 3, "W": 0, "U": 0, "h": 4}, max_grad_norm=1)
    >>> solution["n"], solution["cW"], solution["cU"]
    (Matrix([[5]]), Matrix([[3/5]]), Matrix([[4/5]]))
    """
    builder.add_given("m", max_norm)
    norm = f"norm of {len(gradients)}"
    builder.add_steps(
        ("n", norm, " ".join(gradients), "the norm of the whole gradient"),
        ("k", "clip by norm", "n m", "the factor that clips it"),
        *((f"c{d[1:]}", "scale", f"{d} k", f"∂J/∂{d[1:]}, clipped") for d in gradients),
    )
    if builder.number("k") < 1:
        builder.add_remark(
            "Clipping by norm shortens the step and keeps its direction (cosine 1); "
            f"clipping each entry at {format_decimal(max_norm)} would change it: cosine "
            f"{_cosine(builder, gradients, to_float(max_norm)):.4f}."
        )
    builder.add_remark("Clipping prevents explosion only; it does not restore a vanished gradient.")


def _cosine(builder: SolutionBuilder, gradients: list[str], largest: float) -> float:
    flat = [to_float(x) for name in gradients for x in builder.values[name]]
    clipped = [max(-largest, min(largest, x)) for x in flat]
    inner = sum(a * b for a, b in zip(flat, clipped, strict=True))
    return inner / (sum(a * a for a in flat) * sum(b * b for b in clipped)) ** 0.5
