"""Attention with one key, query or token perturbed: exact change, first and second order."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.exact.numbers import format_decimal, parse_matrix
from regard.work.families.attention import AttentionSetup, add_attention, project_qkv
from regard.work.families.registry import check_choice, declared_steps, family
from regard.work.rules import M, Matrix, get_rule
from regard.work.solution import Solution, SolutionBuilder

TARGETS = {"key": "K", "query": "Q", "token": "X"}
MIN_CHANGE = 1e-25  # zero within the 50 digits carried


@family("perturb")
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
    check_choice("target", target, TARGETS)
    if not isinstance(index, int) or isinstance(index, bool):
        raise WorkError(f"index: needs a whole number from 1 on, got {index!r}")
    if ("eps" in given) == ("alpha" in given):
        got = "both" if "eps" in given else "neither"
        raise WorkError(f"given: needs eps to move by or alpha to scale by, got {got}")
    rest = {name: value for name, value in given.items() if name not in ("eps", "alpha")}
    builder, setup = SolutionBuilder("perturb", rest), AttentionSetup(scale=scale)
    before = project_qkv(builder)
    add_attention(builder, *before, setup=setup)
    after = _add_change(builder, given, target, index, before)
    add_attention(builder, *after, "_a", setup)
    _add_orders(builder, before, after)
    if noise_std is not None:
        _add_mean_change(builder, target, before, noise_std)
    if not builder.has_symbols:
        _remarks(builder, target, index)
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
        rule, by, verb = "move one row", "ε", "moved"
    else:
        builder.add_given("α", given["alpha"])
        rule, by, verb = "scale one row", "α", "scaled"
    builder.add_step(name, rule, source, by, "i", title=f"{target} {index}, {verb} by {by}")
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
        builder.add_steps(*declared_steps("perturb", "weights", d=d))
    v = before[2]
    changes = v != after[2]
    if changes and f"d{v}" not in builder.values:  # without weights X is queries, keys and values
        builder.add_step(f"d{v}", "subtract", after[2], v, title="the change of the values")
    order = "P" if changes else "H"
    builder.add_steps(*declared_steps("perturb", "outputs", v=v, order=order))
    if changes:
        builder.add_steps(*declared_steps("perturb", "output_orders", v=v))
    builder.add_steps(*declared_steps("perturb", "errors"))


def _add_bilinear_orders(
    builder: SolutionBuilder, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """Orders of the weights where queries and keys both change: S = Q Kᵀ is bilinear.

    S(t) = S + t S_1 + t² S_2 exactly, so S_2 enters the second order of the weights.
    """
    (q, k, _), (q_a, k_a, _) = before, after
    dq = dk = builder.add_step(f"d{q}", "subtract", q_a, q, title="the change of the queries")
    if q != k:
        dk = builder.add_step(f"d{k}", "subtract", k_a, k, title="the change of the keys")
    builder.add_steps(*declared_steps("perturb", "score_orders", dq=dq, k=k, q=q, dk=dk))
    d_1 = _add_scaled(builder, "D_1", "S_1", "the first order of the scaled scores")
    d_2 = _add_scaled(builder, "D_2", "S_2", "the second order of the scaled scores")
    builder.add_steps(*declared_steps("perturb", "weight_orders", d_1=d_1, d_2=d_2))
    whole = M(builder.values[d_1] + builder.values[d_2])
    title = "the change of the token's own score was not split by order"
    builder.add_mistake(
        "A_1", title, get_rule("softmax, first order").run(builder.values["A"], whole)
    )


def _add_scaled(builder: SolutionBuilder, name: str, scores: str, title: str) -> str:
    """β times the change of the scores; the change itself where β is 1."""
    if "Z" not in builder.values:
        return scores
    return builder.add_step(name, "scale", scores, "β", title=title)


def _add_mean_change(
    builder: SolutionBuilder, target: str, names: tuple[str, str, str], noise_std: Any
) -> None:
    if target == "token":
        raise WorkError("noise_std: needs a key or a query that changes, got a token")
    builder.add_given("σ", noise_std)
    source = names[0] if target == "key" else names[1]
    title = f"the mean change of the outputs for noise of standard deviation σ in the {target}"
    inputs = f"{source} A {names[2]} H β σ i"
    builder.add_steps(("m", f"mean change, {target} noise", inputs, title))
    builder.add_remark(
        f"Noise in the {target} with mean 0 changes the outputs on average: the second-order term "
        "m remains, and grows with σ². Each single sample changes them at first order."
    )


def _remarks(builder: SolutionBuilder, target: str, index: int) -> None:
    changed = {name: _changed_rows(builder.values[f"d{name}"]) for name in "SAH"}
    rows, total = sorted(set(changed["H"])), builder.values["H"].rows
    counts = " and ".join(
        f"{len(changed[n])} of {len(builder.values[n])} entries of {n}" for n in "SA"
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
        _key_remarks(builder, index)


def _key_remarks(builder: SolutionBuilder, index: int) -> None:
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


def _changed_rows(change: Matrix) -> list[int]:
    """1-based row of each entry that is not 0."""
    return [n // change.cols + 1 for n, x in enumerate(change) if abs(to_float(x)) > MIN_CHANGE]
