"""A key, a query or a token changed: what moves, by how much, and to first and second order."""

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
MIN_CHANGE = 1e-25  # what is left of 0 in 50 digits
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

    A token is query and key at once, so its own score is of second order too: dS = S_1 + S_2 with
    S_1 = dQ Kᵀ + Q dKᵀ and S_2 = dQ dKᵀ. Then D = β S_1, and A ∘ (β S_2 - its mean) is added to
    the second order.

    Given are Q, K, V, or X (and W_Q, W_K, W_V), tokens as rows, and eps or alpha; `scale` is β.
    With `noise` the mean change for random noise of that spread in the key or query is added.

    >>> worked = solve_perturb({"Q": [[1], [-1]], "K": [[1], [1]], "V": [[0], [1]], "alpha": 2}, scale=1)
    >>> [round(float(x), 7) for x in worked["A_a"].col(0)]
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
    work, ways = SolutionBuilder("perturb", rest), AttentionSetup(scale=scale)
    before = project_qkv(work)
    add_attention(work, *before, setup=ways)
    after = _changed(work, given, target, index, before)
    add_attention(work, *after, "_a", ways)
    _compared(work, before, after)
    if noise_std is not None:
        _expected(work, target, before, noise_std)
    if not any(value.free_symbols for value in work.given.values()):
        _remarks(work, target, index, before)
    return work.build()


def _changed(
    work: SolutionBuilder,
    given: Mapping[str, Any],
    what: str,
    index: int,
    names: tuple[str, str, str],
) -> tuple[str, str, str]:
    """Move or scale the row that is to change; the names of queries, keys and values after it."""
    q, k, v = names
    source = {"key": k, "query": q, "token": "X"}[what]
    if source not in work.values:
        raise WorkError(f"given: needs X for a token that changes, got {', '.join(work.given)}")
    if what == "token" and (extra := [one for one in "QKV" if one in work.given]):
        # given queries, keys or values would stay as they are while the token behind them moves
        got = " and ".join(extra)
        raise WorkError(f"given: needs X and weights for a token that changes, got {got} too")
    work.add_given("i", index)
    name = f"{TARGETS[what]}_a"
    if "eps" in given:
        told = parse_matrix(given["eps"], "eps")
        work.add_given("ε", told if told.rows == 1 else told.T)
        work.add_step(name, "move one row", source, "ε", "i", title=f"{what} {index}, moved by ε")
    else:
        work.add_given("α", given["alpha"])
        work.add_step(name, "scale one row", source, "α", "i", title=f"{what} {index}, scaled by α")
    if what == "token":
        return project_qkv(work, suffix="_a", sources=("X_a", "X_a"))
    return (q, name, v) if what == "key" else (name, k, v)


def _compared(work: SolutionBuilder, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """The differences, and what first and second order make of them."""
    for name, says in {"S": "the scores", "A": "the weights", "H": "the outputs"}.items():
        work.add_step(f"d{name}", "subtract", f"{name}_a", name, title=f"how {says} changed")
    if before[0] != after[0] and before[1] != after[1]:
        _weights_by_both(work, before, after)
    else:
        d = _scaled(work, "D", "dS", "the change of the scaled scores")
        work.add_step("A_1", "softmax, first order", "A", d, title="the weights, to first order")
        work.add_step(
            "A_2", "softmax, second order", "A", d, title="and what the second order adds"
        )
    v = before[2]
    one, two = "H_1", "H_2"
    if v != after[2]:
        if f"d{v}" not in work.values:  # X is queries, keys and values at once without weights
            work.add_step(f"d{v}", "subtract", after[2], v, title="how the values changed")
        one, two = "P_1", "P_2"
    work.add_step(one, "product", "A_1", v, title="the outputs, to first order: by the weights")
    work.add_step(two, "product", "A_2", v, title="and what the second order adds")
    if v != after[2]:
        work.add_step("V_1", "product", "A", f"d{v}", title="to first order: by the values")
        work.add_step("H_1", "add", "P_1", "V_1", title="the outputs, to first order")
        work.add_step("V_2", "product", "A_1", f"d{v}", title="to second order: by both")
        work.add_step("H_2", "add", "P_2", "V_2", title="and what the second order adds")
    work.add_step("R_1", "subtract", "dH", "H_1", title="what the first order leaves")
    work.add_step("R_2", "subtract", "R_1", "H_2", title="what both leave")
    for name, of in {"n_0": "dH", "n_1": "R_1", "n_2": "R_2"}.items():
        work.add_step(name, "norm of 1", of, title=f"the size of {of}")


def _weights_by_both(
    work: SolutionBuilder, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """The orders of the weights where queries and keys both change: S = Q Kᵀ is bilinear.

    With t for the size of the change, S(t) = S + t S_1 + t² S_2 exactly. What is of order t² in the
    scores belongs to the second order of the weights.
    """
    (q, k, _), (q_a, k_a, _) = before, after
    dq = work.add_step(f"d{q}", "subtract", q_a, q, title="how the queries changed")
    dk = dq if q == k else work.add_step(f"d{k}", "subtract", k_a, k, title="how the keys changed")
    by = "product with transpose"
    work.add_step("S_q", by, dq, k, title="the scores, to first order: by the queries")
    work.add_step("S_k", by, q, dk, title="the scores, to first order: by the keys")
    work.add_step("S_1", "add", "S_q", "S_k", title="the scores, to first order")
    work.add_step("S_2", by, dq, dk, title="and what the second order adds: the token's own score")
    one = _scaled(work, "D_1", "S_1", "the first order of the scaled scores")
    two = _scaled(work, "D_2", "S_2", "the second order of the scaled scores")
    work.add_step("A_1", "softmax, first order", "A", one, title="the weights, to first order")
    says = "to second order: by the first order of the scores"
    work.add_step("B_1", "softmax, second order", "A", one, title=says)
    says = "to second order: by the second order of the scores"
    work.add_step("B_2", "softmax, first order", "A", two, title=says)
    work.add_step("A_2", "add", "B_1", "B_2", title="and what the second order adds")
    whole = M(work.values[one] + work.values[two])
    says = "the change of the token's own score was not split by order"
    work.add_mistake("A_1", says, get_rule("softmax, first order").run(work.values["A"], whole))


def _scaled(work: SolutionBuilder, name: str, scores: str, says: str) -> str:
    """The change of the scores times β; as it is where β is 1."""
    return work.add_step(name, "scale", scores, "β", title=says) if "Z" in work.values else scores


def _expected(work: SolutionBuilder, what: str, names: tuple[str, str, str], noise: Any) -> None:
    if what == "token":
        raise WorkError("noise_std: needs a key or a query that changes, got a token")
    work.add_given("σ", noise)
    source = names[0] if what == "key" else names[1]
    says = f"the mean change of the outputs for noise of spread σ in the {what}"
    work.add_step(
        "m", f"mean change, {what} noise", source, "A", names[2], "H", "β", "σ", "i", title=says
    )
    work.add_remark(
        f"Noise in the {what} with mean 0 does not leave the outputs unchanged on average: the "
        "second order remains, as m says; it grows with σ². Each single draw moves them at first "
        "order."
    )


def _remarks(work: SolutionBuilder, what: str, index: int, names: tuple[str, str, str]) -> None:
    moved = {name: _moves(work, f"d{name}") for name in "SAH"}
    cells = {name: len(moved[name]) for name in "SA"}
    rows = sorted({i for i, _ in moved["H"]})
    total = work.values["H"].rows
    counts = " and ".join(f"{cells[n]} of {len(work.values[n])} entries of {n}" for n in "SA")
    work.add_remark(
        f"The change of {what} {index} moves {counts}, and {len(rows)} of {total} outputs"
        + (f" ({', '.join(map(str, rows))})." if rows else ".")
    )
    sizes = [format_decimal(work.values[name][0], 3) for name in ("n_0", "n_1", "n_2")]
    work.add_remark(
        f"The outputs move by {sizes[0]} in all; the first order misses {sizes[1]} of it, first "
        f"and second together {sizes[2]}."
    )
    if what == "key":
        _by_weight(work, index, names)


def _by_weight(work: SolutionBuilder, index: int, names: tuple[str, str, str]) -> None:
    """How each query's weight on the changed key went; for a scaled key, the sign rule."""
    column = index - 1
    told = []
    for row in range(work.values["A"].rows):
        old, new = (format_decimal(work.values[name][row, column], 3) for name in ("A", "A_a"))
        score = format_decimal(work.values["S"][row, column], 3)
        told.append(f"query {row + 1}: score {score}, weight {old} → {new}")
    work.add_remark(f"On key {index}: {'; '.join(told)}.")
    if "α" in work.values:
        work.add_remark(
            "Scaling a key by α > 1 raises its weight where its score is positive, lowers it where "
            "negative, and keeps the scores of 0; as α grows the weight goes to 1 or to 0, and the "
            "output to the key's value or to the mixture of the others."
        )
    work.add_remark(
        "To first order an output moves by β (q·dk) a (v - h), and v - h is (1 - a) times the way "
        "from the others to v: most at a = ½, nothing at a = 0 and a = 1."
    )


def _moves(work: SolutionBuilder, name: str) -> list[tuple[int, int]]:
    value = work.values[name]
    return [
        (i + 1, j + 1)
        for i in range(value.rows)
        for j in range(value.cols)
        if abs(to_float(value[i, j])) > MIN_CHANGE
    ]
