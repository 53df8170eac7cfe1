"""Attention with one key, query or token perturbed: exact change, first and second order."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.exact.numbers import format_decimal, parse_matrix
from regard.work.families.attention import AttentionSetup, add_attention, project_qkv
from regard.work.families.names import ATTENTION_NAMES
from regard.work.families.registry import ExerciseTemplate, check_given, family
from regard.work.rules import M, get_rule
from regard.work.solution import Solution, SolutionBuilder

TARGETS = {"key": "K", "query": "Q", "token": "X"}
MIN_CHANGE = 1e-25  # zero within the 50 digits carried
_QKV_SHAPES = {"Q": (2, 2), "K": (3, 2), "V": (3, 2)}
_OPTIONS = {"scale": (1,), "index": (1, 2)}
_QUESTIONS = ("A", "H", "S_a", "A_a", "H_a", "dS", "dA", "dH")


@family(
    "perturb",
    given=f"{ATTENTION_NAMES} eps alpha",
    exercises=(
        ExerciseTemplate(
            _QKV_SHAPES, {"eps": ([1, 0], [0, 1])}, _OPTIONS | {"target": ("query",)}, _QUESTIONS
        ),
        ExerciseTemplate(
            _QKV_SHAPES, {"eps": ([1, 0], [0, 1])}, _OPTIONS | {"target": ("key",)}, _QUESTIONS
        ),
        ExerciseTemplate(
            _QKV_SHAPES, {"alpha": (2, 3)}, _OPTIONS | {"target": ("key",)}, _QUESTIONS
        ),
    ),
)
def solve_perturb(
    given: Mapping[str, Any],
    *,
    target: str = "key",
    index: int = 1,
    scale: Any = None,
    noise_std: Any = None,
) -> Solution:
    """Attention before and after one key, query or token is moved by `eps` or scaled by `alpha`.

    dA ≈ A ∘ (D - D̄) + ½ A ∘ ((D - D̄)² - Var D),   D = β dS, means by the weights of the row

    A token is query and key, so the scores have a second-order term: dS = S_1 + S_2 with
    S_1 = dQ Kᵀ + Q dKᵀ and S_2 = dQ dKᵀ. Then D = β S_1, and A ∘ (β S_2 - its mean) is added to
    the second order.

    Given: Q, K, V, or X (and W_Q, W_K, W_V), tokens as rows, and eps or alpha.

    Args:
        given: matrices by name.
        target: "key", "query" or "token".
        index: 1-based index of the row that changes.
        scale: β; 1/√d if None.
        noise_std: adds the expected change for Gaussian noise of this standard deviation.

    >>> given = {"Q": [[1], [-1]], "K": [[1], [1]], "V": [[0], [1]], "alpha": 2}
    >>> solution = solve_perturb(given, scale=1)
    >>> [round(float(x), 7) for x in solution["A_a"].col(0)]
    [0.7310586, 0.2689414]
    """
    if target not in tuple(TARGETS):
        raise WorkError(f"target: needs one of {', '.join(TARGETS)}, got {target!r}")
    if not isinstance(index, int) or isinstance(index, bool):
        raise WorkError(f"index: needs a whole number from 1 on, got {index!r}")
    if ("eps" in given) == ("alpha" in given):
        got = "both" if "eps" in given else "neither"
        raise WorkError(f"given: needs eps to move by or alpha to scale by, got {got}")
    check_given("perturb", given)
    rest = {name: value for name, value in given.items() if name not in ("eps", "alpha")}
    builder, setup = SolutionBuilder("perturb", rest), AttentionSetup(scale=scale)
    before = project_qkv(builder)
    add_attention(builder, *before, setup=setup)
    after = _add_change(builder, given, target, index, before)
    add_attention(builder, *after, "_a", setup)
    _add_orders(builder, before, after)
    if noise_std is not None:
        _add_mean_change(builder, target, before, noise_std)
    if not any(value.free_symbols for value in builder.given.values()):
        _remarks(builder, target, index, before)
    return builder.build()


def _add_change(
    builder: SolutionBuilder,
    given: Mapping[str, Any],
    target: str,
    index: int,
    names: tuple[str, str, str],
) -> tuple[str, str, str]:
    """Add the perturbed row; return the names of queries, keys and values after the change."""
    q, k, v = names
    source = {"key": k, "query": q, "token": "X"}[target]
    if source not in builder.values:
        raise WorkError(f"given: needs X for a token that changes, got {', '.join(builder.given)}")
    if target == "token" and (extra := [name for name in "QKV" if name in builder.given]):
        # given queries, keys or values would not change with the token
        got = " and ".join(extra)
        raise WorkError(f"given: needs X and weights for a token that changes, got {got} too")
    builder.add_given("i", index)
    name = f"{TARGETS[target]}_a"
    if "eps" in given:
        change = parse_matrix(given["eps"], "eps")
        builder.add_given("ε", change if change.rows == 1 else change.T)
        builder.add_step(
            name, "move one row", source, "ε", "i", title=f"{target} {index}, moved by ε"
        )
    else:
        builder.add_given("α", given["alpha"])
        builder.add_step(
            name, "scale one row", source, "α", "i", title=f"{target} {index}, scaled by α"
        )
    if target == "token":
        return project_qkv(builder, suffix="_a", sources=("X_a", "X_a"))
    return (q, name, v) if target == "key" else (name, k, v)


def _add_orders(builder: SolutionBuilder, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Add the exact differences and their first- and second-order approximations."""
    for name, title in {"S": "the scores", "A": "the weights", "H": "the outputs"}.items():
        builder.add_step(f"d{name}", "subtract", f"{name}_a", name, title=f"the change of {title}")
    if before[0] != after[0] and before[1] != after[1]:
        _add_bilinear_orders(builder, before, after)
    else:
        d = _add_scaled(builder, "D", "dS", "the change of the scaled scores")
        builder.add_step(
            "A_1", "softmax, first order", "A", d, title="the first-order change of the weights"
        )
        builder.add_step("A_2", "softmax, second order", "A", d, title="the second-order term")
    v = before[2]
    first_order, second_order = "H_1", "H_2"
    if v != after[2]:
        if f"d{v}" not in builder.values:  # without weights X is queries, keys and values
            builder.add_step(f"d{v}", "subtract", after[2], v, title="the change of the values")
        first_order, second_order = "P_1", "P_2"
    builder.add_step(
        first_order, "product", "A_1", v, title="first order of the outputs: due to the weights"
    )
    builder.add_step(second_order, "product", "A_2", v, title="the second-order term")
    if v != after[2]:
        builder.add_step("V_1", "product", "A", f"d{v}", title="first order: due to the values")
        builder.add_step("H_1", "add", "P_1", "V_1", title="first order of the outputs")
        builder.add_step("V_2", "product", "A_1", f"d{v}", title="second order: due to both")
        builder.add_step("H_2", "add", "P_2", "V_2", title="the second-order term")
    builder.add_step("R_1", "subtract", "dH", "H_1", title="the first-order error")
    builder.add_step("R_2", "subtract", "R_1", "H_2", title="the second-order error")
    for name, matrix in {"n_0": "dH", "n_1": "R_1", "n_2": "R_2"}.items():
        builder.add_step(name, "norm of 1", matrix, title=f"the norm of {matrix}")


def _add_bilinear_orders(
    builder: SolutionBuilder, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """Orders of the weights where queries and keys both change: S = Q Kᵀ is bilinear.

    S(t) = S + t S_1 + t² S_2 exactly, so S_2 enters the second order of the weights.
    """
    (q, k, _), (q_a, k_a, _) = before, after
    dq = builder.add_step(f"d{q}", "subtract", q_a, q, title="the change of the queries")
    dk = (
        dq
        if q == k
        else builder.add_step(f"d{k}", "subtract", k_a, k, title="the change of the keys")
    )
    rule = "product with transpose"
    builder.add_step("S_q", rule, dq, k, title="first order of the scores: due to the queries")
    builder.add_step("S_k", rule, q, dk, title="first order of the scores: due to the keys")
    builder.add_step("S_1", "add", "S_q", "S_k", title="first order of the scores")
    builder.add_step("S_2", rule, dq, dk, title="second order: the token's own score")
    first_order = _add_scaled(builder, "D_1", "S_1", "the first order of the scaled scores")
    second_order = _add_scaled(builder, "D_2", "S_2", "the second order of the scaled scores")
    builder.add_step(
        "A_1",
        "softmax, first order",
        "A",
        first_order,
        title="the first-order change of the weights",
    )
    title = "second order: due to the first order of the scores"
    builder.add_step("B_1", "softmax, second order", "A", first_order, title=title)
    title = "second order: due to the second order of the scores"
    builder.add_step("B_2", "softmax, first order", "A", second_order, title=title)
    builder.add_step("A_2", "add", "B_1", "B_2", title="the second-order term")
    whole = M(builder.values[first_order] + builder.values[second_order])
    title = "the change of the token's own score was not split by order"
    builder.add_mistake(
        "A_1", title, get_rule("softmax, first order").run(builder.values["A"], whole)
    )


def _add_scaled(builder: SolutionBuilder, name: str, scores: str, title: str) -> str:
    """β times the change of the scores; the change itself where β is 1."""
    return (
        builder.add_step(name, "scale", scores, "β", title=title)
        if "Z" in builder.values
        else scores
    )


def _add_mean_change(
    builder: SolutionBuilder, target: str, names: tuple[str, str, str], noise_std: Any
) -> None:
    if target == "token":
        raise WorkError("noise_std: needs a key or a query that changes, got a token")
    builder.add_given("σ", noise_std)
    source = names[0] if target == "key" else names[1]
    title = f"the mean change of the outputs for noise of standard deviation σ in the {target}"
    builder.add_step(
        "m", f"mean change, {target} noise", source, "A", names[2], "H", "β", "σ", "i", title=title
    )
    builder.add_remark(
        f"Noise in the {target} with mean 0 changes the outputs on average: the second-order term "
        "m remains, and grows with σ². Each single sample changes them at first order."
    )


def _remarks(
    builder: SolutionBuilder, target: str, index: int, names: tuple[str, str, str]
) -> None:
    changed = {name: _changed_entries(builder, f"d{name}") for name in "SAH"}
    counts_by_name = {name: len(changed[name]) for name in "SA"}
    rows = sorted({i for i, _ in changed["H"]})
    total = builder.values["H"].rows
    counts = " and ".join(
        f"{counts_by_name[n]} of {len(builder.values[n])} entries of {n}" for n in "SA"
    )
    builder.add_remark(
        f"Changing {target} {index} changes {counts}, and {len(rows)} of {total} outputs"
        + (f" ({', '.join(map(str, rows))})." if rows else ".")
    )
    sizes = [format_decimal(builder.values[name][0], 3) for name in ("n_0", "n_1", "n_2")]
    builder.add_remark(
        f"The outputs change by {sizes[0]}; the error of the first order is {sizes[1]}, of the "
        f"second {sizes[2]}."
    )
    if target == "key":
        _key_remarks(builder, index, names)


def _key_remarks(builder: SolutionBuilder, index: int, names: tuple[str, str, str]) -> None:
    """Remark each query's weight on the changed key; for a scaled key, the sign rule."""
    column = index - 1
    change = []
    for row in range(builder.values["A"].rows):
        old, new = (format_decimal(builder.values[name][row, column], 3) for name in ("A", "A_a"))
        score = format_decimal(builder.values["S"][row, column], 3)
        change.append(f"query {row + 1}: score {score}, weight {old} → {new}")
    builder.add_remark(f"On key {index}: {'; '.join(change)}.")
    if "α" in builder.values:
        builder.add_remark(
            "Scaling a key by α > 1 raises its weight where its score is positive, lowers it where "
            "negative, and leaves scores of 0 unchanged; as α grows the weight tends to 1 or 0, "
            "and the output to the key's value or to the weighted mean of the others."
        )
    builder.add_remark(
        "To first order an output changes by β (q·dk) a (v - h), and v - h is (1 - a) times the "
        "difference between v and the mean of the others: largest at a = ½, 0 at a = 0 and a = 1."
    )


def _changed_entries(builder: SolutionBuilder, name: str) -> list[tuple[int, int]]:
    value = builder.values[name]
    return [
        (i + 1, j + 1)
        for i in range(value.rows)
        for j in range(value.cols)
        if abs(to_float(value[i, j])) > MIN_CHANGE
    ]
