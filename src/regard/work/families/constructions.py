"""Attention constructed as an identity, a permutation or a convolution, and its error."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact import format_decimal, parse_matrix, parse_number, to_float
from regard.work.families.attention import AttentionSetup, add_attention
from regard.work.families.registry import check_choice, declared_steps, family
from regard.work.rules import RULES
from regard.work.rules.rule import M, Matrix, elementwise, format_operand, rule
from regard.work.solution import Solution, SolutionBuilder


def _diagonal_weight(beta: Matrix, n: Matrix) -> Matrix:
    e = sympy.exp(beta[0])
    return M([[e / (e + n[0] - 1)]])


def _diagonal_margin(s: Matrix) -> Matrix:
    """Smallest difference between a diagonal entry and the other entries of its row."""
    if s.rows == 1:
        return M([[sympy.S.One]])
    margins = [s[i, i] - s[i, j] for i in range(s.rows) for j in range(s.cols) if i != j]
    return M([[min(margins, key=to_float)]])


def _scale_for_weight(p: Matrix, n: Matrix, margin: Matrix) -> Matrix:
    if to_float(margin[0]) <= 0:
        return M([[sympy.oo]])
    return M([[sympy.log(p[0] / (1 - p[0]) * (n[0] - 1)) / margin[0]]])


def _inverse(a: Matrix) -> Matrix:
    if a.rows != a.cols or a.det() == 0:
        raise WorkError(f"W_V: needs to be square and to have an inverse, got {a.rows}×{a.cols}")
    return M(a.inv())


def convolution_matrix(kernel: Matrix, x: Matrix) -> Matrix:
    """Convolution as a banded matrix: entry (i, j) is the tap for j - i, zero padding at the ends.

    >>> convolution_matrix(M([[1, 2, 3]]), M([[0], [0], [0]]))
    Matrix([
    [2, 3, 0],
    [1, 2, 3],
    [0, 1, 2]])
    """
    radius = kernel.cols // 2
    return M(
        x.rows,
        x.rows,
        lambda i, j: kernel[0, int(j - i) + radius] if abs(j - i) <= radius else sympy.S.Zero,
    )


def _shift_matrix(offset: Matrix, x: Matrix) -> Matrix:
    return M(x.rows, x.rows, lambda i, j: int(j - i == offset[0]))


_log = elementwise(lambda x: -sympy.oo if x == 0 else sympy.log(x))


RULES |= {
    "diagonal softmax weight": rule(
        "e^{0}/(e^{0} + {1} - 1)",
        {
            "softmax of the identity was taken to be the identity": lambda b, n: M([[1]]),
            "the sum has one term too many": lambda b, n: _diagonal_weight(b, M([[n[0] + 1]])),
        },
        run=_diagonal_weight,
        entry="exp({0}) / (exp({0}) + {1} - 1)",
    ),
    "diagonal margin": rule(
        "min_(i≠j) (({0})_ii - ({0})_ij)",
        {"columns were compared instead of rows": lambda s: _diagonal_margin(M(s.T))},
        run=_diagonal_margin,
        words="the smallest margin of a diagonal entry of {0} over the rest of its row",
    ),
    "scale for weight": rule(
        "log({0}/(1 - {0}) · ({1} - 1)) / {2}",
        {"the factor n - 1 was left out": lambda p, n, d: _scale_for_weight(p, M([[2]]), d)},
        run=_scale_for_weight,
        entry=lambda p, n, d: (
            f"log({format_operand(p[0] / (1 - p[0]))}·{format_operand(n[0] - 1)}) / "
            f"{format_operand(d[0])}"
        ),
    ),
    "inverse": rule(
        "{0}⁻¹",
        {
            "it was transposed instead": "{0}ᵀ",
            "each entry was inverted": elementwise(lambda x: 1 / x if x else x),
        },
        run=_inverse,
    ),
    "log taps": rule(
        "[log {0}_(j-i)]_ij",
        {
            "the logarithm was left out": convolution_matrix,
            "the distance was taken as i - j": lambda kernel, x: _log(
                M(convolution_matrix(kernel, x).T)
            ),
        },
        run=lambda kernel, x: _log(convolution_matrix(kernel, x)),
        entry=lambda kernel, x: f"log({format_operand(convolution_matrix(kernel, x)[0, 0])})",
        words="log of the tap of {0} for each distance j - i, for each pair of {1}",
    ),
    "taps": rule(
        "[{0}_(j-i)]_ij",
        {"the distance was taken as i - j": lambda kernel, x: M(convolution_matrix(kernel, x).T)},
        run=convolution_matrix,
        entry=lambda kernel, x: format_operand(convolution_matrix(kernel, x)[0, 0]),
        words="the tap of {0} for each distance j - i, for each pair of {1}",
    ),
    "shift": rule(
        "[j - i = {0}]_ij",
        {"it was shifted the other way": lambda o, x: M(_shift_matrix(o, x).T)},
        run=_shift_matrix,
        words="1 where j - i = {0}, for each pair of {1}",
    ),
}


MAX_TOKENS = 12


@family("identity")
def solve_identity(
    given: Mapping[str, Any], *, scale: Any = 1, target_weight: Any = "99/100"
) -> Solution:
    """Attention as the identity: how close the scale β brings it.

    A = softmax(β X Xᵀ): for orthonormal tokens e^β / (e^β + n - 1) on the diagonal

    Given: X, or n for n orthonormal tokens; with W_V, the output weights are W_V⁻¹. The scale that
    gives each token at least `target_weight` on itself is computed too.

    >>> solution = solve_identity({"n": 4})
    >>> round(float(solution["c"][0]), 4), round(float(solution["b"][0]), 3)
    (0.4754, 5.694)
    """
    count = given.get("n")
    if "X" not in given and (not isinstance(count, int) or not 2 <= count <= MAX_TOKENS):
        raise WorkError(
            f"given: needs X, or n from 2 to {MAX_TOKENS}, got {', '.join(given)} ({count})"
        )
    tokens = parse_matrix(given["X"], "X") if "X" in given else M(sympy.eye(int(count or 0)))
    if tokens.rows < 2:
        raise WorkError("X: needs 2 tokens or more to choose among, got 1")
    value_weights = {"W_V": given["W_V"]} if "W_V" in given else {}
    sizes = {"n": tokens.rows, "p": _parse_weight(target_weight)}
    builder = SolutionBuilder("identity", {"X": tokens, **value_weights, **sizes})
    v, out = "X", "H"
    if value_weights:
        v = builder.add_step("V", "product", "X", "W_V", title="the values")
        builder.add_step("W_O", "inverse", "W_V", title="the output weights: the inverse of W_V")
    add_attention(builder, "X", "X", v, setup=AttentionSetup(scale=scale))
    if value_weights:
        out = builder.add_step("O", "product", "H", "W_O", title="the output")
    if builder.values["S"] == sympy.eye(tokens.rows):
        title = "the diagonal weight in closed form (orthonormal tokens)"
        builder.add_step("c", "diagonal softmax weight", "β", "n", title=title)
    builder.add_steps(*declared_steps("identity", "scale"))
    _add_error(builder, out, "X")
    _identity_remarks(builder)
    return builder.build()


def _parse_weight(text: Any) -> Any:
    weight = parse_number(text)
    if not 0 < weight < 1:
        raise WorkError(f"target_weight: needs a weight between 0 and 1, got {text}")
    return weight


def _add_error(builder: SolutionBuilder, actual: str, expected: str) -> None:
    builder.add_steps(*declared_steps("identity", "error", actual=actual, expected=expected))


def _identity_remarks(builder: SolutionBuilder) -> None:
    margin, scale = builder.values["δ"][0], builder.values["b"][0]
    beta, error = format_decimal(builder.values["β"][0]), format_decimal(builder.values["r"][0], 3)
    builder.add_remark(
        f"At β = {beta} the output is {error} away from the input: at a finite β softmax is never "
        "exactly 0 or 1."
    )
    if to_float(margin) > 0:
        builder.add_remark(
            f"Each token prefers itself by {format_decimal(margin)} or more, so that β = "
            f"{format_decimal(scale)} gives each a weight of at least "
            f"{format_decimal(builder.values['p'][0])} on itself, and β → ∞ the identity."
        )
    else:
        builder.add_remark(
            "No β makes this an identity: some token scores another at least as high as itself "
            "(norms differ, or two tokens are alike). Equal norms and distinct tokens would do."
        )


@family("permutation")
def solve_permutation(
    given: Mapping[str, Any], *, scale: Any = 10, target_weight: Any = "99/100"
) -> Solution:
    """Attention as a permutation: token order[i] moves to position i.

    K = I, row i of Q is the unit vector of order[i]:   A = softmax(β Q Kᵀ) → P

    Given: `order`, 1-based, and X (unit vectors if left out).

    >>> solution = solve_permutation({"order": [2, 1], "X": [[5], [7]]}, scale="inf")
    >>> solution["H"]
    Matrix([
    [7],
    [5]])
    """
    order = given.get("order")
    n = len(order) if isinstance(order, list) else 0
    if not 2 <= n <= MAX_TOKENS or any(
        not isinstance(index, int) or not 1 <= index <= n for index in order or []
    ):
        raise WorkError(
            f"order: needs 2 to {MAX_TOKENS} numbers, each from 1 to their count, got {order}"
        )
    tokens = parse_matrix(given.get("X", M(sympy.eye(n))), "X")
    if tokens.rows != n:
        raise WorkError(f"X: needs {n} rows, one for each of order, got {tokens.rows}")
    permutation = M(n, n, lambda i, j: int((order or [])[int(i)] == j + 1))
    weight = _parse_weight(target_weight)
    matrices = {"Q": permutation, "K": M(sympy.eye(n)), "X": tokens, "n": n, "p": weight}
    builder = SolutionBuilder("permutation", matrices)
    add_attention(builder, "Q", "K", "X", setup=AttentionSetup(scale=scale))
    builder.add_given("one", 1)
    builder.add_steps(*declared_steps("permutation", "scale"))
    _add_error(builder, "H", "Y")
    counts = list(builder.values["T"])
    if set(counts) == {1}:
        builder.add_remark("Each token is selected exactly once: a permutation.")
    else:
        builder.add_remark(
            f"One key per query is not yet a permutation: the tokens are selected "
            f"{', '.join(map(str, counts))} times. It is a gather; of all such maps n!/nⁿ = "
            f"{format_decimal(sympy.factorial(n) / sympy.Integer(n) ** n, 3)} are permutations."
        )
    builder.add_remark(
        f"Norm of the error: {format_decimal(builder.values['r'][0], 3)}; it decreases as e^-β."
    )
    return builder.build()


@family("convolution")
def solve_convolution(given: Mapping[str, Any], *, method: str = "one_head") -> Solution:
    """Attention as a convolution: one head with a log-kernel bias, or one head per tap (exact).

    one_head:      A = softmax(log kernel[j - i]),  O = (Σ kernel) A X     taps of 0 or more
    head_per_tap:  O = Σ_k kernel[k] A_k X,  A_k the shift by k            any taps

    Given: `kernel`, an odd number of taps centred on distance 0, and X, tokens as rows.

    >>> solution = solve_convolution({"kernel": ["1/4", "1/2", "1/4"], "X": [[1], [1], [1]]})
    >>> solution["A"].row(0), solution["r"]
    (Matrix([[2/3, 1/3, 0]]), Matrix([[sqrt(2)/4]]))
    """
    check_choice("method", method, ("one_head", "head_per_tap"))
    kernel = parse_matrix(given["kernel"], "kernel")
    kernel = kernel if kernel.rows == 1 else M(kernel.T)
    if kernel.rows != 1 or kernel.cols % 2 == 0:
        raise WorkError(f"kernel: needs an odd number of taps, got {kernel.rows}×{kernel.cols}")
    builder = SolutionBuilder("convolution", {"kernel": kernel, "X": given["X"]})
    builder.add_step("C", "taps", "kernel", "X", title="the convolution matrix, zero-padded")
    builder.add_step("Y", "product", "C", "X", title="the expected output")
    (_add_one_head if method == "one_head" else _add_head_per_tap)(builder)
    _add_error(builder, "O", "Y")
    _convolution_remarks(builder, method)
    return builder.build()


def _add_one_head(builder: SolutionBuilder) -> None:
    kernel = list(builder.values["kernel"])
    if any(to_float(tap) < 0 for tap in kernel) or not any(kernel):
        raise WorkError(
            f"kernel: needs taps of 0 or more for one head, got {min(kernel)}; "
            'try method = "head_per_tap"'
        )
    builder.add_steps(*declared_steps("convolution", "one_head"))


def _add_head_per_tap(builder: SolutionBuilder) -> None:
    kernel = list(builder.values["kernel"])
    parts = []
    for n, tap in enumerate(kernel, 1):
        if tap == 0:
            continue
        offset = n - 1 - len(kernel) // 2
        builder.add_given(f"o_{n}", offset)
        builder.add_given(f"w_{n}", tap)
        shift = f" {'+' if offset > 0 else '-'} {abs(offset)}" if offset else ""
        head = declared_steps("convolution", "head_of_tap", n=n, shift=shift)
        parts.append(builder.add_steps(*head)[-1])
    if not 2 <= len(parts) <= 12:
        raise WorkError(f"kernel: needs 2 to 12 taps other than 0 for heads, got {len(parts)}")
    builder.add_step("O", f"sum of {len(parts)}", *parts, title="the sum of the heads")


def _is_zero(x: Any) -> bool:
    return sympy.simplify(x) == 0 if x.free_symbols else abs(to_float(x)) < 1e-25


def _convolution_remarks(builder: SolutionBuilder, method: str) -> None:
    errors, matrix = builder.values["R"], builder.values["C"]
    wrong_rows = [i + 1 for i in range(errors.rows) if not all(map(_is_zero, errors.row(i)))]
    if method == "head_per_tap":
        builder.add_remark(
            f"{f'Wrong at {wrong_rows}' if wrong_rows else 'Exact everywhere'}: one head per tap, "
            "each a shift, with the tap as a factor of the values. Taps may have any sign."
        )
        return
    sums = ", ".join(str(sum(matrix.row(i))) for i in range(matrix.rows))
    quality = f"off at {', '.join(map(str, wrong_rows))}" if wrong_rows else "exact everywhere"
    builder.add_remark(
        f"One head is {quality}: at the ends the rows of the zero-padded convolution "
        f"sum to less than 1 ({sums}), and softmax normalises them."
    )
    builder.add_remark(
        "One head needs taps of 0 or more and shares its values among them; for signed taps or "
        'per-tap weights use method = "head_per_tap".'
    )
    if len(builder.values["kernel"]) == 1:
        builder.add_remark(
            "A single tap attends to the token itself: a 1×1 convolution, a linear layer."
        )
