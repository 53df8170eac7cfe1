"""Attention built to order: an identity, a permutation, a convolution, and how far off each is."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.exact.numbers import format_decimal, parse_matrix, parse_number
from regard.work.families.attention import AttentionSetup, add_attention
from regard.work.families.registry import check_given, family
from regard.work.rules import M
from regard.work.solution import Solution, SolutionBuilder

MAX_TOKENS = 12  # tokens; more are nothing for a hand


@family("identity", given="X n W_V")
def solve_identity(
    given: Mapping[str, Any], *, scale: Any = 1, target_weight: Any = "99/100"
) -> Solution:
    """A layer that should give each token back, and how near the scale β brings it.

    A = softmax(β X Xᵀ): for orthonormal tokens e^β / (e^β + n - 1) on the diagonal

    Given is X, or n for n orthonormal tokens; with W_V the output is undone by its inverse W_O.
    `reach` is the weight on itself that each token should get.

    >>> worked = solve_identity({"n": 4})
    >>> round(float(worked["c"][0]), 4), round(float(worked["b"][0]), 3)
    (0.4754, 5.694)
    """
    check_given("identity", given)
    count = given.get("n")
    if "X" not in given and (not isinstance(count, int) or not 2 <= count <= MAX_TOKENS):
        raise WorkError(
            f"given: needs X, or n from 2 to {MAX_TOKENS}, got {', '.join(given)} ({count})"
        )
    tokens = parse_matrix(given["X"], "X") if "X" in given else M(sympy.eye(int(count or 0)))
    if tokens.rows < 2:
        raise WorkError("X: needs 2 tokens or more to choose among, got 1")
    rest = {"W_V": given["W_V"]} if "W_V" in given else {}
    work = SolutionBuilder(
        "identity", {"X": tokens, **rest, "n": tokens.rows, "p": _share(target_weight)}
    )
    v, out = "X", "H"
    if rest:
        v = work.add_step("V", "product", "X", "W_V", title="the values")
        work.add_step("W_O", "inverse", "W_V", title="the output weights that undo W_V")
    add_attention(work, "X", "X", v, setup=AttentionSetup(scale=scale))
    if rest:
        out = work.add_step("O", "product", "H", "W_O", title="the output")
    if work.values["S"] == sympy.eye(tokens.rows):
        says = "the weight on oneself, in closed form (orthonormal tokens)"
        work.add_step("c", "diagonal softmax weight", "β", "n", title=says)
    work.add_step("δ", "diagonal margin", "S", title="by how much each token prefers itself")
    says = "a scale with which each token keeps the share p for itself"
    work.add_step("b", "scale for weight", "p", "n", "δ", title=says)
    _distance(work, out, "X")
    _identity_remarks(work)
    return work.build()


def _share(told: Any) -> Any:
    found = parse_number(told)
    if not 0 < found < 1:
        raise WorkError(f"target_weight: needs a share between 0 and 1, got {told}")
    return found


def _distance(work: SolutionBuilder, got: str, want: str) -> None:
    work.add_step("R", "subtract", got, want, title="what is off")
    work.add_step("r", "norm of 1", "R", title="how far off it is")


def _identity_remarks(work: SolutionBuilder) -> None:
    lead, needed = work.values["δ"][0], work.values["b"][0]
    told = f"At β = {format_decimal(work.values['β'][0])} the output is {format_decimal(work.values['r'][0], 3)}"
    work.add_remark(f"{told} away from the input: softmax never gives exact 0 or 1 at a finite β.")
    if to_float(lead) > 0:
        work.add_remark(
            f"Each token prefers itself by {format_decimal(lead)} or more, so that β = "
            f"{format_decimal(needed)} gives each at least {format_decimal(work.values['p'][0])} of itself, and "
            "β → ∞ the identity."
        )
    else:
        work.add_remark(
            "No β makes this an identity: some token scores another at least as high as itself "
            "(norms differ, or two tokens are alike). Equal norms and distinct tokens would do."
        )


@family("permutation", given="order X")
def solve_permutation(
    given: Mapping[str, Any], *, scale: Any = 10, target_weight: Any = "99/100"
) -> Solution:
    """A layer that should bring token order[i] to place i, and how near the scale β brings it.

    K = I, row i of Q is the unit vector of order[i]:   A = softmax(β Q Kᵀ) → P

    Given are `order`, numbers from 1, and X, the tokens to be moved (unit vectors if left out).

    >>> worked = solve_permutation({"order": [2, 1], "X": [[5], [7]]}, scale="inf")
    >>> worked["H"]
    Matrix([
    [7],
    [5]])
    """
    check_given("permutation", given)
    order = given.get("order")
    n = len(order) if isinstance(order, list) else 0
    if not 2 <= n <= MAX_TOKENS or any(
        not isinstance(one, int) or not 1 <= one <= n for one in order or []
    ):
        raise WorkError(
            f"order: needs 2 to {MAX_TOKENS} numbers, each from 1 to their count, got {order}"
        )
    tokens = parse_matrix(given.get("X", M(sympy.eye(n))), "X")
    if tokens.rows != n:
        raise WorkError(f"X: needs {n} rows, one for each of order, got {tokens.rows}")
    wanted = M(n, n, lambda i, j: int((order or [])[int(i)] == j + 1))
    start = {"Q": wanted, "K": M(sympy.eye(n)), "X": tokens, "n": n, "p": _share(target_weight)}
    work = SolutionBuilder("permutation", start)
    add_attention(work, "Q", "K", "X", setup=AttentionSetup(scale=scale))
    work.add_given("one", 1)
    says = "a scale with which each place takes the share p from the token it wants"
    work.add_step("b", "scale for weight", "p", "n", "one", title=says)
    work.add_step(
        "Y", "product", "Q", "X", title="what it should be: the tokens in their new order"
    )
    work.add_step("T", "sum over columns", "Q", title="how often each token is taken")
    _distance(work, "H", "Y")
    often = list(work.values["T"])
    if set(often) == {1}:
        work.add_remark("Each token is taken just once: a permutation.")
    else:
        work.add_remark(
            f"One key for each query is not yet a permutation: the tokens are taken "
            f"{', '.join(map(str, often))} times. It gathers; of all such maps n!/nⁿ = "
            f"{format_decimal(sympy.factorial(n) / sympy.Integer(n) ** n, 3)} are permutations."
        )
    work.add_remark(f"What is off: {format_decimal(work.values['r'][0], 3)}; it falls as e^-β.")
    return work.build()


@family("convolution", given="kernel X")
def solve_convolution(given: Mapping[str, Any], *, method: str = "one_head") -> Solution:
    """A layer that should be a convolution: from one head's bias, or exactly, with a head a tap.

    one_head:      A = softmax(log kernel[j - i]),  O = (Σ kernel) A X     taps of 0 or more
    head_per_tap:  O = Σ_k kernel[k] A_k X,  A_k the shift by k            any taps

    Given are `kernel`, an odd count of taps with the middle for distance 0, and X, tokens as rows.

    >>> worked = solve_convolution({"kernel": ["1/4", "1/2", "1/4"], "X": [[1], [1], [1]]})
    >>> worked["A"].row(0), worked["r"]
    (Matrix([[2/3, 1/3, 0]]), Matrix([[sqrt(2)/4]]))
    """
    if method not in ("one_head", "head_per_tap"):
        raise WorkError(f"method: needs one_head or head_per_tap, got {method!r}")
    check_given("convolution", given)
    missing = [name for name in ("kernel", "X") if name not in given]
    if missing:
        raise WorkError(f"given: needs kernel and X, got no {' and no '.join(missing)}")
    kernel = parse_matrix(given["kernel"], "kernel")
    kernel = kernel if kernel.rows == 1 else M(kernel.T)
    if kernel.rows != 1 or kernel.cols % 2 == 0:
        raise WorkError(f"kernel: needs an odd count of taps, got {kernel.rows}×{kernel.cols}")
    work = SolutionBuilder("convolution", {"kernel": kernel, "X": given["X"]})
    work.add_step(
        "C", "taps", "kernel", "X", title="the matrix of the convolution, zeros beyond the ends"
    )
    work.add_step("Y", "product", "C", "X", title="what it should give")
    (_one_head if method == "one_head" else _head_a_tap)(work)
    _distance(work, "O", "Y")
    _edges(work, method)
    return work.build()


def _one_head(work: SolutionBuilder) -> None:
    kernel = list(work.values["kernel"])
    if any(to_float(tap) < 0 for tap in kernel) or not any(kernel):
        low = min(kernel)
        raise WorkError(
            f'kernel: needs taps of 0 or more for one head, got {low}; try method = "head_per_tap"'
        )
    work.add_step("B", "log taps", "kernel", "X", title="the bias: the score of each distance")
    work.add_step("E", "exp", "B", title="the exponentials: the taps again")
    work.add_step("N", "sum over rows", "E", title="what each query divides by: less at the ends")
    work.add_step(
        "A", "divide rows", "E", "N", title="the weights: for each query they add up to 1"
    )
    work.add_step("H", "product", "A", "X", title="the mixture")
    work.add_step(
        "k", "sum of entries", "kernel", title="the sum of the taps, which the values carry"
    )
    work.add_step("O", "scale", "H", "k", title="the output")


def _head_a_tap(work: SolutionBuilder) -> None:
    kernel = list(work.values["kernel"])
    parts = []
    for n, tap in enumerate(kernel, 1):
        if tap == 0:
            continue
        offset = n - 1 - len(kernel) // 2
        work.add_given(f"o_{n}", offset)
        work.add_given(f"w_{n}", tap)
        says = f"head {n} looks {abs(offset)} {'ahead' if offset > 0 else 'back'}, at nothing else"
        work.add_step(
            f"A_{n}", "shift", f"o_{n}", "X", title=says if offset else f"head {n}: oneself"
        )
        work.add_step(f"P_{n}", "product", f"A_{n}", "X", title="what it finds")
        parts.append(work.add_step(f"T_{n}", "scale", f"P_{n}", f"w_{n}", title="times its tap"))
    if not 2 <= len(parts) <= 12:
        raise WorkError(f"kernel: needs 2 to 12 taps other than 0 for heads, got {len(parts)}")
    work.add_step("O", f"sum of {len(parts)}", *parts, title="the heads together")


def _is_zero(x: Any) -> bool:
    return sympy.simplify(x) == 0 if x.free_symbols else abs(to_float(x)) < 1e-25


def _edges(work: SolutionBuilder, method: str) -> None:
    off = [
        i + 1
        for i in range(work.values["R"].rows)
        if any(not _is_zero(x) for x in work.values["R"].row(i))
    ]
    if method == "head_per_tap":
        work.add_remark(
            f"{'Exact everywhere' if not off else 'Off at ' + str(off)}: one head for each tap, "
            "each a shift, its tap in the values. So can any convolution be made, signs and all."
        )
        return
    sums = ", ".join(str(sum(work.values["C"].row(i))) for i in range(work.values["C"].rows))
    where = f"off at {', '.join(map(str, off))}" if off else "exact everywhere"
    work.add_remark(
        f"One head is {where}: where the kernel reaches past the ends the rows of the convolution "
        f"add up to less ({sums}), and a softmax makes them add up to 1."
    )
    work.add_remark(
        "One head has taps of 0 or more and the same values for all of them; for a difference or "
        'for weights of its own at each tap use method = "head_per_tap".'
    )
    if len(work.values["kernel"]) == 1:
        work.add_remark(
            "A single tap looks at the token itself: a 1×1 convolution, a linear layer."
        )
