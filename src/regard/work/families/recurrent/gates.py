"""What gates do, true or false: statements on GRU and LSTM decided by numbers worked by hand."""

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
    """Six statements on gates, each decided by numbers: true or false, and why.

    Given are a GRU's candidate (W, U, x, h) and an LSTM's weights and states (W_i, U_i … h, c);
    `small` is how near a gate of "about 0" or "about 1" comes to it.

    >>> zeros = {f"{w}_{g}": 0 for w in "WU" for g in "ifoc"}
    >>> told = solve_gates({"W": 1, "U": 1, "x": 0, "h": 1, "c": -1, **zeros})
    >>> told.remarks[0]
    '1. z ≈ 0 keeps the state: true. With z = 1/1000 it moves by 0.000238, which is z ‖g - h‖.'
    """
    check_given("gates", given)
    missing = [name for name in (*GRU_GIVEN, "h", "c", *CELL_WEIGHTS["lstm"]) if name not in given]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for gates, got none")
    size, inputs = parse_matrix(given["U"], "U").rows, parse_matrix(given["W"], "W").cols
    lstm = {name: given[name] for name in CELL_WEIGHTS["lstm"]} | {"h": given["h"], "c": given["c"]}
    work, _ = start_recurrent("lstm", lstm | {"x": [[0]] * inputs}, "gates")
    near = parse_number(gate_eps)
    rest = {name: parse_matrix(given[name], name) for name in GRU_GIVEN}
    rest |= {"z_0": _all(near, size), "z_1": _all(1 - near, size), "r_0": _all(0, size)}
    for name, value in (rest | {"r_1": _all(1, size)}).items():
        work.add_given(name, M(value.T) if value.shape == (1, size) else value)
    _update(work, near)
    _reset(work)
    _silent_input(work)
    _forget(work)
    _signs(work)
    return work.build()


def _all(value: Any, size: int) -> Any:
    return M([[parse_number(value)]] * size)


def _size(work: SolutionBuilder, name: str) -> float:
    return to_float(work.values[name][0])


def _least(work: SolutionBuilder, *names: str) -> tuple[float, float]:
    flat = [to_float(x) for name in names for x in work.values[name]]
    return min(flat), max(flat)


def _update(work: SolutionBuilder, near: Any) -> None:
    x = work.add_step("gx", "product", "W", "x", title="the candidate of a GRU: the input")
    h = work.add_step("gh", "product", "U", "h_0", title="and the state, all of it heard (r = 1)")
    work.add_step(
        "g", "tanh", work.add_step("gs", "add", x, h, title="together"), title="the candidate"
    )
    work.add_step(
        "a", "gated mix", "z_0", "h_0", "g", title="statement 1: the new state with z about 0"
    )
    work.add_step("am", "subtract", "a", "h_0", title="how far it moved")
    work.add_step("an", "norm of 1", "am", title="as a length")
    work.add_remark(
        f"1. z ≈ 0 keeps the state: true. With z = {near} it moves by {_size(work, 'an'):.3g}, "
        "which is z ‖g - h‖."
    )


def _reset(work: SolutionBuilder) -> None:
    work.add_step(
        "g_0", "tanh", "gx", title="statement 2: the candidate with r about 0: the input alone"
    )
    says = "∂h'/∂h with z about 1 and r about 0, gates held"
    work.add_step("Ja", "Jacobian with fixed gates", "z_1", "r_0", "g_0", "U", title=says)
    work.add_step("na", "norm of 1", "Ja", title="how much of the old state is left")
    says = "the same with z about 1 and r = 1"
    work.add_step("Jb", "Jacobian with fixed gates", "z_1", "r_1", "g", "U", title=says)
    work.add_step("nb", "norm of 1", "Jb", title="now the candidate still hears the state")
    work.add_remark(
        f"2. z ≈ 1 and r ≈ 0 forget the state: true, ‖∂h'/∂h‖ = {_size(work, 'na'):.3g}. "
        f"z ≈ 1 alone does {'not' if _size(work, 'nb') > 2 * _size(work, 'na') else 'too here'}: "
        f"with r = 1 it is {_size(work, 'nb'):.3g}, because the candidate hears h."
    )


def _silent_input(work: SolutionBuilder) -> None:
    add_time_step(work, "lstm", 1)
    work.add_step(
        "bm", "subtract", "h_1", "h_0", title="statement 3: an LSTM with x = 0: how far h moved"
    )
    work.add_step("bn", "norm of 1", "bm", title="as a length")
    moved = _size(work, "bn")
    still = "true here, since it is at a fixed point" if moved == 0 else "false"
    work.add_remark(
        f"3. In an LSTM x = 0 leaves h as it was: {still}; it moves by {moved:.3g}, for the gates "
        "and the candidate still read h. Only h = c = 0 (no bias) stays where it is."
    )


def _forget(work: SolutionBuilder) -> None:
    says = "statement 4: ∂c/∂h with f = 0: through the gate i"
    work.add_step("Bi", "Jacobian of a gate", "g_1", "i_1", "U_i", title=says)
    work.add_step(
        "Bg", "Jacobian of the candidate", "i_1", "g_1", "U_c", title="through the candidate"
    )
    work.add_step("B", "add", "Bi", "Bg", title="together; the path through f is 0")
    work.add_step("Bn", "norm of 1", "B", title="what still flows back")
    flows = _size(work, "Bn")
    verdict = "false" if flows else "true here, since U_i and U_c are 0"
    work.add_remark(
        f"4. f = 0 stops back-propagation: {verdict}. The direct path from cell to cell is 0, but "
        f"through i and the candidate ‖∂c/∂h‖ = {flows:.3g}; all stop only where U is 0."
    )


def _signs(work: SolutionBuilder) -> None:
    low, high = _least(work, "i_1", "f_1", "o_1")
    cell = _least(work, "c_1")[0]
    worked = "here its smallest is" if cell < 0 else "though here its smallest is"
    work.add_remark(
        f"5. Gates are not negative: true, σ lies in (0, 1); here {low:.3g} to {high:.3g}. That "
        "the cell cannot be negative either: false. The candidate lies in (-1, 1) and c may start "
        f"below 0; {worked} {cell:.3g}."
    )
    sums = [
        work.add_step(
            f"s_{one}", "sum of entries", f"{one}_1", title=f"statement 6: the gate {one} in all"
        )
        for one in "ifo"
    ]
    told = ", ".join(f"{_size(work, name):.3g}" for name in sums)
    work.add_remark(
        f"6. Gates are distributions over the units: false. Each unit's σ is its own; the sums of "
        f"i, f and o are {told}, and nothing makes them 1."
    )
