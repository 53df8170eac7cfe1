"""Jacobian products, forget gates and clipping; the gradient of an LSTM weight in forward mode."""

from typing import Any

from regard.work.exact import format_decimal, to_float
from regard.work.families.recurrent.cells import CELL_WEIGHTS, GATE_SUFFIXES
from regard.work.families.registry import check_choice, declared_steps
from regard.work.rules import M, Matrix, get_rule
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


def add_forward_mode(builder: SolutionBuilder, steps: int, weight: str) -> None:
    """Add the derivative of every state with respect to one weight matrix, and the gradient.

    Dc_t = Σ over gates of diag(other factor) Dgate_t + diag(f_t) Dc_{t-1}
    Dh_t = diag(tanh c_t) Do_t + diag(o_t (1 - tanh² c_t)) Dc_t,   ∂J/∂W = Σ_t (∂J/∂h_t)ᵀ Dh_t

    Rows of Dh are entries of the state, columns entries of the weight in row-major order. ∂J/∂h_t
    is the direct partial here; the dependence of later states is in Dh.

    >>> from regard.work import read_problem
    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> given = read_problem("bptt-lstm")["given"]
    >>> solution = solve_bptt(given, cell="lstm", forward_mode="W_c")
    >>> abs(solution["fW_c"] - solution["dW_c"])[0] < 1e-40
    True
    """
    check_choice("forward_mode", weight, CELL_WEIGHTS["lstm"])
    gate = next(g for g, suffix in GATE_SUFFIXES["lstm"].items() if weight.endswith(suffix))
    parts = []
    for t in range(1, steps + 1):
        source = f"x_{t}" if weight.startswith("W") else f"h_{t - 1}"
        title = f"the preactivation of the gate at step {t} by {weight}, directly"
        builder.add_step(f"X_{t}", "Kronecker with identity", source, f"{gate}_{t}", title=title)
        dependent = [g for g in GATE_SUFFIXES["lstm"] if _add_gate(builder, t, g, g == gate)]
        _add_cell(builder, t, gate, dependent, weight)
        _add_state(builder, t, "o" in dependent, weight)
        if f"e_{t}" in builder.values:
            title = f"the term of step {t}: the direct ∂J/∂h_{t} times ∂h_{t}/∂{weight}"
            parts += builder.add_steps((f"P_{t}", "transpose times", f"e_{t} Dh_{t}", title))
    total = parts[0]
    if len(parts) > 1:
        total = builder.add_step("y", f"sum of {len(parts)}", *parts, title="summed over steps")
    title = f"∂J/∂{weight}, as a matrix"
    name = builder.add_step(f"f{weight}", "reshape", total, weight, title=title)
    _add_total_mistake(builder, name, steps, weight)
    for x in builder.values[name] - builder.values[f"d{weight}"]:
        assert x.free_symbols or abs(to_float(x)) < 1e-25, f"{name} and d{weight} differ"
    builder.add_remark(
        f"∂J/∂{weight} is the same in forward mode as by BPTT. In forward mode each ∂J/∂h_t is the "
        "direct one: the dependence of later states on h_t is in their own Dh."
    )


def _add_gate(builder: SolutionBuilder, t: int, gate: str, own_gate: bool) -> bool:
    """Add the derivative of a gate; at the first step only the weight's own gate depends on it."""
    parts = [f"X_{t}"] if own_gate else []
    if t > 1:
        title = f"the preactivation of {gate}_{t}, through h_{t - 1}"
        recurrent = (f"U{GATE_SUFFIXES['lstm'][gate]}", f"Dh_{t - 1}")
        parts.insert(0, builder.add_step(f"S{gate}_{t}", "product", *recurrent, title=title))
    if not parts:
        return False
    total = parts[0]
    if len(parts) == 2:
        title = "total: through h and directly"
        total = builder.add_step(f"T{gate}_{t}", "sum of 2", *parts, title=title)
    title = f"the derivative of {gate}_{t}"
    builder.add_steps((f"D{gate}_{t}", _derivative_rule(gate), f"{gate}_{t} {total}", title))
    return True


def _derivative_rule(gate: str) -> str:
    return "scale rows by tanh'" if gate == "g" else "scale rows by σ'"


def _add_cell(
    builder: SolutionBuilder, t: int, own_gate: str, dependent: list[str], weight: str
) -> None:
    factors = {"f": f"c_{t - 1}", "i": f"g_{t}", "g": f"i_{t}"}
    scale = "scale rows by vector"
    parts = builder.add_steps(
        *(
            (f"K{gate}_{t}", scale, f"{factor} D{gate}_{t}", f"through {gate}_{t}")
            for gate, factor in factors.items()
            if gate in dependent
        )
    )
    if t > 1:
        parts += builder.add_steps((f"Kc_{t}", scale, f"f_{t} Dc_{t - 1}", f"through c_{t - 1}"))
    title = f"∂c_{t}/∂{weight}"
    if not parts:  # the first cell does not depend on the output gate
        builder.add_step(f"Dc_{t}", "zeros like", f"X_{t}", title=title)
        return
    rule = "copy" if len(parts) == 1 else f"sum of {len(parts)}"
    name = builder.add_step(f"Dc_{t}", rule, *parts, title=title)
    if t > 1 and own_gate in factors:
        values, rule = builder.values, get_rule(_derivative_rule(own_gate))
        direct = rule.run(values[f"{own_gate}_{t}"], values[f"X_{t}"])
        through_gate = get_rule(scale).run(values[factors[own_gate]], direct)
        wrong = M(through_gate + values[f"Kc_{t}"])
        builder.add_mistake(name, "the path through h was left out", wrong)


def _add_state(builder: SolutionBuilder, t: int, through_output_gate: bool, weight: str) -> None:
    title = f"∂h_{t}/∂{weight}"
    inner = (f"o_{t}", f"t_{t}", f"Dc_{t}")
    if not through_output_gate:
        builder.add_step(f"Dh_{t}", "scale rows by o tanh'", *inner, title=title)
        return
    builder.add_steps(
        (f"Ko_{t}", "scale rows by vector", f"t_{t} Do_{t}", f"through o_{t}"),
        (f"Kh_{t}", "scale rows by o tanh'", " ".join(inner), f"through c_{t}"),
        (f"Dh_{t}", "sum of 2", f"Ko_{t} Kh_{t}", title),
    )


def _add_total_mistake(builder: SolutionBuilder, name: str, steps: int, weight: str) -> None:
    """Mistake: the total ∂J/∂h_t instead of the direct one, which counts later steps twice."""
    if steps == 1:
        return
    terms = [builder.values[f"dh_{t}"].T * builder.values[f"Dh_{t}"] for t in range(1, steps + 1)]
    wrong: Matrix = get_rule("reshape").run(M(sum(terms[1:], terms[0])), builder.values[weight])
    title = "the total ∂J/∂h_t was used instead of the direct one"
    builder.add_mistake(name, title, wrong)
