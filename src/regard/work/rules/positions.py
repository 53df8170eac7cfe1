"""Rules of position encodings: frequencies, sinusoids and rotations."""

from typing import Any

import sympy
from sympy.simplify.fu import TR8

from regard.errors import ShapeError, WorkError
from regard.work.exact.numbers import format_plain
from regard.work.rules.rule import M, Matrix, Rule, elementwise, format_bare, format_operand, rule


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


POSITION_RULES: dict[str, Rule] = {
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
