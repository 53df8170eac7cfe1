"""Parameter and token counts of attention, feed-forward and Vision Transformers."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.families.registry import declared_steps, family
from regard.work.solution import Solution, SolutionBuilder


@family("counts")
def solve_counts(given: Mapping[str, Any]) -> Solution:
    """Count parameters of attention and feed-forward layers, and tokens of an image.

    d, h:            d_k = d / h,   3 d² weights for Q, K and V whatever h is, d² for W_O
    with d_ff:       2 d d_ff weights and d_ff + d biases of the feed-forward
    side, P, C:      N = (side / P)² patches of P² C numbers, N + 1 tokens

    >>> solve_counts({"d": 512, "h": 8})["d_k"]
    Matrix([[64]])
    >>> solve_counts({"side": 224, "P": 16, "C": 3})["tokens"]
    Matrix([[197]])
    """
    builder = SolutionBuilder("counts", dict(given))
    for name, value in builder.given.items():
        if value.shape != (1, 1) or not value[0, 0].is_Integer or value[0, 0] < 1:
            raise WorkError(f"{name}: needs one whole number from 1 on, got {value.tolist()}")
    sizes = set(builder.given)
    if {"d", "h"} <= sizes:
        _add_heads(builder)
    if {"d", "d_ff"} <= sizes:
        _add_feed_forward(builder)
    if {"side", "P"} <= sizes:
        _add_patches(builder)
    if not builder.steps:
        names = ", ".join(sizes) or "nothing"
        raise WorkError(f"given: needs d and h, d and d_ff, or side and P, got {names}")
    return builder.build()


def _add_exact_quotient(
    builder: SolutionBuilder, name: str, numerator: str, denominator: str, title: str
) -> str:
    """Add a quotient that must be an integer."""
    builder.add_step(name, "quotient", numerator, denominator, title=title)
    if not builder.values[name][0, 0].is_Integer:
        a, b = (int(builder.values[size][0, 0]) for size in (numerator, denominator))
        divisors = ", ".join(str(n) for n in range(1, a + 1) if a % n == 0)
        raise WorkError(
            f"{denominator}: needs a divisor of {numerator} = {a}, got {b}; try one of {divisors}"
        )
    return name


def _add_heads(builder: SolutionBuilder) -> None:
    _add_exact_quotient(builder, "d_k", "d", "h", "the width of one head")
    builder.add_steps(*declared_steps("counts", "heads"))


def _add_feed_forward(builder: SolutionBuilder) -> None:
    builder.add_steps(*declared_steps("counts", "feed_forward"))


def _add_patches(builder: SolutionBuilder) -> None:
    _add_exact_quotient(builder, "g", "side", "P", "patches along one side")
    builder.add_steps(*declared_steps("counts", "patches"))
    vector = "p"
    if "C" in builder.values:
        vector = builder.add_step("v", "elementwise product", "p", "C", title="values per patch")
    if "d" in builder.values:
        builder.add_steps(*declared_steps("counts", "tokens", vector=vector))
