"""The rules of positions: frequencies, sines and cosines, and the turns that move them."""

from typing import Any

import sympy
from sympy.simplify.fu import TR8

from regard.errors import ShapeError, WorkError
from regard.work.exact.numbers import format_plain
from regard.work.rules.rule import M, Matrix, Rule, elementwise, format_bare, format_operand


def _frequencies(d: Matrix, base: Matrix, step: int = 2) -> Matrix:
    width, b = d[0, 0], base[0, 0]
    if not width.is_Integer or width < 2 or width % 2:
        raise ShapeError(f"d: needs an even number, sine and cosine share a pair, got {width}")
    if not b.is_number or b <= 0:
        raise WorkError(f"base: needs a number above 0, got {b}")
    return M([[b ** (-step * sympy.Integer(i) / width) for i in range(width // 2)]])


def _waves(angles: Matrix, first: Any = sympy.sin, second: Any = sympy.cos) -> Matrix:
    return M(
        [[wave(x) for x in angles.row(i) for wave in (first, second)] for i in range(angles.rows)]
    )


def _halves(angles: Matrix) -> Matrix:
    return M(M.hstack(M(angles.applyfunc(sympy.sin)), M(angles.applyfunc(sympy.cos))))


def _waves_entry(i: int, j: int, angles: Matrix) -> str:
    return f"{'cos' if j % 2 else 'sin'}({format_bare(angles[i, j // 2])})"


def _turns(angles: Matrix) -> Matrix:
    if angles.rows != 1:
        raise ShapeError(f"turn: needs one row of angles, got {angles.rows}×{angles.cols}")
    pairs = [
        sympy.Matrix([[sympy.cos(x), sympy.sin(x)], [-sympy.sin(x), sympy.cos(x)]]) for x in angles
    ]
    return M(sympy.diag(*pairs))


def _turned(x: Matrix, angles: Matrix, sign: int = 1) -> Matrix:
    if (angles.rows, 2 * angles.cols) != x.shape:
        raise ShapeError(
            f"turn: needs one angle for two features of each token, got {angles.rows}×"
            f"{angles.cols} angles for {x.rows}×{x.cols} features"
        )

    def cell(i: int, j: int) -> Any:
        angle = sign * angles[i, j // 2]
        a, b = x[i, j - j % 2], x[i, j - j % 2 + 1]
        if j % 2:
            return a * sympy.sin(angle) + b * sympy.cos(angle)
        return a * sympy.cos(angle) - b * sympy.sin(angle)

    return M([[cell(i, j) for j in range(x.cols)] for i in range(x.rows)])


def _turned_halves(x: Matrix, angles: Matrix) -> Matrix:
    half = x.cols // 2
    there = [n // 2 + n % 2 * half for n in range(x.cols)]  # where a pair's parts stand
    turned = _turned(M(x[:, there]), angles)
    return M(turned[:, [there.index(n) for n in range(x.cols)]])


def _turned_entry(i: int, j: int, x: Matrix, angles: Matrix) -> str:
    a, b = x[i, j - j % 2], x[i, j - j % 2 + 1]
    by = format_bare(angles[i, j // 2])
    if j % 2:
        return f"{format_operand(a)}·sin({by}) + {format_operand(b)}·cos({by})"
    return f"{format_operand(a)}·cos({by}) - {format_operand(b)}·sin({by})"


def combine_trig(x: Any) -> Any:
    """Products of sines and cosines as sines and cosines of sums.

    >>> combine_trig(sympy.sin(1) * sympy.cos(2) + sympy.cos(1) * sympy.sin(2))
    sin(3)
    """
    return sympy.expand(TR8(sympy.expand(x))) if x.has(sympy.sin, sympy.cos) else x


POSITION_RULES: dict[str, Rule] = {
    "frequencies": Rule(
        _frequencies,
        "{1}^(-2i / {0}), i = 0, 1 …, the number of the pair",
        "{1}^{{-2i/{0}}},\\quad i = 0, 1, \\ldots",
        {
            "i was taken as the number of the feature, not of the pair": lambda d, b: _frequencies(
                d, b, 4
            ),
            "the 2 before i was left out": lambda d, b: _frequencies(d, b, 1),
            "the sign of the exponent": lambda d, b: _frequencies(d, b, -2),
        },
        lambda i, j, d, b: f"{format_operand(b[0, 0])}^(-{2 * j}/{format_operand(d[0, 0])})",
    ),
    "sines and cosines": Rule(
        _waves,
        "sin and cos of {0}, side by side for each pair",
        "(\\sin {0},\\ \\cos {0})",
        {
            "sine and cosine were exchanged": lambda a: _waves(a, sympy.cos, sympy.sin),
            "all sines stand first, then all cosines": _halves,
            "the angles were taken as degrees": lambda a: _waves(
                M(a.applyfunc(lambda x: x * sympy.pi / 180))
            ),
        },
        _waves_entry,
    ),
    "rotation": Rule(
        _turns,
        "a turn by {0} for each pair: [cos sin; -sin cos]",
        "\\operatorname{{diag}}\\begin{{pmatrix}} \\cos {0} & \\sin {0} \\\\ "
        "-\\sin {0} & \\cos {0} \\end{{pmatrix}}",
        {"it turns the other way: the sign of the sines": lambda a: M(_turns(a).T)},
    ),
    "rotate pairs": Rule(
        _turned,
        "each pair of {0} turned by {1}",
        "\\operatorname{{turn}}({0}, {1})",
        {
            "it was turned the other way": lambda x, a: _turned(x, a, -1),
            "a pair was taken from the two halves": _turned_halves,
        },
        _turned_entry,
    ),
    "addition theorem": Rule(
        elementwise(combine_trig),
        "{0}, by sin(a + b) = sin a cos b + cos a sin b and its like",
        "{0} \\quad (\\sin(a + b) = \\sin a \\cos b + \\cos a \\sin b)",
        {},
        lambda i, j, a: format_plain(combine_trig(a[i, j])),
    ),
}
