"""The rules of a small change: one row moved or scaled, and what softmax makes of it, by order."""

from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.rules.rule import M, Matrix, Rule, format_operand


def _row(a: Matrix, i: Matrix) -> int:
    n = int(i[0])
    if not 1 <= n <= a.rows:
        raise WorkError(f"index: needs one of the rows 1 to {a.rows}, got {n}")
    return n - 1


def _moved(a: Matrix, by: Matrix, i: Matrix) -> Matrix:
    n = _row(a, i)
    if by.shape != (1, a.cols):
        raise WorkError(f"eps: needs {a.cols} numbers, one a feature, got {by.rows}×{by.cols}")
    return M(a.rows, a.cols, lambda r, c: a[r, c] + (by[0, c] if r == n else 0))


def _stretched(a: Matrix, by: Matrix, i: Matrix) -> Matrix:
    n = _row(a, i)
    return M(a.rows, a.cols, lambda r, c: a[r, c] * (by[0] if r == n else 1))


def _weighted(a: Matrix, d: Matrix) -> list[Any]:
    """The mean of d in each row, by the weights a."""
    return [sum(x * y for x, y in zip(a.row(i), d.row(i), strict=True)) for i in range(a.rows)]


def _first(a: Matrix, d: Matrix) -> Matrix:
    mean = _weighted(a, d)
    return M(a.rows, a.cols, lambda i, j: a[i, j] * (d[i, j] - mean[i]))


def _second(a: Matrix, d: Matrix) -> Matrix:
    mean = _weighted(a, d)
    square = M(a.rows, a.cols, lambda i, j: (d[i, j] - mean[i]) ** 2)
    spread = _weighted(a, square)
    return M(a.rows, a.cols, lambda i, j: a[i, j] * (square[i, j] - spread[i]) / 2)


def _first_entry(i: int, j: int, a: Matrix, d: Matrix) -> str:
    return f"{format_operand(a[i, j])}·({format_operand(d[i, j])} - {format_operand(_weighted(a, d)[i])})"


def _by_key(
    q: Matrix, a: Matrix, v: Matrix, h: Matrix, beta: Matrix, sigma: Matrix, i: Matrix
) -> Matrix:
    n = _row(v, i)

    def one(row: Any, col: Any) -> Any:
        w = a[row, n]
        length = sum(x**2 for x in q.row(row))
        half = (sigma[0] * beta[0]) ** 2 * length / 2
        return half * w * (1 - 2 * w) * (v[n, col] - h[row, col])

    return M(h.rows, h.cols, one)


def _by_query(
    k: Matrix, a: Matrix, v: Matrix, h: Matrix, beta: Matrix, sigma: Matrix, i: Matrix
) -> Matrix:
    n = _row(h, i)
    mean = a.row(n) * k
    far = [sum(x**2 for x in k.row(j) - mean) for j in range(k.rows)]

    def one(row: Any, col: Any) -> Any:
        if row != n:
            return sympy.S.Zero
        parts = (a[n, j] * far[j] * (v[j, col] - h[n, col]) for j in range(k.rows))
        return (sigma[0] * beta[0]) ** 2 / 2 * sum(parts)

    return M(h.rows, h.cols, one)


def _nothing(*parts: Matrix) -> Matrix:
    return M.zeros(*parts[3].shape)


PERTURB_RULES: dict[str, Rule] = {
    "move one row": Rule(
        _moved,
        "{0} with {1} added to row {2}",
        "{0} + e_{{{2}}}\\, {1}",
        {"it was subtracted": lambda a, by, i: _moved(a, M(-by), i)},
        None,
    ),
    "scale one row": Rule(
        _stretched,
        "{0} with row {2} times {1}",
        "{0} + ({1} - 1)\\, e_{{{2}}} e_{{{2}}}^\\top {0}",
        {"all of it was scaled": lambda a, by, i: M(a * by[0])},
        None,
    ),
    "softmax, first order": Rule(
        _first,
        "{0} ∘ ({1} - the mean of {1} by the weights {0}, row by row)",
        "{0} \\circ \\bigl({1} - ({0} \\circ {1})\\mathbf 1 \\mathbf 1^\\top\\bigr)",
        {
            "the rest of the row was not made to give way": lambda a, d: M(
                a.multiply_elementwise(d)
            ),
            "the weights were left out": lambda a, d: d,
        },
        _first_entry,
    ),
    "softmax, second order": Rule(
        _second,
        "½ {0} ∘ (({1} - its mean)² - its variance), by the weights {0}, row by row",
        "\\tfrac12\\, {0} \\circ \\bigl(({1} - \\overline{{{1}}})^2 - "
        "\\operatorname{{Var}} {1}\\bigr)",
        {
            "the half was left out": lambda a, d: M(2 * _second(a, d)),
            "the variance was left out": lambda a, d: M(
                a.rows, a.cols, lambda i, j: a[i, j] * (d[i, j] - _weighted(a, d)[i]) ** 2 / 2
            ),
        },
    ),
    "mean change, key noise": Rule(
        _by_key,
        "½ {5}² {4}² ‖q‖² a (1 - 2a) ({2}_i - {3}), for each query; a = its weight in {1}, i = {6}",
        "\\tfrac12\\, {5}^2 {4}^2 \\lVert q \\rVert^2 a (1 - 2a) (v_i - h)",
        {"the mean change was taken as 0": _nothing},
    ),
    "mean change, query noise": Rule(
        _by_query,
        "½ {5}² {4}² Σ a_j ‖k_j - k̄‖² (v_j - h) in row {6}, from {0}, {1}, {2} and {3}",
        "\\tfrac12\\, {5}^2 {4}^2 \\sum_j a_j \\lVert k_j - \\bar k \\rVert^2 (v_j - h)",
        {"the mean change was taken as 0": _nothing},
    ),
}
