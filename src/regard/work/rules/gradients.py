"""The rules of the chain rule: slopes of gates, sums over paths, Jacobians, norms and clipping."""

from typing import Any

import sympy

from regard.errors import ShapeError
from regard.work.evaluate import as_float
from regard.work.rules.rule import M, Matrix, Rule, Run, raised, told

MOST = 12  # parts that one sum may have


def _times(*parts: Matrix) -> Matrix:
    """Entry by entry, all of one shape."""
    if len({part.shape for part in parts}) > 1:
        shapes = " and ".join(f"{part.rows}×{part.cols}" for part in parts)
        raise ShapeError(f"factors: needs all of one shape, got {shapes}")
    found = parts[0]
    for part in parts[1:]:
        found = found.multiply_elementwise(part)
    return M(found)


def bent(y: Matrix) -> Matrix:
    """The slope of tanh where its value is y: 1 - y².

    >>> bent(M([[0, 1]]))
    Matrix([[1, 0]])
    """
    return M(y.applyfunc(lambda x: 1 - x**2))


def gated(y: Matrix) -> Matrix:
    """The slope of σ where its value is y: y (1 - y).

    >>> gated(M([[0, sympy.Rational(1, 2)]]))
    Matrix([[0, 1/4]])
    """
    return M(y.applyfunc(lambda x: x * (1 - x)))


def _diag(v: Matrix) -> Matrix:
    return M(sympy.diag(*v))


def _norm(*parts: Matrix) -> Matrix:
    return M([[sympy.sqrt(sum((x**2 for part in parts for x in part), sympy.S.Zero))]])


def _radius(a: Matrix) -> Matrix:
    """The largest size of an eigenvalue; exact up to 2×2, else to 50 digits."""
    if a.rows != a.cols:
        raise ShapeError(f"spectral radius: needs a square matrix, got {a.rows}×{a.cols}")
    if a.rows == 1:
        return M([[abs(a[0, 0])]])
    if a.rows == 2:
        half, product = a.trace() / 2, a.det()
        apart = half**2 - product
        if as_float(apart) < 0:  # a pair a ± b i, of size √(a² + b²)
            return M([[sympy.sqrt(product)]])
        return M([[abs(half) + sympy.sqrt(apart)]])
    roots = sympy.Poly(a.evalf(60).charpoly().as_expr()).nroots(n=50, maxsteps=200)
    return M([[max((abs(root) for root in roots), key=lambda x: x.evalf(30))]])


def _radius_entry(i: int, j: int, a: Matrix) -> str:
    if a.rows != 2:
        return ""
    return f"largest |λ| of λ² - {told(a.trace())}·λ + {told(a.det())} = 0"


def _sum_of(count: int) -> Rule:
    """A sum of so many parts; leaving one of them out is what people do."""

    def run(*parts: Matrix) -> Matrix:
        if len({part.shape for part in parts}) > 1:
            shapes = " and ".join(f"{part.rows}×{part.cols}" for part in parts)
            raise ShapeError(f"sum: needs all of one shape, got {shapes}")
        return M(sum(parts[1:], parts[0]))

    def without(which: int) -> Run:
        return lambda *parts: run(*(part for n, part in enumerate(parts) if n != which))

    slips: dict[str, Run] = {
        f"part {n + 1} of the sum was left out": without(n) for n in range(count)
    }
    slips |= {f"only part {n + 1} of the sum was taken": _part(n) for n in range(count)}
    slips["the mean was taken instead of the sum"] = lambda *parts: M(run(*parts) / count)
    text = " + ".join(f"{{{n}}}" for n in range(count))
    return Rule(
        run, text, text, slips, lambda i, j, *parts: " + ".join(told(part[i, j]) for part in parts)
    )


def _part(which: int) -> Run:
    return lambda *parts: parts[which]


def _norm_of(count: int) -> Rule:
    text = " + ".join(f"‖{{{n}}}‖²" for n in range(count))
    tex = " + ".join(f"\\lVert {{{n}}} \\rVert^2" for n in range(count))
    squared: Run = lambda *parts: M(_norm(*parts).applyfunc(lambda x: x**2))  # noqa: E731
    return Rule(
        _norm,
        f"√({text})" if count > 1 else "‖{0}‖",
        f"\\sqrt{{{{{tex}}}}}" if count > 1 else "\\lVert {0} \\rVert",
        {
            "the root was left out": squared,
            "the largest entry was taken": lambda *parts: M([[_largest(*parts)]]),
        },
    )


def _largest(*parts: Matrix) -> Any:
    return max((abs(x) for part in parts for x in part), key=lambda x: as_float(x))


def _kept_under(norm: Matrix, most: Matrix) -> Matrix:
    much = as_float(norm[0, 0]) > as_float(most[0, 0])
    return M([[most[0, 0] / norm[0, 0] if much else sympy.S.One]])


def _half_square(h: Matrix, target: Matrix) -> Matrix:
    return M([[sum((x**2 for x in h - target), sympy.S.Zero) / 2]])


def _slope_entry(slope: str) -> Any:
    return lambda i, j, d, y: (
        f"{told(d[i, j])}·{slope.replace('y²', raised(y[i, j])).replace('y', told(y[i, j]))}"
    )


GRADIENTS: dict[str, Rule] = {
    **{f"sum of {n}": _sum_of(n) for n in range(2, MOST + 1)},
    **{f"norm of {n}": _norm_of(n) for n in range(1, MOST + 1)},
    "same": Rule(lambda a: a, "{0}", "{0}", {}),
    "sum of entries": Rule(
        lambda a: M([[sum(a)]]),
        "sum of the entries of {0}",
        "\\mathbf 1^\\top {0}",
        {"the mean was taken": lambda a: M([[sum(a) / len(a)]])},
        lambda i, j, a: " + ".join(told(x) for x in a),
    ),
    "ones like": Rule(
        lambda a: M.ones(*a.shape),
        "1 for each entry of {0}",
        "\\partial\\, \\mathbf 1^\\top {0} / \\partial {0}",
        {},
    ),
    "half square": Rule(
        _half_square,
        "½ ‖{0} - {1}‖²",
        "\\tfrac12 \\lVert {0} - {1} \\rVert^2",
        {"the half was left out": lambda h, y: M(2 * _half_square(h, y))},
        lambda i, j, h, y: (
            "½·(" + " + ".join(f"{raised(a - b)}" for a, b in zip(h, y, strict=True)) + ")"
        ),
    ),
    "subtract": Rule(
        lambda a, b: M(a - b),
        "{0} - {1}",
        "{0} - {1}",
        {
            "they were added": lambda a, b: M(a + b),
            "they were exchanged": lambda a, b: M(b - a),
        },
        lambda i, j, a, b: f"{told(a[i, j])} - {told(b[i, j])}",
    ),
    "direct and later": Rule(
        lambda e, later: M(e + later),
        "{0} + {1}",
        "{0} + {1}",
        {
            "only the direct part was taken, not what comes back from later": lambda e, later: e,
            "the direct part was left out": lambda e, later: later,
        },
        lambda i, j, e, later: f"{told(e[i, j])} + {told(later[i, j])}",
    ),
    "through tanh": Rule(
        lambda d, y: _times(d, bent(y)),
        "{0} ∘ (1 - {1}²)",
        "{0} \\circ (1 - {1}^2)",
        {
            "the slope of tanh was left out": lambda d, y: d,
            "the slope of σ was used for that of tanh": lambda d, y: _times(d, gated(y)),
            "1 - y was used for 1 - y²": lambda d, y: _times(d, M(y.applyfunc(lambda x: 1 - x))),
            "the slope was taken at the value, not at what went in": lambda d, y: _times(
                d, bent(M(y.applyfunc(sympy.tanh)))
            ),
        },
        _slope_entry("(1 - y²)"),
    ),
    "through σ": Rule(
        lambda d, y: _times(d, gated(y)),
        "{0} ∘ {1} ∘ (1 - {1})",
        "{0} \\circ {1} \\circ (1 - {1})",
        {
            "the slope of σ was left out": lambda d, y: d,
            "the slope of tanh was used for that of σ": lambda d, y: _times(d, bent(y)),
            "(1 - y) was left out": _times,
        },
        _slope_entry("y·(1 - y)"),
    ),
    "by what it gates": Rule(
        lambda d, y: _times(d, y),
        "{0} ∘ {1}",
        "{0} \\circ {1}",
        {"the other factor was left out": lambda d, y: d},
        lambda i, j, d, y: f"{told(d[i, j])}·{told(y[i, j])}",
    ),
    "by new less old": Rule(
        lambda d, new, old: _times(d, M(new - old)),
        "{0} ∘ ({1} - {2})",
        "{0} \\circ ({1} - {2})",
        {
            "new and old were exchanged": lambda d, new, old: _times(d, M(old - new)),
            "the old state was left out": lambda d, new, old: _times(d, new),
        },
        lambda i, j, d, n, o: f"{told(d[i, j])}·({told(n[i, j])} - {told(o[i, j])})",
    ),
    "by what is kept": Rule(
        lambda d, z: _times(d, M(z.applyfunc(lambda x: 1 - x))),
        "{0} ∘ (1 - {1})",
        "{0} \\circ (1 - {1})",
        {"z was used for 1 - z": _times},
        lambda i, j, d, z: f"{told(d[i, j])}·(1 - {told(z[i, j])})",
    ),
    "from state to cell": Rule(
        lambda d, o, y: _times(d, o, bent(y)),
        "{0} ∘ {1} ∘ (1 - {2}²)",
        "{0} \\circ {1} \\circ (1 - {2}^2)",
        {
            "the slope of tanh was left out": lambda d, o, y: _times(d, o),
            "the output gate was left out": lambda d, o, y: _times(d, bent(y)),
            "the slope of σ was used for that of tanh": lambda d, o, y: _times(d, o, gated(y)),
        },
        lambda i, j, d, o, y: f"{told(d[i, j])}·{told(o[i, j])}·(1 - {raised(y[i, j])})",
    ),
    "two paths": Rule(
        lambda h, c: M(h + c),
        "{0} + {1}",
        "{0} + {1}",
        {
            "the path through h was left out": lambda h, c: c,
            "the path through the next cell was left out": lambda h, c: h,
        },
        lambda i, j, h, c: f"{told(h[i, j])} + {told(c[i, j])}",
    ),
    "slope of a step": Rule(
        lambda y, u: M(_diag(bent(y)) * u),
        "diag(1 - {0}²) {1}",
        "\\operatorname{{diag}}(1 - {0}^2)\\, {1}",
        {
            "the slope of tanh was left out": lambda y, u: u,
            "the slopes were put on the wrong side": lambda y, u: M(u * _diag(bent(y))),
            "U was transposed": lambda y, u: M(_diag(bent(y)) * u.T),
            "the slope of σ was used for that of tanh": lambda y, u: M(_diag(gated(y)) * u),
        },
        lambda i, j, y, u: f"(1 - {raised(y[i, 0])})·{told(u[i, j])}",
    ),
    "slope of a gate": Rule(
        lambda v, y, u: M(_diag(_times(v, gated(y))) * u),
        "diag({0} ∘ {1} ∘ (1 - {1})) {2}",
        "\\operatorname{{diag}}({0} \\circ {1} \\circ (1 - {1}))\\, {2}",
        {"the slope of σ was left out": lambda v, y, u: M(_diag(v) * u)},
        lambda i, j, v, y, u: (
            f"{told(v[i, 0])}·{told(y[i, 0])}·(1 - {told(y[i, 0])})·{told(u[i, j])}"
        ),
    ),
    "slope of the candidate": Rule(
        lambda v, y, u: M(_diag(_times(v, bent(y))) * u),
        "diag({0} ∘ (1 - {1}²)) {2}",
        "\\operatorname{{diag}}({0} \\circ (1 - {1}^2))\\, {2}",
        {"the slope of tanh was left out": lambda v, y, u: M(_diag(v) * u)},
        lambda i, j, v, y, u: f"{told(v[i, 0])}·(1 - {raised(y[i, 0])})·{told(u[i, j])}",
    ),
    "columns by o and slope": Rule(
        lambda b, o, y: M(b * _diag(_times(o, bent(y)))),
        "{0} diag({1} ∘ (1 - {2}²))",
        "{0} \\operatorname{{diag}}({1} \\circ (1 - {2}^2))",
        {"the slope of tanh was left out": lambda b, o, y: M(b * _diag(o))},
        lambda i, j, b, o, y: f"{told(b[i, j])}·{told(o[j, 0])}·(1 - {raised(y[j, 0])})",
    ),
    "diagonal and rest": Rule(
        lambda f, rest: M(_diag(f) + rest),
        "diag({0}) + {1}",
        "\\operatorname{{diag}}({0}) + {1}",
        {
            "the path through h was left out": lambda f, rest: _diag(f),
            "the direct path was left out": lambda f, rest: rest,
        },
    ),
    "spectral radius": Rule(_radius, "ρ({0})", "\\rho({0})", {}, _radius_entry),
    "largest gain": Rule(
        lambda a: M(_radius(M(a.T * a)).applyfunc(sympy.sqrt)),
        "‖{0}‖, the largest gain",
        "\\lVert {0} \\rVert_2",
        {"the root was left out": lambda a: _radius(M(a.T * a))},
    ),
    "clip by norm": Rule(
        _kept_under,
        "min(1, {1} / {0})",
        "\\min(1, {1} / {0})",
        {
            "it was divided the other way": lambda norm, most: M([[norm[0, 0] / most[0, 0]]]),
        },
        lambda i, j, norm, most: f"min(1, {told(most[0, 0])} / {told(norm[0, 0])})",
    ),
}
