"""Rules of a perturbed row, and the Taylor expansion of softmax."""

from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.rules.rule import M, Matrix, Rule, format_operand, rule


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

PERTURB_RULES: dict[str, Rule] = {
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
