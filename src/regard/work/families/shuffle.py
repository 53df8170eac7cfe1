"""Permutation equivariance of attention, with and without a mask."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.evaluate import evaluate_digits
from regard.work.exact.numbers import format_decimal, parse_matrix
from regard.work.families.attention import AttentionSetup, add_attention, project_qkv
from regard.work.families.registry import declared_steps, family
from regard.work.rules import M, Matrix
from regard.work.solution import Solution, SolutionBuilder

ZERO_TOLERANCE = 1e-30  # zero within the 50 digits carried


@family("shuffle")
def solve_shuffle(given: Mapping[str, Any], *, scale: Any = None, mask: Any = None) -> Solution:
    """Attention over tokens and over the same tokens permuted; tokens are rows.

    without a mask:  f(P X) = P f(X),   1ᵀ f(P X) = 1ᵀ f(X);   with a causal mask neither

    Given: X and order (1-based); W_Q, W_K, W_V are optional.

    >>> solution = solve_shuffle({"X": [[1], [2], [0]], "order": [3, 1, 2]}, scale=1)
    >>> solution["D"]
    Matrix([
    [0],
    [0],
    [0]])
    """
    x, setup = parse_matrix(given["X"], "X"), AttentionSetup(True, scale, mask)
    rest = {name: value for name, value in given.items() if name not in ("X", "order")}
    builder = SolutionBuilder("shuffle", {"X": x, "P": _order(given["order"], x.rows), **rest})
    add_attention(builder, *project_qkv(builder, suffix="_1"), "_1", setup)
    builder.add_step("X_P", "product", "P", "X", title="the permuted tokens")
    permuted = project_qkv(builder, suffix="_2", sources=("X_P", "X_P"))
    add_attention(builder, *permuted, "_2", setup)
    builder.add_steps(*declared_steps("shuffle", "compared"))
    _remarks(builder)
    return builder.build()


def _order(spec: Any, count: int) -> Matrix:
    order = [int(n) if n.is_Integer else 0 for n in parse_matrix(spec, "order")]
    if sorted(order) != list(range(1, count + 1)):
        raise WorkError(f"order: needs each of 1 to {count} once, got {spec}")
    return M([[int(j + 1 == n) for j in range(count)] for n in order])


def _remarks(builder: SolutionBuilder) -> None:
    is_identity = M.eye(builder.values["P"].rows) == builder.values["P"]
    for name, equal, different in (
        ("D", "the outputs are permuted like the tokens: attention is equivariant",
         "the outputs are not permuted like the tokens"),
        ("d", "the sum does not depend on the order: invariant",
         "the sum depends on the order"),
    ):  # fmt: skip
        largest = max(abs(evaluate_digits(x, 20)) for x in builder.values[name])
        result = f"{different}: up to {format_decimal(largest, 3)}"
        result = equal if largest < ZERO_TOLERANCE else result
        builder.add_remark(f"{name}: {result}.")
    if builder.values["H_1"] != builder.values["H_2"] and not is_identity:
        builder.add_remark("The output at each position changes: attention alone is not invariant.")
