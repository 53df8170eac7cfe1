"""Attention with one key, query or token perturbed: exact change, first and second order."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact import format_decimal, parse_matrix, to_float
from regard.work.families.attention import AttentionSetup, add_attention, project_qkv
from regard.work.families.registry import check_choice, declared_steps, family
from regard.work.rules import RULES, get_rule
from regard.work.rules.rule import M, Matrix, format_operand, rule
from regard.work.solution import Solution, SolutionBuilder


def _row_index(a: Matrix, i: Matrix) -> int:
    n = int(i[0])
    if not 1 <= n <= a.rows:
        raise WorkError(f"index: needs one of the rows 1 to {a.rows}, got {n}")
    return n - 1


def _move_row(a: Matrix, by: Matrix, i: Matrix) -> Matrix:
    n = _row_index(a, i)
    if by.shape != (1, a.cols):
        raise WorkError(f"eps: needs {a.cols} numbers, one per feature, got {by.rows}×{by.cols}")
    return M(a.rows, a.cols, lambda r, c: a[r, c] + (by[0, c] if r == n else 0))


def _scale_row(a: Matrix, by: Matrix, i: Matrix) -> Matrix:
    n = _row_index(a, i)
    return M(a.rows, a.cols, lambda r, c: a[r, c] * (by[0] if r == n else 1))


def _weighted_means(a: Matrix, d: Matrix) -> list[Any]:
    """Weighted mean of each row of d, with weights a."""
    return [sum(x * y for x, y in zip(a.row(i), d.row(i), strict=True)) for i in range(a.rows)]


def _first_order(a: Matrix, d: Matrix) -> Matrix:
    mean = _weighted_means(a, d)
    return M(a.rows, a.cols, lambda i, j: a[i, j] * (d[i, j] - mean[i]))


def _second_order(a: Matrix, d: Matrix) -> Matrix:
    mean = _weighted_means(a, d)
    square = M(a.rows, a.cols, lambda i, j: (d[i, j] - mean[i]) ** 2)
    variance = _weighted_means(a, square)
    return M(a.rows, a.cols, lambda i, j: a[i, j] * (square[i, j] - variance[i]) / 2)


def _first_order_entry(a: Matrix, d: Matrix) -> str:
    weight, change, mean = map(format_operand, (a[0, 0], d[0, 0], _weighted_means(a, d)[0]))
    return f"{weight}·({change} - {mean})"


def _key_noise(
    q: Matrix, a: Matrix, v: Matrix, h: Matrix, beta: Matrix, sigma: Matrix, i: Matrix
) -> Matrix:
    n = _row_index(v, i)

    def entry(row: Any, col: Any) -> Any:
        w = a[row, n]
        length = sum(x**2 for x in q.row(row))
        factor = (sigma[0] * beta[0]) ** 2 * length / 2
        return factor * w * (1 - 2 * w) * (v[n, col] - h[row, col])

    return M(h.rows, h.cols, entry)


def _query_noise(
    k: Matrix, a: Matrix, v: Matrix, h: Matrix, beta: Matrix, sigma: Matrix, i: Matrix
) -> Matrix:
    n = _row_index(h, i)
    mean = a.row(n) * k
    distances = [sum(x**2 for x in k.row(j) - mean) for j in range(k.rows)]

    def entry(row: Any, col: Any) -> Any:
        if row != n:
            return sympy.S.Zero
        inputs = (a[n, j] * distances[j] * (v[j, col] - h[n, col]) for j in range(k.rows))
        return (sigma[0] * beta[0]) ** 2 / 2 * sum(inputs)

    return M(h.rows, h.cols, entry)


_NO_MEAN_CHANGE = {"the mean change was taken as 0": lambda *inputs: M.zeros(*inputs[3].shape)}

RULES |= {
    "move one row": rule(
        "{0} + e_{2} {1}",
        {"it was subtracted": lambda a, by, i: _move_row(a, M(-by), i)},
        run=_move_row,
        words="{0} with {1} added to row {2}",
    ),
    "scale one row": rule(
        "{0} + ({1} - 1) e_{2} e_{2}ᵀ {0}",
        {"every row was scaled": lambda a, by, i: M(a * by[0])},
        run=_scale_row,
        words="{0} with row {2} times {1}",
    ),
    "softmax, first order": rule(
        "{0} ∘ ({1} - ({0} ∘ {1}) 𝟏 𝟏ᵀ)",
        {"the mean was not subtracted": "{0} ∘ {1}", "the weights were left out": "{1}"},
        run=_first_order,
        entry=_first_order_entry,
        words="{0} ∘ ({1} - the mean of {1} by the weights {0}, row by row)",
    ),
    "softmax, second order": rule(
        "½ {0} ∘ (({1} - mean({1}))² - Var {1})",
        {
            "the half was left out": lambda a, d: M(2 * _second_order(a, d)),
            "the variance was left out": lambda a, d: M(
                a.rows, a.cols, lambda i, j: a[i, j] * (d[i, j] - _weighted_means(a, d)[i]) ** 2 / 2
            ),
        },
        run=_second_order,
        words="½ {0} ∘ (({1} - its mean)² - its variance), by the weights {0}, row by row",
    ),
    "mean change, key noise": rule(
        "½ {5}² {4}² ‖q‖² a (1 - 2a) (v_i - h)",
        _NO_MEAN_CHANGE,
        run=_key_noise,
        words="½ {5}² {4}² ‖q‖² a (1 - 2a) ({2}_i - {3}), for each query; a = its weight in {1}, "
        "i = {6}",
    ),
    "mean change, query noise": rule(
        "½ {5}² {4}² Σ_j a_j ‖k_j - k̄‖² (v_j - h)",
        _NO_MEAN_CHANGE,
        run=_query_noise,
        words="½ {5}² {4}² Σ a_j ‖k_j - k̄‖² (v_j - h) in row {6}, from {0}, {1}, {2} and {3}",
    ),
}


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
