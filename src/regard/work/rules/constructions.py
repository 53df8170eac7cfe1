"""The rules of attention built to order: shares, leads, inverses, taps and shifts."""

from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.rules.rule import M, Matrix, Rule, format_operand


def _own_share(beta: Matrix, n: Matrix) -> Matrix:
    e = sympy.exp(beta[0])
    return M([[e / (e + n[0] - 1)]])


def _lead(s: Matrix) -> Matrix:
    """How far each diagonal entry leads the best of its row; the smallest such lead."""
    if s.rows == 1:
        return M([[sympy.S.One]])
    leads = [s[i, i] - s[i, j] for i in range(s.rows) for j in range(s.cols) if i != j]
    return M([[min(leads, key=lambda x: to_float(x))]])


def _needed(p: Matrix, n: Matrix, lead: Matrix) -> Matrix:
    if to_float(lead[0]) <= 0:
        return M([[sympy.oo]])
    return M([[sympy.log(p[0] / (1 - p[0]) * (n[0] - 1)) / lead[0]]])


def _inverse(a: Matrix) -> Matrix:
    if a.rows != a.cols or a.det() == 0:
        raise WorkError(f"W_V: needs to be square and to have an inverse, got {a.rows}×{a.cols}")
    return M(a.inv())


def convolution_matrix(kernel: Matrix, x: Matrix) -> Matrix:
    """The matrix of a convolution: entry (i, j) is the tap for distance j - i, 0 beyond the ends.

    >>> convolution_matrix(M([[1, 2, 3]]), M([[0], [0], [0]]))
    Matrix([
    [2, 3, 0],
    [1, 2, 3],
    [0, 1, 2]])
    """
    far = kernel.cols // 2
    return M(
        x.rows,
        x.rows,
        lambda i, j: kernel[0, int(j - i) + far] if abs(j - i) <= far else sympy.S.Zero,
    )


def _shifted(offset: Matrix, x: Matrix) -> Matrix:
    return M(x.rows, x.rows, lambda i, j: int(j - i == offset[0]))


def _log(x: Any) -> Any:
    return -sympy.oo if x == 0 else sympy.log(x)


CONSTRUCTION_RULES: dict[str, Rule] = {
    "diagonal softmax weight": Rule(
        _own_share,
        "e^{0} / (e^{0} + {1} - 1)",
        "\\frac{{e^{{{0}}}}}{{e^{{{0}}} + {1} - 1}}",
        {
            "softmax of the unit matrix was taken to be the unit matrix": lambda b, n: M([[1]]),
            "one too many in the sum": lambda b, n: _own_share(b, M([[n[0] + 1]])),
        },
        lambda i, j, b, n: (
            f"exp({format_operand(b[0])}) / (exp({format_operand(b[0])}) + {format_operand(n[0])} - 1)"
        ),
    ),
    "diagonal margin": Rule(
        _lead,
        "the smallest lead of a diagonal entry of {0} over the rest of its row",
        "\\min_{{i \\neq j}} \\bigl(({0})_{{ii}} - ({0})_{{ij}}\\bigr)",
        {"columns were compared instead of rows": lambda s: _lead(M(s.T))},
    ),
    "scale for weight": Rule(
        _needed,
        "log({0} / (1 - {0}) · ({1} - 1)) / {2}",
        "\\log\\Bigl(\\frac{{{0}}}{{1 - {0}}} ({1} - 1)\\Bigr) / {2}",
        {"the count of the others was left out": lambda p, n, d: _needed(p, M([[2]]), d)},
        lambda i, j, p, n, d: (
            f"log({format_operand(p[0] / (1 - p[0]))}·{format_operand(n[0] - 1)}) / {format_operand(d[0])}"
        ),
    ),
    "inverse": Rule(
        _inverse,
        "{0}⁻¹",
        "{0}^{{-1}}",
        {
            "it was transposed instead": lambda a: M(a.T),
            "each entry was turned over": lambda a: M(a.applyfunc(lambda x: 1 / x if x else x)),
        },
    ),
    "log taps": Rule(
        lambda kernel, x: M(convolution_matrix(kernel, x).applyfunc(_log)),
        "log of the tap of {0} for each distance j - i, for each pair of {1}",
        "\\bigl[\\log {0}_{{j-i}}\\bigr]_{{ij}}",
        {
            "the logarithm was left out": convolution_matrix,
            "the distance was taken as i - j": lambda kernel, x: M(
                convolution_matrix(kernel, x).T.applyfunc(_log)
            ),
        },
        lambda i, j, kernel, x: f"log({format_operand(convolution_matrix(kernel, x)[i, j])})",
    ),
    "taps": Rule(
        convolution_matrix,
        "the tap of {0} for each distance j - i, for each pair of {1}",
        "\\bigl[{0}_{{j-i}}\\bigr]_{{ij}}",
        {"the distance was taken as i - j": lambda kernel, x: M(convolution_matrix(kernel, x).T)},
        lambda i, j, kernel, x: format_operand(convolution_matrix(kernel, x)[i, j]),
    ),
    "shift": Rule(
        _shifted,
        "1 where j - i = {0}, for each pair of {1}",
        "\\bigl[ j - i = {0} \\bigr]_{{ij}}",
        {"it was shifted the other way": lambda o, x: M(_shifted(o, x).T)},
    ),
}
