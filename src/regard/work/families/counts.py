"""Sizes by hand: the width of a head, the weights of a block, the tokens of a picture."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.families.registry import ExerciseTemplate, check_given, family
from regard.work.solution import Solution, SolutionBuilder


@family(
    "counts",
    given="d h d_ff side P C",
    exercises=(
        ExerciseTemplate(value_choices={"d": (64, 128, 256), "h": (2, 4, 8)}),
        ExerciseTemplate(value_choices={"d": (512, 768), "h": (8,), "d_ff": (2048, 3072)}),
        ExerciseTemplate(value_choices={"side": (224, 96), "P": (16, 8), "C": (3, 1)}),
    ),
)
def solve_counts(given: Mapping[str, Any]) -> Solution:
    """Count what an attention, its feed-forward or a Vision Transformer holds.

    d, h:            d_k = d / h,   3 d² weights for Q, K and V whatever h is, d² for W_O
    with d_ff:       2 d d_ff weights and d_ff + d biases of the feed-forward
    side, P, C:      N = (side / P)² patches of P² C numbers, N + 1 tokens

    >>> solve_counts({"d": 512, "h": 8})["d_k"]
    Matrix([[64]])
    >>> solve_counts({"side": 224, "P": 16, "C": 3})["tokens"]
    Matrix([[197]])
    """
    check_given("counts", given)
    work = SolutionBuilder("counts", {k: v for k, v in given.items() if v is not None})
    for name, value in work.given.items():
        if value.shape != (1, 1) or not value[0, 0].is_Integer or value[0, 0] < 1:
            raise WorkError(f"{name}: needs one whole number from 1 on, got {value.tolist()}")
    known = set(work.given)
    if {"d", "h"} <= known:
        _heads(work)
    if {"d", "d_ff"} <= known:
        _feed_forward(work)
    if {"side", "P"} <= known:
        _pictures(work)
    if not work.steps:
        some = ", ".join(known) or "nothing"
        raise WorkError(f"given: needs d and h, d and d_ff, or side and P, got {some}")
    return work.build()


def _whole(work: SolutionBuilder, name: str, over: str, under: str, says: str) -> str:
    """A quotient that has to come out even."""
    work.add_step(name, "quotient", over, under, title=says)
    if not work.values[name][0, 0].is_Integer:
        a, b = (int(work.values[one][0, 0]) for one in (over, under))
        fit = ", ".join(str(n) for n in range(1, a + 1) if a % n == 0)
        raise WorkError(f"{under}: needs a divisor of {over} = {a}, got {b}; try one of {fit}")
    return name


def _heads(work: SolutionBuilder) -> None:
    _whole(work, "d_k", "d", "h", "the width of one head")
    work.add_step(
        "w_1", "elementwise product", "d", "d_k", title="the weights of one head's queries"
    )
    work.add_step(
        "w_Q", "elementwise product", "h", "w_1", title="of all heads: d² again, whatever h is"
    )
    work.add_step("w_QKV", "times 3", "w_Q", title="with those of keys and values")
    work.add_step("w_O", "square", "d", title="the matrix that mixes the heads")
    work.add_step("w_A", "add", "w_QKV", "w_O", title="all weights of the attention")


def _feed_forward(work: SolutionBuilder) -> None:
    work.add_step(
        "w_F", "elementwise product", "d", "d_ff", title="the weights up, and as many down"
    )
    work.add_step("w_FF", "times 2", "w_F", title="both together")
    work.add_step("b_FF", "add", "d_ff", "d", title="the biases")
    work.add_step("FF", "add", "w_FF", "b_FF", title="the feed-forward")


def _pictures(work: SolutionBuilder) -> None:
    _whole(work, "g", "side", "P", "patches along one side")
    work.add_step("N", "square", "g", title="patches")
    work.add_step("tokens", "plus 1", "N", title="with the class token")
    work.add_step("p", "square", "P", title="numbers of one patch and channel")
    vector = "p"
    if "C" in work.values:
        vector = work.add_step(
            "v", "elementwise product", "p", "C", title="the vector of one patch"
        )
    if "d" in work.values:
        work.add_step(
            "w_E", "elementwise product", vector, "d", title="the weights that embed a patch"
        )
        work.add_step("w_P", "elementwise product", "tokens", "d", title="the table of positions")
