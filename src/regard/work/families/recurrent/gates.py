"""Six true-or-false statements on GRU and LSTM gates, decided by numbers."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.exact.numbers import parse_matrix, parse_number
from regard.work.families.recurrent.cells import CELL_WEIGHTS, add_time_step, start_recurrent
from regard.work.families.registry import check_given, family
from regard.work.rules import M
from regard.work.solution import Solution, SolutionBuilder

GRU_GIVEN = ("W", "U", "x")


@family("gates", given=f"W U x h c {' '.join(CELL_WEIGHTS['lstm'])}")
def solve_gates(given: Mapping[str, Any], *, gate_eps: Any = "1/1000") -> Solution:
    """Decide six statements on gates, each by a computation.

    Given: a GRU's candidate (W, U, x, h) and an LSTM's weights and states (W_i, U_i … h, c).
    `gate_eps` is the distance of a gate "about 0" or "about 1" from 0 or 1.

    >>> zeros = {f"{w}_{g}": 0 for w in "WU" for g in "ifoc"}
    >>> solution = solve_gates({"W": 1, "U": 1, "x": 0, "h": 1, "c": -1, **zeros})
    >>> solution.remarks[0]
    '1. z ≈ 0 keeps the state: true. With z = 1/1000 it changes by 0.000238, which is z ‖g - h‖.'
    """
    check_given("gates", given)
    missing = [name for name in (*GRU_GIVEN, "h", "c", *CELL_WEIGHTS["lstm"]) if name not in given]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for gates, got none")
    size, inputs = parse_matrix(given["U"], "U").rows, parse_matrix(given["W"], "W").cols
    lstm = {name: given[name] for name in CELL_WEIGHTS["lstm"]} | {"h": given["h"], "c": given["c"]}
    builder, _ = start_recurrent("lstm", lstm | {"x": [[0]] * inputs}, "gates")
    gate_value = parse_number(gate_eps)
    gru = {name: parse_matrix(given[name], name) for name in GRU_GIVEN}
    gru |= {
        "z_0": _constant_vector(gate_value, size),
        "z_1": _constant_vector(1 - gate_value, size),
        "r_0": _constant_vector(0, size),
    }
    for name, value in (gru | {"r_1": _constant_vector(1, size)}).items():
        builder.add_given(name, M(value.T) if value.shape == (1, size) else value)
    _statement_1(builder, gate_value)
    _statement_2(builder)
    _statement_3(builder)
    _statement_4(builder)
    _statements_5_and_6(builder)
    return builder.build()


def _constant_vector(value: Any, size: int) -> Any:
    return M([[parse_number(value)]] * size)


def _size(builder: SolutionBuilder, name: str) -> float:
    return to_float(builder.values[name][0])


def _value_range(builder: SolutionBuilder, *names: str) -> tuple[float, float]:
    entries = [to_float(x) for name in names for x in builder.values[name]]
    return min(entries), max(entries)


def _statement_1(builder: SolutionBuilder, gate_value: Any) -> None:
    x = builder.add_step("gx", "product", "W", "x", title="the candidate of a GRU: the input")
    h = builder.add_step("gh", "product", "U", "h_0", title="the state, with r = 1")
    builder.add_step(
        "g", "tanh", builder.add_step("gs", "add", x, h, title="their sum"), title="the candidate"
    )
    builder.add_step(
        "a", "gated mix", "z_0", "h_0", "g", title="statement 1: the new state with z about 0"
    )
    builder.add_step("am", "subtract", "a", "h_0", title="the change")
    builder.add_step("an", "norm of 1", "am", title="its norm")
    builder.add_remark(
        f"1. z ≈ 0 keeps the state: true. With z = {gate_value} it changes by "
        f"{_size(builder, 'an'):.3g}, which is z ‖g - h‖."
    )


def _statement_2(builder: SolutionBuilder) -> None:
    builder.add_step("g_0", "tanh", "gx", title="statement 2: the candidate with r about 0")
    title = "∂h'/∂h with z about 1 and r about 0, gates fixed"
    builder.add_step("Ja", "Jacobian with fixed gates", "z_1", "r_0", "g_0", "U", title=title)
    builder.add_step("na", "norm of 1", "Ja", title="its norm: the dependence on the old state")
    title = "the same with z about 1 and r = 1"
    builder.add_step("Jb", "Jacobian with fixed gates", "z_1", "r_1", "g", "U", title=title)
    builder.add_step(
        "nb", "norm of 1", "Jb", title="its norm: the candidate still depends on the state"
    )
    enough = "not" if _size(builder, "nb") > 2 * _size(builder, "na") else "too here"
    builder.add_remark(
        f"2. z ≈ 1 and r ≈ 0 forget the state: true, ‖∂h'/∂h‖ = {_size(builder, 'na'):.3g}. "
        f"z ≈ 1 alone does {enough}: "
        f"with r = 1 it is {_size(builder, 'nb'):.3g}, because the candidate depends on h."
    )


def _statement_3(builder: SolutionBuilder) -> None:
    add_time_step(builder, "lstm", 1)
    builder.add_step(
        "bm", "subtract", "h_1", "h_0", title="statement 3: the change of h in an LSTM with x = 0"
    )
    builder.add_step("bn", "norm of 1", "bm", title="its norm")
    moved = _size(builder, "bn")
    verdict = "true here, since it is at a fixed point" if moved == 0 else "false"
    builder.add_remark(
        f"3. In an LSTM x = 0 leaves h unchanged: {verdict}; it changes by {moved:.3g}, because "
        "the gates and the candidate depend on h. Only h = c = 0 (without bias) is a fixed point."
    )


def _statement_4(builder: SolutionBuilder) -> None:
    title = "statement 4: ∂c/∂h with f = 0: through the gate i"
    builder.add_step("Bi", "Jacobian of a gate", "g_1", "i_1", "U_i", title=title)
    builder.add_step(
        "Bg", "Jacobian of the candidate", "i_1", "g_1", "U_c", title="through the candidate"
    )
    builder.add_step("B", "add", "Bi", "Bg", title="their sum; the path through f is 0")
    builder.add_step("Bn", "norm of 1", "B", title="its norm: the remaining gradient")
    norm = _size(builder, "Bn")
    verdict = "false" if norm else "true here, since U_i and U_c are 0"
    builder.add_remark(
        f"4. f = 0 stops back-propagation: {verdict}. The direct path from cell to cell is 0, but "
        f"through i and the candidate ‖∂c/∂h‖ = {norm:.3g}; it vanishes only if U is 0."
    )


def _statements_5_and_6(builder: SolutionBuilder) -> None:
    low, high = _value_range(builder, "i_1", "f_1", "o_1")
    cell = _value_range(builder, "c_1")[0]
    solution = "here its smallest is" if cell < 0 else "though here its smallest is"
    builder.add_remark(
        f"5. Gates are not negative: true, σ lies in (0, 1); here {low:.3g} to {high:.3g}. The "
        "cell cannot be negative either: false. The candidate lies in (-1, 1) and c may start "
        f"below 0; {solution} {cell:.3g}."
    )
    sums = [
        builder.add_step(
            f"s_{gate}", "sum of entries", f"{gate}_1", title=f"statement 6: the sum of gate {gate}"
        )
        for gate in "ifo"
    ]
    sums_text = ", ".join(f"{_size(builder, name):.3g}" for name in sums)
    builder.add_remark(
        f"6. Gates are distributions over the units: false. Each unit has its own σ; the sums of "
        f"i, f and o are {sums_text}, and nothing normalises them to 1."
    )
