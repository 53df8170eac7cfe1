"""Sinusoidal position encodings and rotary position embeddings (RoPE)."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.numbers import format_decimal, parse_matrix
from regard.work.families.attention import AttentionSetup, add_attention, add_scores
from regard.work.families.registry import declared_steps, family
from regard.work.rules import M, Matrix, get_rule
from regard.work.solution import Solution, SolutionBuilder

DEFAULT_BASE = 10000
MAX_DIM = 512
MAX_POSITIONS = 64
MAX_PAIR_PRODUCTS = 2000  # products of sinusoids in the Gram matrix; more take minutes


@family("positions")
def solve_positions(given: Mapping[str, Any]) -> Solution:
    """Sinusoidal encodings, the rotation that shifts them by k, and their dot products.

    PE(p, 2i) = sin(p · base^(-2i/d)),   PE(p, 2i+1) = cos(p · base^(-2i/d))
    PE(p + k) = R_k PE(p),   PE(p) · PE(q) = Σ_i cos((p - q) ω_i)

    Given: d and p, a number of positions from 0 or a list of them; k and base are optional.

    >>> solve_positions({"p": 1, "d": 4})["PE"]
    Matrix([[0, 1, 0, 1]])
    """
    others = {name: value for name, value in given.items() if name not in ("p", "base")}
    builder = SolutionBuilder("positions", {"p": _parse_positions(given["p"]), **others})
    for name in ("d", "k"):
        value = builder.values.get(name)
        is_large = value is not None and not value.free_symbols and abs(value[0, 0]) > MAX_DIM
        if value is not None and (value.shape != (1, 1) or is_large):
            raise WorkError(f"{name}: needs one number up to {MAX_DIM}, got {given[name]}")
    _add_angles(builder, given)
    builder.add_step("PE", "sines and cosines", "Θ", title="the encodings, one row per position")
    if "k" in builder.values:
        _add_shift(builder)
    rows, width = builder.values["PE"].shape
    if rows * rows * width <= MAX_PAIR_PRODUCTS:
        builder.add_steps(*declared_steps("positions", "products"))
        _lag_remark(builder)
    return builder.build()


@family("rotary")
def solve_rotary(given: Mapping[str, Any], *, scale: Any = None, mask: Any = None) -> Solution:
    """Attention with rotary position embeddings.

    Q_p = rotate(Q, p ω),   K_p = rotate(K, p ω),   S = Q_p K_pᵀ,   a function of distances only

    Given: Q and K; V, p (positions, default 0, 1 …) and base are optional.

    >>> solve_rotary({"Q": [[1, 0]], "K": [[1, 0]], "p": [[5]]})["Q_p"]
    Matrix([[cos(5), sin(5)]])
    """
    q = parse_matrix(given["Q"], "Q")
    others = {name: value for name, value in given.items() if name not in ("p", "base")}
    positions = _parse_positions(given.get("p", q.rows))
    builder = SolutionBuilder("rotary", {"p": positions, **others, "d": q.cols})
    _add_angles(builder, given)
    builder.add_steps(*declared_steps("rotary", "rotated"))
    setup = AttentionSetup(scale=scale, mask=mask)
    if "V" in builder.values:
        add_attention(builder, "Q_p", "K_p", "V", setup=setup)
    else:
        add_scores(builder, "Q_p", "K_p", "", setup)
    _shift_remark(builder)
    return builder.build()


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
    builder.add_steps(*declared_steps("positions", "angles"))


def _add_shift(builder: SolutionBuilder) -> None:
    """Add R_k PE(p) and PE(p + k), for comparison."""
    builder.add_steps(*declared_steps("positions", "shift"))
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
    shifted = get_rule("add to rows").run(builder.values["Θ"], builder.values["ω"])
    q, k = (get_rule("rotate pairs").run(builder.values[name], shifted) for name in "QK")
    difference = (q * k.T - builder.values["S"]).evalf(30)
    if not difference.free_symbols and all(abs(x) < sympy.Float("1e-20") for x in difference):
        builder.add_remark(
            "Shifting every position by 1 does not change the scores: only distances matter."
        )
