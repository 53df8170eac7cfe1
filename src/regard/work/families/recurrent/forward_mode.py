"""The gradient of one weight of an LSTM the other way: forward in time, state by state."""

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.families.recurrent.cells import CELL_WEIGHTS, GATE_SUFFIXES
from regard.work.rules import M, Matrix, get_rule
from regard.work.solution import SolutionBuilder


def add_forward_mode(builder: SolutionBuilder, steps: int, weight: str) -> None:
    """How every state depends on one weight matrix, step by step, and from that its gradient.

    Dc_t = Σ over gates of diag(what it gates) Dgate_t + diag(f_t) Dc_{t-1}
    Dh_t = diag(tanh c_t) Do_t + diag(o_t (1 - tanh² c_t)) Dc_t,   ∂J/∂W = Σ_t (∂J/∂h_t)ᵀ Dh_t

    A row is an entry of the state, a column an entry of the weight, row by row. The ∂J/∂h_t here is
    the direct one; the dependence of later states is in Dh.

    >>> from regard.work import read_problem
    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> told = read_problem("bptt-lstm")["given"]
    >>> worked = solve_bptt(told, cell="lstm", forward_mode="W_c")
    >>> abs(worked["fW_c"] - worked["dW_c"])[0] < 1e-40
    True
    """
    if weight not in CELL_WEIGHTS["lstm"]:
        raise WorkError(
            f"forward_mode: needs one of {', '.join(CELL_WEIGHTS['lstm'])}, got {weight!r}"
        )
    gate = next(one for one, index in GATE_SUFFIXES["lstm"].items() if weight.endswith(index))
    parts = []
    for t in range(1, steps + 1):
        taken = f"x_{t}" if weight.startswith("W") else f"h_{t - 1}"
        says = f"what went into the gate at step {t}, by {weight} itself"
        builder.add_step(f"X_{t}", "Kronecker with identity", taken, f"{gate}_{t}", title=says)
        moved = [one for one in GATE_SUFFIXES["lstm"] if _gate(builder, t, one, one == gate)]
        _cell(builder, t, gate, moved, weight)
        _state(builder, t, "o" in moved, weight)
        if f"e_{t}" in builder.values:
            says = f"what step {t} adds: the direct ∂J/∂h_{t} by how h_{t} depends on {weight}"
            parts.append(
                builder.add_step(f"P_{t}", "transpose times", f"e_{t}", f"Dh_{t}", title=says)
            )
    total = parts[0] if len(parts) == 1 else "y"
    if len(parts) > 1:
        builder.add_step("y", f"sum of {len(parts)}", *parts, title="over all steps")
    name = builder.add_step(
        f"f{weight}", "reshape", total, weight, title=f"∂J/∂{weight}, as a matrix again"
    )
    _slip_of_totals(builder, name, steps, weight)
    _same_as_back(builder, name, f"d{weight}")
    builder.add_remark(
        f"∂J/∂{weight} came out forward as it did back. Forward, each ∂J/∂h_t is the direct one: "
        "what later states owe to h_t is counted in their own Dh."
    )


def _same_as_back(work: SolutionBuilder, forth: str, back: str) -> None:
    for x in work.values[forth] - work.values[back]:
        assert x.free_symbols or abs(to_float(x)) < 1e-25, f"{forth} and {back} differ"


def _gate(work: SolutionBuilder, t: int, gate: str, own: bool) -> bool:
    """How a gate depends on the weight; at the first step only the weight's own gate does."""
    parts = [f"X_{t}"] if own else []
    if t > 1:
        says = f"what went into {gate}_{t}, by way of h_{t - 1}"
        recurrent = f"U{GATE_SUFFIXES['lstm'][gate]}"
        parts.insert(
            0, work.add_step(f"S{gate}_{t}", "product", recurrent, f"Dh_{t - 1}", title=says)
        )
    if not parts:
        return False
    whole = parts[0]
    if len(parts) == 2:
        whole = work.add_step(
            f"T{gate}_{t}", "sum of 2", *parts, title="in all: by h and by itself"
        )
    by = "scale rows by tanh'" if gate == "g" else "scale rows by σ'"
    work.add_step(f"D{gate}_{t}", by, f"{gate}_{t}", whole, title=f"so much of it moves {gate}_{t}")
    return True


def _cell(work: SolutionBuilder, t: int, own: str, moved: list[str], weight: str) -> None:
    gated = {"f": f"c_{t - 1}", "i": f"g_{t}", "g": f"i_{t}"}
    parts = [
        work.add_step(
            f"K{one}_{t}",
            "scale rows by vector",
            by,
            f"D{one}_{t}",
            title=f"by {one}_{t} into c_{t}",
        )
        for one, by in gated.items()
        if one in moved
    ]
    if t > 1:
        says = f"what c_{t - 1} brings along"
        parts.append(
            work.add_step(f"Kc_{t}", "scale rows by vector", f"f_{t}", f"Dc_{t - 1}", title=says)
        )
    says = f"how c_{t} depends on {weight}"
    if not parts:  # the output gate's weight moves no cell at first
        work.add_step(f"Dc_{t}", "zeros like", f"X_{t}", title=says)
        return
    by = "copy" if len(parts) == 1 else f"sum of {len(parts)}"
    name = work.add_step(f"Dc_{t}", by, *parts, title=says)
    if t > 1 and own in gated:
        slope = "scale rows by tanh'" if own == "g" else "scale rows by σ'"
        direct = get_rule(slope).run(work.values[f"{own}_{t}"], work.values[f"X_{t}"])
        alone = (
            get_rule("scale rows by vector").run(work.values[gated[own]], direct)
            + work.values[f"Kc_{t}"]
        )
        work.add_mistake(name, "the path through h was left out", M(alone))


def _state(work: SolutionBuilder, t: int, shown: bool, weight: str) -> None:
    says = f"how h_{t} depends on {weight}"
    inner = (f"o_{t}", f"t_{t}", f"Dc_{t}")
    if not shown:
        work.add_step(f"Dh_{t}", "scale rows by o tanh'", *inner, title=says)
        return
    parts = (
        work.add_step(
            f"Ko_{t}", "scale rows by vector", f"t_{t}", f"Do_{t}", title=f"by o_{t} into h_{t}"
        ),
        work.add_step(f"Kh_{t}", "scale rows by o tanh'", *inner, title=f"by c_{t} into h_{t}"),
    )
    work.add_step(f"Dh_{t}", "sum of 2", *parts, title=says)


def _slip_of_totals(work: SolutionBuilder, name: str, steps: int, weight: str) -> None:
    """What comes of taking the total ∂J/∂h_t: every later step is counted again."""
    if steps == 1:
        return
    each = [work.values[f"dh_{t}"].T * work.values[f"Dh_{t}"] for t in range(1, steps + 1)]
    wrong: Matrix = get_rule("reshape").run(M(sum(each[1:], each[0])), work.values[weight])
    says = "the total ∂J/∂h_t was taken where the direct one belongs"
    work.add_mistake(name, says, wrong)
