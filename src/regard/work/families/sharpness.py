"""One attention at several sharpnesses by hand: from the plain mean to the best key alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import evaluate_digits
from regard.work.exact.numbers import format_decimal, parse_number
from regard.work.families.attention import (
    AttentionSetup,
    add_scores,
    add_softmax_output,
    project_qkv,
)
from regard.work.families.names import ATTENTION_NAMES
from regard.work.families.registry import check_given, family
from regard.work.rules import M
from regard.work.solution import Solution, SolutionBuilder

DEFAULT_SCALES = (0, "default", 1, 10, "inf")


@family("sharpness", given=f"{ATTENTION_NAMES} Y")
def solve_sharpness(
    given: Mapping[str, Any], *, scales: Sequence[Any] = DEFAULT_SCALES
) -> Solution:
    """The weights and outputs of one attention at several scales β; tokens are rows.

    A_n = softmax(β_n Q Kᵀ),   β = 0: the mean of the values,   β → ∞: the value of the best key

    Given as for attention. A scale is a number, "usual" for 1/√d, or "inf". The entropy of each
    query's weights (in nats) says how much it spreads: log of the count of keys at most.

    >>> told = {"Q": 1, "K": [[1], [2], [2], [0]], "V": [[1], [2], [4], [0]]}
    >>> worked = solve_sharpness(told, scales=[0, "inf"])
    >>> worked["A_1"], worked["A_2"]
    (Matrix([[1/4, 1/4, 1/4, 1/4]]), Matrix([[0, 1/2, 1/2, 0]]))
    """
    if isinstance(scales, str) or not isinstance(scales, Sequence) or not scales:
        raise WorkError(f'scales: needs a list such as [0, 1, "inf"], got {scales!r}')
    check_given("sharpness", given)
    work = SolutionBuilder("sharpness", {k: v for k, v in given.items() if v is not None})
    q, k, v = project_qkv(work)
    s, width = add_scores(work, q, k, "", AttentionSetup()), work.values[q].cols
    usual = 1 / sympy.sqrt(width)
    betas = sorted((usual if one == "default" else parse_number(one) for one in scales), key=_size)
    for n, beta in enumerate(betas, 1):
        add_softmax_output(
            work, s, width, v, f"_{n}", AttentionSetup(scale=beta, scale_name=f"β_{n}")
        )
        says = "the entropy: how much each query spreads"
        work.add_step(f"h_{n}", "entropy of rows", f"A_{n}", title=says)
    _say(work, betas)
    return work.build()


def _size(beta: Any) -> float:
    if not beta.is_number:
        raise WorkError(f"scales: needs numbers, got {beta}")
    return float(beta.evalf(15))


def _say(work: SolutionBuilder, betas: list[Any]) -> None:
    """What happens from the smallest to the largest β, for the first query and for all."""
    if any(work.values[f"A_{n}"].free_symbols for n in range(1, len(betas) + 1)):
        return
    for n, beta in enumerate(betas, 1):
        weights, spread = work.values[f"A_{n}"].row(0), work.values[f"h_{n}"][0, 0]
        most = max(weights, key=lambda x: evaluate_digits(x, 20))
        work.add_remark(
            f"β = {'inf' if beta == sympy.oo else format_decimal(beta, 4)}: the largest weight of query 1 "
            f"is {format_decimal(most, 4)}, its entropy {format_decimal(spread, 4)} of {_most(work)}."
        )
    falls = all(_is_not_more(work, n) for n in range(1, len(betas)))
    if falls and len(betas) > 1:
        work.add_remark(
            "The larger β is, the less each query spreads: β is one over the temperature."
        )


def _most(work: SolutionBuilder) -> str:
    return format_decimal(sympy.log(work.values["S"].cols), 4)


def _is_not_more(work: SolutionBuilder, n: int) -> bool:
    """Whether no query spreads more at the next scale."""
    gaps = M(work.values[f"h_{n}"] - work.values[f"h_{n + 1}"])
    return all(float(gap.evalf(20)) >= -1e-15 for gap in gaps)
