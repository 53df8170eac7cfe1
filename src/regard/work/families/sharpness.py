"""Attention at several scales: from the mean of all values to the best key alone."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import evaluate_digits
from regard.work.exact.numbers import format_decimal, parse_number
from regard.work.families.attention import (
    ROW_SETUP,
    AttentionSetup,
    add_scores,
    add_softmax_output,
    project_qkv,
)
from regard.work.families.registry import family
from regard.work.solution import Solution, SolutionBuilder

DEFAULT_SCALES = (0, "default", 1, 10, "inf")


@family("sharpness")
def solve_sharpness(
    given: Mapping[str, Any], *, scales: Sequence[Any] = DEFAULT_SCALES
) -> Solution:
    """Weights, outputs and entropy of one attention at several scales β; tokens are rows.

    A_n = softmax(β_n Q Kᵀ),   β = 0: the mean of the values,   β → ∞: the value of the best key

    Given: as for attention. A scale is a number, "default" for 1/√d, or "inf". Entropy is in nats,
    at most log(number of keys).

    >>> given = {"Q": 1, "K": [[1], [2], [2], [0]], "V": [[1], [2], [4], [0]]}
    >>> solution = solve_sharpness(given, scales=[0, "inf"])
    >>> solution["A_1"], solution["A_2"]
    (Matrix([[1/4, 1/4, 1/4, 1/4]]), Matrix([[0, 1/2, 1/2, 0]]))
    """
    if isinstance(scales, str) or not isinstance(scales, Sequence) or not scales:
        raise WorkError(f'scales: needs a list such as [0, 1, "inf"], got {scales!r}')
    builder = SolutionBuilder("sharpness", dict(given))
    q, k, v = project_qkv(builder)
    s, width = add_scores(builder, q, k, "", ROW_SETUP), builder.values[q].cols
    default = 1 / sympy.sqrt(width)
    betas = sorted(
        (default if scale == "default" else parse_number(scale) for scale in scales),
        key=_scale_value,
    )
    for n, beta in enumerate(betas, 1):
        setup = AttentionSetup(scale=beta, scale_name=f"β_{n}")
        add_softmax_output(builder, s, width, v, f"_{n}", setup)
        title = "the entropy of the weights of each query"
        builder.add_step(f"h_{n}", "entropy of rows", f"A_{n}", title=title)
    _add_remarks(builder, betas)
    return builder.build()


def _scale_value(beta: Any) -> float:
    if not beta.is_number:
        raise WorkError(f"scales: needs numbers, got {beta}")
    return float(beta.evalf(15))


def _add_remarks(builder: SolutionBuilder, betas: list[Any]) -> None:
    """Remark the largest weight and the entropy of query 1 at each scale."""
    if any(builder.values[f"A_{n}"].free_symbols for n in range(1, len(betas) + 1)):
        return
    max_entropy = format_decimal(sympy.log(builder.values["S"].cols), 4)
    for n, beta in enumerate(betas, 1):
        weights, entropy = builder.values[f"A_{n}"].row(0), builder.values[f"h_{n}"][0, 0]
        largest = max(weights, key=lambda x: evaluate_digits(x, 20))
        value = "inf" if beta == sympy.oo else format_decimal(beta, 4)
        builder.add_remark(
            f"β = {value}: the largest weight of query 1 is {format_decimal(largest, 4)}, its "
            f"entropy {format_decimal(entropy, 4)} of {max_entropy}."
        )
    entropies = [builder.values[f"h_{n}"] for n in range(1, len(betas) + 1)]
    gaps = [float(gap.evalf(20)) for a, b in pairwise(entropies) for gap in a - b]
    if gaps and min(gaps) >= -1e-15:
        builder.add_remark("The entropy decreases with β: β is the inverse temperature.")
