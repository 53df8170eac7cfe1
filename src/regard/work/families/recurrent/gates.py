"""Six true-or-false statements on GRU and LSTM gates, decided by numbers."""

from collections.abc import Mapping
from typing import Any

from regard.work.exact.evaluate import to_float
from regard.work.exact.numbers import parse_matrix, parse_number
from regard.work.families.recurrent.cells import CELL_WEIGHTS, add_time_step, start_recurrent
from regard.work.families.registry import check_required, declared_steps, family
from regard.work.rules import M
from regard.work.solution import Solution, SolutionBuilder

GRU_GIVEN = ("W", "U", "x")


@family("gates")
def solve_gates(given: Mapping[str, Any], *, gate_eps: Any = "1/1000") -> Solution:
    """Decide six statements on gates, each by a computation.

    Given: a GRU's candidate (W, U, x, h) and an LSTM's weights and states (W_i, U_i … h, c).
    `gate_eps` is the distance of a gate "about 0" or "about 1" from 0 or 1.

    >>> zeros = {f"{w}_{g}": 0 for w in "WU" for g in "ifoc"}
    >>> solution = solve_gates({"W": 1, "U": 1, "x": 0, "h": 1, "c": -1, **zeros})
    >>> solution.remarks[0]
    '1. z ≈ 0 keeps the state: true. With z = 1/1000 it changes by 0.000238, which is z ‖g - h‖.'
    """
    check_required("gates", given, *GRU_GIVEN, "h", "c", *CELL_WEIGHTS["lstm"])
    size, inputs = parse_matrix(given["U"], "U").rows, parse_matrix(given["W"], "W").cols
    lstm = {name: given[name] for name in CELL_WEIGHTS["lstm"]} | {"h": given["h"], "c": given["c"]}
    builder, _ = start_recurrent("lstm", lstm | {"x": [[0]] * inputs}, "gates")
    gate_value = parse_number(gate_eps)
    gates = {"z_0": gate_value, "z_1": 1 - gate_value, "r_0": 0, "r_1": 1}
    gru = {name: parse_matrix(given[name], name) for name in GRU_GIVEN}
    gru |= {name: M([[value]] * size) for name, value in gates.items()}
    for name, value in gru.items():
        builder.add_given(name, M(value.T) if value.shape == (1, size) else value)
    _add_gru_statements(builder, gate_value)
    _add_lstm_statements(builder)
    return builder.build()


def _add_gru_statements(builder: SolutionBuilder, gate_value: Any) -> None:
    """Statements 1 and 2."""
    builder.add_steps(*declared_steps("gates", "update"))
    builder.add_remark(
        f"1. z ≈ 0 keeps the state: true. With z = {gate_value} it changes by "
        f"{builder.number('an'):.3g}, which is z ‖g - h‖."
    )
    builder.add_steps(*declared_steps("gates", "forget"))
    without_reset, with_reset = builder.number("na"), builder.number("nb")
    enough = "not" if with_reset > 2 * without_reset else "too here"
    builder.add_remark(
        f"2. z ≈ 1 and r ≈ 0 forget the state: true, ‖∂h'/∂h‖ = {without_reset:.3g}. z ≈ 1 alone "
        f"does {enough}: with r = 1 it is {with_reset:.3g}, because the candidate depends on h."
    )


def _add_lstm_statements(builder: SolutionBuilder) -> None:
    """Statements 3 to 6."""
    add_time_step(builder, "lstm", 1)
    builder.add_steps(*declared_steps("gates", "no_input"))
    moved = builder.number("bn")
    verdict = "true here, since it is at a fixed point" if moved == 0 else "false"
    builder.add_remark(
        f"3. In an LSTM x = 0 leaves h unchanged: {verdict}; it changes by {moved:.3g}, because "
        "the gates and the candidate depend on h. Only h = c = 0 (without bias) is a fixed point."
    )
    builder.add_steps(*declared_steps("gates", "closed"))
    norm = builder.number("Bn")
    verdict = "false" if norm else "true here, since U_i and U_c are 0"
    builder.add_remark(
        f"4. f = 0 stops back-propagation: {verdict}. The direct path from cell to cell is 0, but "
        f"through i and the candidate ‖∂c/∂h‖ = {norm:.3g}; it vanishes only if U is 0."
    )
    gates = [to_float(x) for name in ("i_1", "f_1", "o_1") for x in builder.values[name]]
    cell = min(map(to_float, builder.values["c_1"]))
    solution = "here its smallest is" if cell < 0 else "though here its smallest is"
    builder.add_remark(
        f"5. Gates are not negative: true, σ lies in (0, 1); here {min(gates):.3g} to "
        f"{max(gates):.3g}. The cell cannot be negative either: false. The candidate lies in "
        f"(-1, 1) and c may start below 0; {solution} {cell:.3g}."
    )
    title = "statement 6: the sum of gate"
    sums = builder.add_steps(
        *((f"s_{gate}", "sum of entries", f"{gate}_1", f"{title} {gate}") for gate in "ifo")
    )
    sums_text = ", ".join(f"{builder.number(name):.3g}" for name in sums)
    builder.add_remark(
        f"6. Gates are distributions over the units: false. Each unit has its own σ; the sums of "
        f"i, f and o are {sums_text}, and nothing normalises them to 1."
    )
