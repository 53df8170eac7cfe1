"""Rules of constructed attention: softmax weights, margins, inverses, convolutions, shifts."""

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.rules.rule import M, Matrix, Rule, elementwise, format_operand, rule


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


CONSTRUCTION_RULES: dict[str, Rule] = {
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
