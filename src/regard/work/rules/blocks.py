"""The rules of a Transformer's block: bias, layer norm, activation, and counting."""

from collections.abc import Callable
from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.rules.rule import M, Matrix, Rule, elementwise, format_bare, format_operand


def _times(a: Matrix, b: Matrix) -> Matrix:
    if a.cols != b.rows:
        raise ShapeError(
            f"product: needs as many columns on the left as rows on the right, got "
            f"{a.rows}×{a.cols} times {b.rows}×{b.cols}"
        )
    return M(a * b)


def _to_rows(a: Matrix, row: Matrix, sign: int = 1) -> Matrix:
    """One row added to every row; a column of as many numbers will do."""
    cells = list(row)
    if 1 not in row.shape or len(cells) != a.cols:
        raise ShapeError(f"bias: needs {a.cols} numbers, got {row.rows}×{row.cols}")
    return M(a.rows, a.cols, lambda i, j: a[i, j] + sign * cells[j])


def _affine(x: Matrix, w: Matrix, b: Matrix, sign: int = 1) -> Matrix:
    return _to_rows(_times(x, w), b, sign)


def _affine_entry(i: int, j: int, x: Matrix, w: Matrix, b: Matrix) -> str:
    terms = [f"{format_operand(x[i, n])}·{format_operand(w[n, j])}" for n in range(x.cols)]
    return " + ".join([*terms, format_operand(list(b)[j])])


def _mean(a: Matrix) -> Matrix:
    return M([sum(a.row(i)) / a.cols for i in range(a.rows)])


def _mean_entry(i: int, j: int, a: Matrix) -> str:
    return f"({' + '.join(format_operand(x) for x in a.row(i))}) / {a.cols}"


def _down(a: Matrix) -> list[Any]:
    return [sum(a.col(j)) / a.rows for j in range(a.cols)]


def _centred(a: Matrix, mean: Matrix, sign: int = 1) -> Matrix:
    return M(a.rows, a.cols, lambda i, j: a[i, j] - sign * mean[i, 0])


def _variance(c: Matrix, less: int = 0) -> Matrix:
    return M([sum(x**2 for x in c.row(i)) / (c.cols - less) for i in range(c.rows)])


def _variance_entry(i: int, j: int, c: Matrix) -> str:
    return f"({' + '.join(f'{format_operand(x)}²' for x in c.row(i))}) / {c.cols}"


def _inverse(v: Matrix, eps: Matrix) -> Matrix:
    e = eps[0, 0]
    if any(x + e == 0 for x in v):
        raise WorkError("eps: needs more than 0 where all features of a token are equal, got 0")
    return M(v.applyfunc(lambda x: 1 / sympy.sqrt(x + e)))


def _times_rows(a: Matrix, r: Matrix) -> Matrix:
    return M(a.rows, a.cols, lambda i, j: a[i, j] * r[i, 0])


def _gained(n: Matrix, gain: Matrix, shift: Matrix) -> Matrix:
    g = list(gain)
    if len(g) != n.cols:
        raise ShapeError(f"gain: needs {n.cols} numbers, got {gain.rows}×{gain.cols}")
    return _to_rows(M(n.rows, n.cols, lambda i, j: n[i, j] * g[j]), shift)


def relu(x: Any) -> Any:
    """max(0, x), exactly; with symbols it stays a question.

    >>> relu(sympy.sqrt(2) - 2), relu(sympy.Integer(3)), relu(sympy.Symbol("a"))
    (0, 3, Max(0, a))
    """
    if x.free_symbols:
        return sympy.Max(0, x)
    found = x if x.is_Rational else x.evalf(30)
    return x if found > 0 else sympy.Integer(0)


def gelu(x: Any) -> Any:
    """x times the share of a normal draw below x.

    >>> gelu(sympy.Integer(0))
    0
    """
    return x * (1 + sympy.erf(x / sympy.sqrt(2))) / 2


def _quotient(a: Matrix, b: Matrix) -> Matrix:
    over, under = a[0, 0], b[0, 0]
    if under == 0:
        raise WorkError("quotient: needs a number other than 0 below the line, got 0")
    return M([[over / under]])


def _counted(by: Callable[[int], Rule]) -> Callable[[str], Rule]:
    return lambda told: by(int(told))


def _so_many(n: int) -> Rule:
    return Rule(
        elementwise(lambda x: n * x),
        f"{n} · {{0}}",
        f"{n} \\cdot {{0}}",
        {f"the {n} was left out": lambda a: a},
        lambda i, j, a: f"{n}·{format_operand(a[i, j])}",
    )


def _more(n: int) -> Rule:
    return Rule(
        elementwise(lambda x: x + n),
        f"{{0}} + {n}",
        f"{{0}} + {n}",
        {f"the {n} was left out": lambda a: a},
        lambda i, j, a: f"{format_operand(a[i, j])} + {n}",
    )


ARITHMETIC_MAKERS = {r"times (\d+)": _counted(_so_many), r"plus (\d+)": _counted(_more)}

BLOCK_RULES: dict[str, Rule] = {
    "affine": Rule(
        _affine,
        "{0} {1} + {2}",
        "{0} {1} + {2}",
        {
            "the bias was left out": lambda x, w, b: _times(x, w),
            "the bias was subtracted": lambda x, w, b: _affine(x, w, b, -1),
            "the matrix was transposed": lambda x, w, b: _affine(x, M(w.T), b),
        },
        _affine_entry,
    ),
    "affine, columns": Rule(
        lambda w, x, b: M(_affine(M(x.T), M(w.T), b).T),
        "{0} {1} + {2}",
        "{0} {1} + {2}",
        {"the bias was left out": lambda w, x, b: _times(w, x)},
        lambda i, j, w, x, b: _affine_entry(j, i, M(x.T), M(w.T), b),
    ),
    "mean of rows": Rule(
        _mean,
        "the mean of each row of {0}",
        "\\operatorname{{mean}}({0})",
        {
            "the sum was not divided": lambda a: M([sum(a.row(i)) for i in range(a.rows)]),
            "means of the columns: over tokens, not features": lambda a: M(_down(a)),
        },
        _mean_entry,
    ),
    "centre rows": Rule(
        _centred,
        "{0} - {1}, row by row",
        "{0} - {1} \\mathbf 1^\\top",
        {
            "the mean was added": lambda a, m: _centred(a, m, -1),
            "the mean of each column was taken off": lambda a, m: _to_rows(a, M([_down(a)]), -1),
        },
        lambda i, j, a, m: f"{format_operand(a[i, j])} - {format_operand(m[i, 0])}",
    ),
    "variance of rows": Rule(
        _variance,
        "the mean of the squares in each row of {0}",
        "\\operatorname{{mean}}({0}^{{\\circ 2}})",
        {
            "divided by one less than the count": lambda c: _variance(c, 1),
            "the sum was not divided": lambda c: M(c.cols * _variance(c)),
            "the root was already taken": lambda c: M(_variance(c).applyfunc(sympy.sqrt)),
        },
        _variance_entry,
    ),
    "inverse std": Rule(
        _inverse,
        "1 / √({0} + {1})",
        "({0} + {1})^{{-1/2}}",
        {
            "no root was taken": lambda v, e: M(v.applyfunc(lambda x: 1 / (x + e[0, 0]))),
            "ε was added outside the root": lambda v, e: M(
                v.applyfunc(lambda x: 1 / (sympy.sqrt(x) + e[0, 0]))
            ),
            "it was not inverted": lambda v, e: M(v.applyfunc(lambda x: sympy.sqrt(x + e[0, 0]))),
        },
        lambda i, j, v, e: f"1 / √({format_operand(v[i, j])} + {format_operand(e[0, 0])})",
    ),
    "scale rows": Rule(
        _times_rows,
        "{0} · {1}, row by row",
        "\\operatorname{{diag}}({1})\\, {0}",
        {"it was divided": lambda a, r: _times_rows(a, M(r.applyfunc(lambda x: 1 / x)))},
        lambda i, j, a, r: f"{format_operand(a[i, j])}·{format_operand(r[i, 0])}",
    ),
    "gain and shift": Rule(
        _gained,
        "{1} ∘ {0} + {2}, row by row",
        "{0} \\operatorname{{diag}}({1}) + \\mathbf 1 {2}",
        {
            "the gain was left out": lambda n, g, s: _to_rows(n, s),
            "the shift was left out": lambda n, g, s: _gained(n, g, M.zeros(1, n.cols)),
            "the shift was scaled too": lambda n, g, s: _gained(_to_rows(n, s), g, 0 * s),
        },
        lambda i, j, n, g, s: (
            f"{format_operand(list(g)[j])}·{format_operand(n[i, j])} + {format_operand(list(s)[j])}"
        ),
    ),
    "gain": Rule(
        lambda n, g: _gained(n, g, M.zeros(1, n.cols)),
        "{1} ∘ {0}, row by row",
        "{0} \\operatorname{{diag}}({1})",
        {"it was left out": lambda n, g: n},
        lambda i, j, n, g: f"{format_operand(list(g)[j])}·{format_operand(n[i, j])}",
    ),
    "add to rows": Rule(
        _to_rows,
        "{0} + {1}, row by row",
        "{0} + \\mathbf 1 {1}",
        {"it was left out": lambda a, row: a},
        lambda i, j, a, row: f"{format_operand(a[i, j])} + {format_operand(list(row)[j])}",
    ),
    "relu": Rule(
        elementwise(relu),
        "max(0, {0})",
        "\\max(0, {0})",
        {
            "it was left out": lambda a: a,
            "the sign was dropped instead": elementwise(sympy.Abs),
            "the negative part was kept": elementwise(lambda x: x - relu(x)),
        },
        lambda i, j, a: f"max(0, {format_bare(a[i, j])})",
    ),
    "gelu": Rule(
        elementwise(gelu),
        "{0} ∘ Φ({0})",
        "{0} \\circ \\Phi({0})",
        {"it was left out": lambda a: a, "relu was used": elementwise(relu)},
        lambda i, j, a: f"{format_operand(a[i, j])}·Φ({format_bare(a[i, j])})",
    ),
    "silu": Rule(
        elementwise(lambda x: x / (1 + sympy.exp(-x))),
        "{0} ∘ σ({0})",
        "{0} \\circ \\sigma({0})",
        {
            "only σ was taken": elementwise(lambda x: 1 / (1 + sympy.exp(-x))),
            "relu was used": elementwise(relu),
        },
        lambda i, j, a: f"{format_operand(a[i, j])} / (1 + exp(-{format_operand(a[i, j])}))",
    ),
    "quotient": Rule(
        _quotient,
        "{0} / {1}",
        "{0} / {1}",
        {"they were multiplied": lambda a, b: M([[a[0, 0] * b[0, 0]]])},
        lambda i, j, a, b: f"{format_operand(a[0, 0])} / {format_operand(b[0, 0])}",
    ),
    "square": Rule(
        elementwise(lambda x: x**2),
        "{0}²",
        "{0}^2",
        {"it was doubled": elementwise(lambda x: 2 * x), "it was not squared": lambda a: a},
        lambda i, j, a: f"{format_operand(a[i, j])}²",
    ),
}
