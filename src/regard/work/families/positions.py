"""Sinusoidal position encodings and rotary position embeddings (RoPE)."""

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
MAX_POSITIONS = 64
MAX_PAIR_PRODUCTS = 2000  # products of sinusoids in the Gram matrix; more take minutes


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
    """Sinusoidal encodings, the rotation that shifts them by k, and their dot products.

    PE(p, 2i) = sin(p · base^(-2i/d)),   PE(p, 2i+1) = cos(p · base^(-2i/d))
    PE(p + k) = R_k PE(p),   PE(p) · PE(q) = Σ_i cos((p - q) ω_i)

    Given: d and p, a number of positions from 0 or a list of them; k and base are optional.

    >>> solve_positions({"p": 1, "d": 4})["PE"]
    Matrix([[0, 1, 0, 1]])
    """
    check_given("positions", given)
    missing = [name for name in ("p", "d") if given.get(name) is None]
    if missing:
        raise WorkError(f"given: needs p and d, got no {' and no '.join(missing)}")
    others = {k: v for k, v in given.items() if k not in ("p", "base") and v is not None}
    builder = SolutionBuilder("positions", {"p": _parse_positions(given["p"]), **others})
    for name in ("d", "k"):
        value = builder.values.get(name)
        if value is not None and (value.shape != (1, 1) or not _is_small(value[0, 0])):
            raise WorkError(f"{name}: needs one number up to {MAX_DIM}, got {given[name]}")
    _add_angles(builder, given)
    builder.add_step("PE", "sines and cosines", "Θ", title="the encodings, one row per position")
    if "k" in builder.values:
        _add_shift(builder)
    rows, width = builder.values["PE"].shape
    if rows * rows * width <= MAX_PAIR_PRODUCTS:
        builder.add_step(
            "G", "product with transpose", "PE", "PE", title="the dot product of each pair"
        )
        builder.add_step(
            "L", "addition theorem", "G", title="simplified: a function of the distance"
        )
        _lag_remark(builder)
    return builder.build()


@family("rotary", given="Q K V p base B rel β")
def solve_rotary(given: Mapping[str, Any], *, scale: Any = None, mask: Any = None) -> Solution:
    """Attention with rotary position embeddings.

    Q_p = rotate(Q, p ω),   K_p = rotate(K, p ω),   S = Q_p K_pᵀ,   a function of distances only

    Given: Q and K; V, p (positions, default 0, 1 …) and base are optional.

    >>> solve_rotary({"Q": [[1, 0]], "K": [[1, 0]], "p": [[5]]})["Q_p"]
    Matrix([[cos(5), sin(5)]])
    """
    check_given("rotary", given)
    missing = [name for name in ("Q", "K") if given.get(name) is None]
    if missing:
        raise WorkError(f"given: needs Q and K, got no {' and no '.join(missing)}")
    q = parse_matrix(given["Q"], "Q")
    others = {k: v for k, v in given.items() if k not in ("p", "base") and v is not None}
    positions = _parse_positions(given["p"] if given.get("p") is not None else q.rows)
    builder = SolutionBuilder("rotary", {"p": positions, **others, "d": q.cols})
    _add_angles(builder, given)
    for letter, kind in (("Q", "queries"), ("K", "keys")):
        builder.add_step(
            f"{letter}_p", "rotate pairs", letter, "Θ", title=f"the {kind}, rotated by position"
        )
    if "V" in builder.values:
        add_attention(builder, "Q_p", "K_p", "V", setup=AttentionSetup(scale=scale, mask=mask))
    else:
        title = "the scores of each query and key"
        builder.add_step("S", "product with transpose", "Q_p", "K_p", title=title)
    _shift_remark(builder)
    return builder.build()


def _is_small(x: Any) -> bool:
    """Whether a number is symbolic or at most MAX_DIM."""
    return bool(x.free_symbols or abs(x) <= MAX_DIM)


def _parse_positions(spec: Any) -> Matrix:
    """Positions as a column: 0 … n - 1 for a number n, or the listed ones."""
    positions = parse_matrix(spec, "p")
    if positions.shape == (1, 1) and not isinstance(spec, list | tuple | sympy.MatrixBase):
        count = positions[0, 0]
        if not count.is_Integer or not 1 <= count <= MAX_POSITIONS:
            raise WorkError(
                f"p: needs a count from 1 to {MAX_POSITIONS}, or a row of positions, got {count}"
            )
        return M(list(range(int(count))))
    if 1 not in positions.shape or positions.has(sympy.oo):
        raise WorkError(f"p: needs one row of positions, got {positions.tolist()}")
    return M(list(positions))


def _add_angles(builder: SolutionBuilder, given: Mapping[str, Any]) -> None:
    builder.add_given("base", given.get("base", DEFAULT_BASE))
    builder.add_step("ω", "frequencies", "d", "base", title="the angular frequency of each pair")
    builder.add_step(
        "Θ", "product", "p", "ω", title="the angles: one row per position, one column per pair"
    )


def _add_shift(builder: SolutionBuilder) -> None:
    """Add R_k PE(p) and PE(p + k), for comparison."""
    builder.add_step("δ", "scale", "ω", "k", title="the angle of a shift by k")
    builder.add_step("R_k", "rotation", "δ", title="the matrix that shifts every encoding by k")
    builder.add_step("T", "product with transpose", "PE", "R_k", title="the shifted encodings")
    builder.add_step("T_k", "addition theorem", "T", title="simplified")
    builder.add_step("Θ_k", "add to rows", "Θ", "δ", title="the angles at p + k")
    builder.add_step(
        "PE_k", "sines and cosines", "Θ_k", title="the encodings of p + k, from the formula"
    )
    if builder.values["T_k"] == builder.values["PE_k"]:
        builder.add_remark(
            "R_k PE(p) equals PE(p + k) exactly, for every p: R_k depends on k only."
        )


def _lag_remark(builder: SolutionBuilder) -> None:
    """Remark the dot products by distance, if they depend on nothing else."""
    positions, products = list(builder.values["p"]), builder.values["L"]
    by_lag: dict[Any, set[Any]] = {}
    for i, p in enumerate(positions):
        for j, q in enumerate(positions):
            by_lag.setdefault(abs(p - q), set()).add(products[i, j])
    if all(len(values) == 1 for values in by_lag.values()):
        text = ", ".join(f"{lag}: {format_decimal(min(by_lag[lag]), 4)}" for lag in sorted(by_lag))
        builder.add_remark(
            f"The dot product of two encodings depends on their distance only. By distance: {text}."
        )


def _shift_remark(builder: SolutionBuilder) -> None:
    """Remark that the scores do not change when every position is shifted by 1."""
    shifted = M([[x + y for x, y in zip(row, builder.values["ω"], strict=True)]
               for row in builder.values["Θ"].tolist()])  # fmt: skip
    q, k = (POSITION_RULES["rotate pairs"].run(builder.values[name], shifted) for name in "QK")
    difference = (q * k.T - builder.values["S"]).evalf(30)
    if not difference.free_symbols and all(abs(x) < sympy.Float("1e-20") for x in difference):
        builder.add_remark(
            "Shifting every position by 1 does not change the scores: only distances matter."
        )
