"""How far a gradient reaches: products of Jacobians, of forget gates, and what clipping does."""

from typing import Any

from regard.work.exact.evaluate import to_float
from regard.work.exact.numbers import format_decimal
from regard.work.solution import SolutionBuilder


def add_rnn_jacobians(builder: SolutionBuilder, steps: int) -> None:
    """The Jacobians of an RNN's steps, their products, and how these grow or shrink by distance.

    ∂h_T/∂h_t = Π diag(1 - h²) U,   ‖∂h_T/∂h_t‖ ≤ ‖U‖^(T - t)

    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> worked = solve_bptt({"x": [[0, 0]], "W": 1, "U": "1/2"})
    >>> worked["G_0"], worked["ρ"]
    (Matrix([[1/4]]), Matrix([[1/2]]))
    """
    builder.add_step(
        "ρ", "spectral radius", "U", title="the spectral radius: what U does in the long run"
    )
    builder.add_step(
        "u", "spectral norm", "U", title="the most that U stretches a vector in one step"
    )
    for t in range(1, steps + 1):
        says = f"∂h_{t}/∂h_{t - 1}: the Jacobian of step {t}"
        builder.add_step(f"J_{t}", "Jacobian of a step", f"h_{t}", "U", title=says)
    whole = f"J_{steps}"
    lengths = []
    for t in range(steps - 1, -1, -1):
        says = f"∂h_{steps}/∂h_{t}: over a distance of {steps - t}"
        taken = ("copy", whole) if t == steps - 1 else ("product", whole, f"J_{t + 1}")
        whole = builder.add_step(f"G_{t}", *taken, title=says)
        builder.add_step(f"n_{t}", "norm of 1", whole, title="its size (Frobenius)")
        lengths.append(f"{format_decimal(builder.values[f'n_{t}'][0], 3)} at distance {steps - t}")
    radius, gain = (to_float(builder.values[name][0]) for name in ("ρ", "u"))
    builder.add_remark(f"‖∂h_{steps}/∂h_t‖ is {', '.join(lengths)}.")
    builder.add_remark(_by_radius(radius, gain))
    builder.add_remark(
        "The slope of tanh is at most 1 (that of σ at most ¼): it can only shrink a gradient. "
        "What makes one explode is U."
    )


def _by_radius(radius: float, gain: float) -> str:
    told = f"ρ(U) = {radius:.4g} and ‖U‖ = {gain:.4g}"
    if gain < 1:
        return (
            f"{told}: ‖U‖ < 1, so that each step back shrinks the gradient by {gain:.4g} or "
            "more; it vanishes exponentially, whatever the inputs."
        )
    if radius < 1:
        return (
            f"{told}: ρ < 1, so that it vanishes in the long run, though it may grow for a few "
            "steps (‖U‖ ≥ 1)."
        )
    if radius == 1:
        return (
            f"{told}: just on the edge. Without tanh it would neither grow nor shrink in the long "
            "run; with tanh's slopes below 1 it still vanishes."
        )
    return (
        f"{told}: ρ > 1, so that it explodes where the slopes of tanh stay above 1/ρ = "
        f"{1 / radius:.4g}, and vanishes where the units are saturated."
    )


def add_lstm_jacobians(builder: SolutionBuilder, steps: int) -> None:
    """The direct path from cell to cell, and beside it the path through the state.

    directly ∂c_t/∂c_{t-1} = diag(f_t);   in all diag(f_t) + (∂c_t/∂h_{t-1}) (∂h_{t-1}/∂c_{t-1})

    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> zeros = {f"{w}_{g}": 0 for w in "WU" for g in "ifoc"}
    >>> solve_bptt({"x": [[1, 1]], **zeros}, cell="lstm")["F_0"]
    Matrix([[1/4]])
    """
    for t in range(steps - 1, -1, -1):
        says = f"∂c_{steps}/∂c_{t} along the direct path: the product of the forget gates"
        taken = ("copy", f"f_{steps}") if t == steps - 1 else ("elementwise product", f"F_{t + 1}")
        builder.add_step(f"F_{t}", *taken, *([] if t == steps - 1 else [f"f_{t + 1}"]), title=says)
    far = [to_float(x) for x in builder.values["F_0"]]
    kept = (sum(far) / len(far)) ** (1 / steps)
    builder.add_remark(
        f"Along the direct path ∂c_{steps}/∂c_0 is "
        f"({', '.join(f'{x:.4g}' for x in far)}): the product of the forget gates."
    )
    builder.add_remark(
        f"A gate of {kept:.4g} a step leaves {kept**100:.3g} after 100 steps; for the gradient to "
        "get through T steps, 1 - f must be about 1/T or less."
    )
    if steps > 1:
        _whole_path(builder, steps)


def _whole_path(work: SolutionBuilder, t: int) -> None:
    """∂c_t/∂c_{t-1} in all, of the last step: it has the path through the state too."""
    says = f"∂c_{t}/∂h_{t - 1} through the "
    parts = [
        work.add_step(
            "Bf", "Jacobian of a gate", f"c_{t - 1}", f"f_{t}", "U_f", title=says + "gate f"
        ),
        work.add_step("Bi", "Jacobian of a gate", f"g_{t}", f"i_{t}", "U_i", title=says + "gate i"),
        work.add_step(
            "Bg", "Jacobian of the candidate", f"i_{t}", f"g_{t}", "U_c", title=says + "candidate"
        ),
    ]
    work.add_step("B", "sum of 3", *parts, title=f"∂c_{t}/∂h_{t - 1} in all")
    before = (f"o_{t - 1}", f"t_{t - 1}")
    says = f"∂c_{t}/∂c_{t - 1} by way of h_{t - 1}"
    work.add_step("D", "scale columns by o tanh'", "B", *before, title=says)
    says = f"∂c_{t}/∂c_{t - 1} in all: directly and by way of h_{t - 1}"
    work.add_step("C", "diagonal and rest", f"f_{t}", "D", title=says)
    most = max(abs(to_float(x)) for x in work.values["D"])
    work.add_remark(
        f"∂c_{t}/∂c_{t - 1} = diag(f_{t}) holds with h_{t - 1} held fixed; the path through "
        f"h_{t - 1} adds up to {most:.3g}, and remains when f is 0 (unless U is 0)."
    )


def add_clipping(builder: SolutionBuilder, gradients: list[str], max_norm: Any) -> None:
    """All gradients made shorter by one factor, so that their common norm is at most `most`.

    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> worked = solve_bptt({"x": 3, "W": 0, "U": 0, "h": 4}, max_grad_norm=1)
    >>> worked["n"], worked["cW"], worked["cU"]
    (Matrix([[5]]), Matrix([[3/5]]), Matrix([[4/5]]))
    """
    builder.add_given("m", max_norm)
    builder.add_step(
        "n", f"norm of {len(gradients)}", *gradients, title="the norm of the whole gradient"
    )
    builder.add_step("k", "clip by norm", "n", "m", title="the factor that clips it")
    for name in gradients:
        says = f"∂J/∂{name[1:]}, clipped"
        builder.add_step(f"c{name[1:]}", "scale", name, "k", title=says)
    if to_float(builder.values["k"][0]) < 1:
        builder.add_remark(
            "Clipping by the norm makes the step shorter and keeps its direction (cosine 1); "
            f"clipping each entry at {format_decimal(max_norm)} would turn it: cosine "
            f"{_cosine(builder, gradients, to_float(max_norm)):.4f}."
        )
    builder.add_remark("Clipping cures explosion only: a gradient that has vanished stays so.")


def _cosine(work: SolutionBuilder, gradients: list[str], most: float) -> float:
    flat = [to_float(x) for name in gradients for x in work.values[name]]
    cut = [max(-most, min(most, x)) for x in flat]
    inner = sum(a * b for a, b in zip(flat, cut, strict=True))
    return inner / (sum(a * a for a in flat) * sum(b * b for b in cut)) ** 0.5
