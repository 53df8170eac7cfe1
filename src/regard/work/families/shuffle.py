"""The tokens in another order, by hand: what attention makes of it, alone, pooled, or masked."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import evaluate_digits
from regard.work.exact.numbers import format_decimal, parse_matrix
from regard.work.families.attention import AttentionSetup, add_attention, project_qkv
from regard.work.families.names import PROJECTION_NAMES
from regard.work.families.registry import ExerciseTemplate, check_given, family
from regard.work.rules import M, Matrix
from regard.work.solution import Solution, SolutionBuilder

ZERO_TOLERANCE = 1e-30  # what is left of numbers that were carried to 50 digits
_ORDERS = ([3, 1, 2], [2, 3, 1], [2, 1, 3], [3, 2, 1])
_QUESTIONS = ("H_1", "H_2", "PH", "D", "c_1", "c_2", "d")


@family(
    "shuffle",
    given=f"X order {PROJECTION_NAMES} B rel β",
    exercises=(
        ExerciseTemplate({"X": (2, 2)}, {"order": ([2, 1],)}, {"scale": (1,)}, _QUESTIONS),
        ExerciseTemplate({"X": (3, 2)}, {"order": _ORDERS}, {"scale": (1,)}, _QUESTIONS),
        ExerciseTemplate({"X": (3, 2)}, {"order": _ORDERS}, {"mask": ("causal",)}, _QUESTIONS),
    ),
)
def solve_shuffle(given: Mapping[str, Any], *, scale: Any = None, mask: Any = None) -> Solution:
    """Attention over tokens, and over the same tokens in another order; tokens are rows.

    without a mask:  f(P X) = P f(X),   1ᵀ f(P X) = 1ᵀ f(X);   with a causal mask neither

    Given are X, order (which token stands where, from 1), and W_Q, W_K, W_V where wanted.

    >>> worked = solve_shuffle({"X": [[1], [2], [0]], "order": [3, 1, 2]}, scale=1)
    >>> worked["D"]
    Matrix([
    [0],
    [0],
    [0]])
    """
    check_given("shuffle", given)
    for name in ("X", "order"):
        if given.get(name) is None:
            raise WorkError(f"given: needs X and order, got no {name}")
    x, ways = parse_matrix(given["X"], "X"), AttentionSetup(True, scale, mask)
    rest = {k: v for k, v in given.items() if k not in ("X", "order") and v is not None}
    work = SolutionBuilder("shuffle", {"X": x, "P": _order(given["order"], x.rows), **rest})
    add_attention(work, *project_qkv(work, suffix="_1"), suffix="_1", setup=ways)
    work.add_step("X_P", "product", "P", "X", title="the same tokens in another order")
    add_attention(
        work, *project_qkv(work, suffix="_2", sources=("X_P", "X_P")), suffix="_2", setup=ways
    )
    work.add_step("PH", "product", "P", "H_1", title="the first outputs, brought into that order")
    work.add_step("D", "subtract", "H_2", "PH", title="by how much order matters to each token")
    work.add_step("c_1", "sum over columns", "H_1", title="pooled over the tokens: the first order")
    work.add_step("c_2", "sum over columns", "H_2", title="and the other")
    work.add_step("d", "subtract", "c_2", "c_1", title="by how much order matters once pooled")
    _remarks(work)
    return work.build()


def _order(told: Any, count: int) -> Matrix:
    order = [int(n) if n.is_Integer else 0 for n in parse_matrix(told, "order")]
    if sorted(order) != list(range(1, count + 1)):
        raise WorkError(f"order: needs each of 1 to {count} once, got {told}")
    return M([[int(j + 1 == n) for j in range(count)] for n in order])


def _remarks(work: SolutionBuilder) -> None:
    same = M.eye(work.values["P"].rows) == work.values["P"]
    for name, alike, apart in (
        ("D", "the outputs are the same, in the new order: attention is equivariant",
         "the outputs are not the same in the new order"),
        ("d", "pooled, nothing is left of the order: invariant",
         "pooled, the order still shows"),
    ):  # fmt: skip
        most = max(
            (abs(evaluate_digits(x, 20)) for x in work.values[name]), default=sympy.Integer(0)
        )
        told = alike if most < ZERO_TOLERANCE else f"{apart}: up to {format_decimal(most, 3)}"
        work.add_remark(f"{name}: {told}.")
    if work.values["H_1"] != work.values["H_2"] and not same:
        work.add_remark(
            "Place by place the outputs do change: attention is not invariant by itself."
        )
