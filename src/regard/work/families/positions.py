"""Positions by hand: the table of sines and cosines, its turns, and rotary positions."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.numbers import format_decimal, parse_matrix
from regard.work.families.attention import AttentionSetup, add_attention
from regard.work.families.registry import ExerciseTemplate, check_given, family
from regard.work.rules import M, Matrix
from regard.work.rules.positions import POSITION_RULES
from regard.work.solution import Solution, SolutionBuilder

DEFAULT_BASE = 10000
MAX_DIM = 512
MAX_POSITIONS = 64  # positions that a hand would write
MAX_PAIR_PRODUCTS = 2000  # of sines and cosines in a table of all pairs; more take minutes


@family(
    "positions",
    given="p d k base",
    exercises=(
        ExerciseTemplate(value_choices={"p": (2, 3), "d": (2,)}, questions=("ω", "Θ", "PE")),
        ExerciseTemplate(value_choices={"p": (2, 3, 4), "d": (4,)}, questions=("ω", "Θ", "PE")),
        ExerciseTemplate(value_choices={"p": (2, 3), "d": (4,), "k": (1, 2)}),
    ),
)
def solve_positions(given: Mapping[str, Any]) -> Solution:
    """The code of each position, what moves it by k, and the product of two of them.

    PE(p, 2i) = sin(p · base^(-2i/d)),   PE(p, 2i+1) = cos(p · base^(-2i/d))
    PE(p + k) = R_k PE(p),   PE(p) · PE(q) = Σ_i cos((p - q) ω_i)

    Given are d and p: how many positions, from 0 on, or a row of them; k and base where wanted.

    >>> solve_positions({"p": 1, "d": 4})["PE"]
    Matrix([[0, 1, 0, 1]])
    """
    check_given("positions", given)
    missing = [name for name in ("p", "d") if given.get(name) is None]
    if missing:
        raise WorkError(f"given: needs p and d, got no {' and no '.join(missing)}")
    rest = {k: v for k, v in given.items() if k not in ("p", "base") and v is not None}
    work = SolutionBuilder("positions", {"p": _places(given["p"]), **rest})
    for name in ("d", "k"):
        value = work.values.get(name)
        if value is not None and (value.shape != (1, 1) or not _is_near(value[0, 0])):
            raise WorkError(f"{name}: needs one number up to {MAX_DIM}, got {given[name]}")
    _angles(work, given)
    work.add_step("PE", "sines and cosines", "Θ", title="the codes, a row a position")
    if "k" in work.values:
        _move(work)
    rows, width = work.values["PE"].shape
    if rows * rows * width <= MAX_PAIR_PRODUCTS:
        work.add_step("G", "product with transpose", "PE", "PE", title="each code times each other")
        work.add_step("L", "addition theorem", "G", title="the same: only the distance is left")
        _say_lags(work)
    return work.build()


@family("rotary", given="Q K V p base B rel β")
def solve_rotary(given: Mapping[str, Any], *, scale: Any = None, mask: Any = None) -> Solution:
    """Rotary positions: queries and keys are turned by their place, then attend as ever.

    Q_p = turn(Q, p ω),   K_p = turn(K, p ω),   S = Q_p K_pᵀ,   which knows only distances

    Given are Q and K, and V, p (places, 0 on if left out) and base where wanted.

    >>> solve_rotary({"Q": [[1, 0]], "K": [[1, 0]], "p": [[5]]})["Q_p"]
    Matrix([[cos(5), sin(5)]])
    """
    check_given("rotary", given)
    missing = [name for name in ("Q", "K") if given.get(name) is None]
    if missing:
        raise WorkError(f"given: needs Q and K, got no {' and no '.join(missing)}")
    q = parse_matrix(given["Q"], "Q")
    rest = {k: v for k, v in given.items() if k not in ("p", "base") and v is not None}
    places = _places(given["p"] if given.get("p") is not None else q.rows)
    work = SolutionBuilder("rotary", {"p": places, **rest, "d": q.cols})
    _angles(work, given)
    for letter, what in (("Q", "queries"), ("K", "keys")):
        work.add_step(
            f"{letter}_p", "rotate pairs", letter, "Θ", title=f"the {what}, turned by place"
        )
    if "V" in work.values:
        add_attention(work, "Q_p", "K_p", "V", setup=AttentionSetup(scale=scale, mask=mask))
    else:
        says = "the scores: how well each query fits each key"
        work.add_step("S", "product with transpose", "Q_p", "K_p", title=says)
    _say_shift(work)
    return work.build()


def _is_near(x: Any) -> bool:
    """Whether a number is one to work with; a symbol may stand for any."""
    return bool(x.free_symbols or abs(x) <= MAX_DIM)


def _places(told: Any) -> Matrix:
    """Positions as a column: so many from 0 on, or those that are told."""
    found = parse_matrix(told, "p")
    if found.shape == (1, 1) and not isinstance(told, list | tuple | sympy.MatrixBase):
        count = found[0, 0]
        if not count.is_Integer or not 1 <= count <= MAX_POSITIONS:
            raise WorkError(
                f"p: needs a count from 1 to {MAX_POSITIONS}, or a row of places, got {count}"
            )
        return M(list(range(int(count))))
    if 1 not in found.shape or found.has(sympy.oo):
        raise WorkError(f"p: needs one row of places, got {found.tolist()}")
    return M(list(found))


def _angles(work: SolutionBuilder, given: Mapping[str, Any]) -> None:
    work.add_given("base", given.get("base", DEFAULT_BASE))
    work.add_step("ω", "frequencies", "d", "base", title="how far each pair turns a step")
    work.add_step("Θ", "product", "p", "ω", title="the angles: a row a position, a column a pair")


def _move(work: SolutionBuilder) -> None:
    """R_k applied to every code, beside the codes k further on."""
    work.add_step("δ", "scale", "ω", "k", title="how far k steps turn each pair")
    work.add_step("R_k", "rotation", "δ", title="the matrix that moves every code by k")
    work.add_step("T", "product with transpose", "PE", "R_k", title="the codes, moved")
    work.add_step("T_k", "addition theorem", "T", title="the same, gathered")
    work.add_step("Θ_k", "add to rows", "Θ", "δ", title="the angles k steps on")
    work.add_step("PE_k", "sines and cosines", "Θ_k", title="the codes of p + k, from the formula")
    if work.values["T_k"] == work.values["PE_k"]:
        work.add_remark("R_k PE(p) is PE(p + k), exactly and for every p: R_k knows k, not p.")


def _say_lags(work: SolutionBuilder) -> None:
    """Tell the product of two codes by their distance, if that is all it depends on."""
    places, found = list(work.values["p"]), work.values["L"]
    by_lag: dict[Any, set[Any]] = {}
    for i, p in enumerate(places):
        for j, q in enumerate(places):
            by_lag.setdefault(abs(p - q), set()).add(found[i, j])
    if all(len(values) == 1 for values in by_lag.values()):
        told = ", ".join(f"{lag}: {format_decimal(min(by_lag[lag]), 4)}" for lag in sorted(by_lag))
        work.add_remark(
            f"The product of two codes depends on their distance alone. By distance, {told}."
        )


def _say_shift(work: SolutionBuilder) -> None:
    """Turn everything one place further and see the scores stay."""
    moved = M([[x + y for x, y in zip(row, work.values["ω"], strict=True)]
               for row in work.values["Θ"].tolist()])  # fmt: skip
    q, k = (POSITION_RULES["rotate pairs"].run(work.values[one], moved) for one in "QK")
    gap = (q * k.T - work.values["S"]).evalf(30)
    if not gap.free_symbols and all(abs(x) < sympy.Float("1e-20") for x in gap):
        work.add_remark(
            "With every place one further, the scores stay as they are: only distance counts."
        )
