"""Position encodings, sinusoidal and rotary, and attention over permuted tokens."""

from collections.abc import Mapping
from typing import Any

import sympy
from sympy.simplify.fu import TR8

from regard.errors import ShapeError, WorkError
from regard.work.exact import evaluate_digits, format_decimal, format_plain, parse_matrix
from regard.work.families.attention import AttentionSetup, add_attention, add_scores, project_qkv
from regard.work.families.registry import declared_steps, family
from regard.work.rules import RULES, get_rule
from regard.work.rules.rule import M, Matrix, elementwise, format_bare, format_operand, rule
from regard.work.solution import Solution, SolutionBuilder


def _frequencies(d: Matrix, base: Matrix, step: int = 2) -> Matrix:
    width, b = d[0, 0], base[0, 0]
    if not width.is_Integer or width < 2 or width % 2:
        raise ShapeError(f"d: needs an even number, one sine and one cosine per pair, got {width}")
    if not b.is_number or b <= 0:
        raise WorkError(f"base: needs a number above 0, got {b}")
    return M([[b ** (-step * sympy.Integer(i) / width) for i in range(width // 2)]])


def _sin_cos(angles: Matrix, first: Any = sympy.sin, second: Any = sympy.cos) -> Matrix:
    return M(
        [
            [function(x) for x in angles.row(i) for function in (first, second)]
            for i in range(angles.rows)
        ]
    )


def _rotation(angles: Matrix) -> Matrix:
    if angles.rows != 1:
        raise ShapeError(f"rotation: needs one row of angles, got {angles.rows}×{angles.cols}")
    pairs = [
        sympy.Matrix([[sympy.cos(x), sympy.sin(x)], [-sympy.sin(x), sympy.cos(x)]]) for x in angles
    ]
    return M(sympy.diag(*pairs))


def _rotate_pairs(x: Matrix, angles: Matrix, sign: int = 1) -> Matrix:
    if (angles.rows, 2 * angles.cols) != x.shape:
        raise ShapeError(
            f"rotation: needs one angle per pair of features, got {angles.rows}×"
            f"{angles.cols} angles for {x.rows}×{x.cols} features"
        )

    def entry(i: int, j: int) -> Any:
        angle = sign * angles[i, j // 2]
        a, b = x[i, j - j % 2], x[i, j - j % 2 + 1]
        if j % 2:
            return a * sympy.sin(angle) + b * sympy.cos(angle)
        return a * sympy.cos(angle) - b * sympy.sin(angle)

    return M([[entry(i, j) for j in range(x.cols)] for i in range(x.rows)])


def _rotate_halves(x: Matrix, angles: Matrix) -> Matrix:
    half = x.cols // 2
    order = [n // 2 + n % 2 * half for n in range(x.cols)]  # interleaved index of each feature
    rotated = _rotate_pairs(M(x[:, order]), angles)
    return M(rotated[:, [order.index(n) for n in range(x.cols)]])


def _rotate_entry(x: Matrix, angles: Matrix) -> str:
    angle = format_bare(angles[0, 0])
    return f"{format_operand(x[0, 0])}·cos({angle}) - {format_operand(x[0, 1])}·sin({angle})"


def combine_trig(x: Any) -> Any:
    """Rewrite products of sines and cosines as sines and cosines of sums.

    >>> combine_trig(sympy.sin(1) * sympy.cos(2) + sympy.cos(1) * sympy.sin(2))
    sin(3)
    """
    return sympy.expand(TR8(sympy.expand(x))) if x.has(sympy.sin, sympy.cos) else x


RULES |= {
    "frequencies": rule(
        "{1}^(-2i / {0}),  i = 0, 1, …",
        {
            "i was taken as the index of the feature, not of the pair": lambda d, b: _frequencies(
                d, b, 4
            ),
            "the 2 before i was left out": lambda d, b: _frequencies(d, b, 1),
            "the sign of the exponent": lambda d, b: _frequencies(d, b, -2),
        },
        run=_frequencies,
        entry=lambda d, b: f"{format_operand(b[0])}^(-0/{format_operand(d[0])})",
        words="{1}^(-2i / {0}), with i = 0, 1 … the index of the pair",
    ),
    "sines and cosines": rule(
        "(sin {0}, cos {0})",
        {
            "sine and cosine were swapped": lambda a: _sin_cos(a, sympy.cos, sympy.sin),
            "all sines come first, then all cosines": lambda a: M(
                M.hstack(a.applyfunc(sympy.sin), a.applyfunc(sympy.cos))
            ),
            "the angles were taken as degrees": lambda a: _sin_cos(
                M(a.applyfunc(lambda x: x * sympy.pi / 180))
            ),
        },
        run=_sin_cos,
        entry=lambda a: f"sin({format_bare(a[0, 0])})",
        words="sin and cos of {0}, side by side for each pair",
    ),
    "rotation": rule(
        "diag [cos {0}, sin {0}; -sin {0}, cos {0}]",
        {"it rotates the other way: the sign of the sines": lambda a: M(_rotation(a).T)},
        run=_rotation,
        words="a rotation by {0} per pair: [cos sin; -sin cos]",
    ),
    "rotate pairs": rule(
        "rotate({0}, {1})",
        {
            "it was rotated the other way": lambda x, a: _rotate_pairs(x, a, -1),
            "pairs were taken from the two halves": _rotate_halves,
        },
        run=_rotate_pairs,
        entry=_rotate_entry,
        words="each pair of {0} rotated by {1}",
    ),
    "addition theorem": rule(
        "{0}  (sin(a + b) = sin a cos b + cos a sin b)",
        run=elementwise(combine_trig),
        entry=lambda a: format_plain(combine_trig(a[0, 0])),
        words="{0}, by the addition theorems of sin and cos",
    ),
}


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


DEFAULT_BASE = 10000
MAX_DIM = 512
MAX_POSITIONS = 64
MAX_PAIR_PRODUCTS = 2000  # products of sinusoids in the Gram matrix; more take minutes


@family("positions")
def solve_positions(given: Mapping[str, Any]) -> Solution:
    """Sinusoidal encodings, the rotation that shifts them by k, and their dot products.

    PE(p, 2i) = sin(p · base^(-2i/d)),   PE(p, 2i+1) = cos(p · base^(-2i/d))
    PE(p + k) = R_k PE(p),   PE(p) · PE(q) = Σ_i cos((p - q) ω_i)

    Given: d and p, a number of positions from 0 or a list of them; k and base are optional.

    >>> solve_positions({"p": 1, "d": 4})["PE"]
    Matrix([[0, 1, 0, 1]])
    """
    others = {name: value for name, value in given.items() if name not in ("p", "base")}
    builder = SolutionBuilder("positions", {"p": _parse_positions(given["p"]), **others})
    for name in ("d", "k"):
        value = builder.values.get(name)
        is_large = value is not None and not value.free_symbols and abs(value[0, 0]) > MAX_DIM
        if value is not None and (value.shape != (1, 1) or is_large):
            raise WorkError(f"{name}: needs one number up to {MAX_DIM}, got {given[name]}")
    _add_angles(builder, given)
    builder.add_step("PE", "sines and cosines", "Θ", title="the encodings, one row per position")
    if "k" in builder.values:
        _add_shift(builder)
    rows, width = builder.values["PE"].shape
    if rows * rows * width <= MAX_PAIR_PRODUCTS:
        builder.add_steps(*declared_steps("positions", "products"))
        _lag_remark(builder)
    return builder.build()


@family("rotary")
def solve_rotary(given: Mapping[str, Any], *, scale: Any = None, mask: Any = None) -> Solution:
    """Attention with rotary position embeddings.

    Q_p = rotate(Q, p ω),   K_p = rotate(K, p ω),   S = Q_p K_pᵀ,   a function of distances only

    Given: Q and K; V, p (positions, default 0, 1 …) and base are optional.

    >>> solve_rotary({"Q": [[1, 0]], "K": [[1, 0]], "p": [[5]]})["Q_p"]
    Matrix([[cos(5), sin(5)]])
    """
    q = parse_matrix(given["Q"], "Q")
    others = {name: value for name, value in given.items() if name not in ("p", "base")}
    positions = _parse_positions(given.get("p", q.rows))
    builder = SolutionBuilder("rotary", {"p": positions, **others, "d": q.cols})
    _add_angles(builder, given)
    builder.add_steps(*declared_steps("rotary", "rotated"))
    setup = AttentionSetup(scale=scale, mask=mask)
    if "V" in builder.values:
        add_attention(builder, "Q_p", "K_p", "V", setup=setup)
    else:
        add_scores(builder, "Q_p", "K_p", "", setup)
    _shift_remark(builder)
    return builder.build()


def _parse_positions(spec: Any) -> Matrix:
    """Positions as a column: 0 … n - 1 for a number n, or the listed ones."""
    positions = parse_matrix(spec, "p")
    if positions.shape == (1, 1) and not isinstance(spec, list | tuple | sympy.MatrixBase):
        count = positions[0, 0]
        if not count.is_Integer or not 1 <= count <= MAX_POSITIONS:
            raise WorkError(
                f"p: needs a count from 1 to {MAX_POSITIONS}, or a row of positions, got {count}"
            )
        return M(list(range(int(count))))
    if 1 not in positions.shape or positions.has(sympy.oo):
        raise WorkError(f"p: needs one row of positions, got {positions.tolist()}")
    return M(list(positions))


def _add_angles(builder: SolutionBuilder, given: Mapping[str, Any]) -> None:
    builder.add_given("base", given.get("base", DEFAULT_BASE))
    builder.add_steps(*declared_steps("positions", "angles"))


def _add_shift(builder: SolutionBuilder) -> None:
    """Add R_k PE(p) and PE(p + k), for comparison."""
    builder.add_steps(*declared_steps("positions", "shift"))
    if builder.values["T_k"] == builder.values["PE_k"]:
        builder.add_remark(
            "R_k PE(p) equals PE(p + k) exactly, for every p: R_k depends on k only."
        )


def _lag_remark(builder: SolutionBuilder) -> None:
    """Remark the dot products by distance, if they depend on nothing else."""
    positions, products = list(builder.values["p"]), builder.values["L"]
    by_lag: dict[Any, set[Any]] = {}
    for i, p in enumerate(positions):
        for j, q in enumerate(positions):
            by_lag.setdefault(abs(p - q), set()).add(products[i, j])
    if all(len(values) == 1 for values in by_lag.values()):
        text = ", ".join(f"{lag}: {format_decimal(min(by_lag[lag]), 4)}" for lag in sorted(by_lag))
        builder.add_remark(
            f"The dot product of two encodings depends on their distance only. By distance: {text}."
        )


def _shift_remark(builder: SolutionBuilder) -> None:
    """Remark that the scores do not change when every position is shifted by 1."""
    shifted = get_rule("add to rows").run(builder.values["Θ"], builder.values["ω"])
    q, k = (get_rule("rotate pairs").run(builder.values[name], shifted) for name in "QK")
    difference = (q * k.T - builder.values["S"]).evalf(30)
    if not difference.free_symbols and all(abs(x) < sympy.Float("1e-20") for x in difference):
        builder.add_remark(
            "Shifting every position by 1 does not change the scores: only distances matter."
        )
