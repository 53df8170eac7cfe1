"""Forward-mode gradient of one LSTM weight (real-time recurrent learning)."""

from regard.work.exact.evaluate import to_float
from regard.work.families.recurrent.cells import CELL_WEIGHTS, GATE_SUFFIXES
from regard.work.families.registry import check_choice
from regard.work.rules import M, Matrix, get_rule
from regard.work.solution import SolutionBuilder


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
