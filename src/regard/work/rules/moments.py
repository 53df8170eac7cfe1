"""The rules of mean and variance of a dot product, and of a simulation that can be run again."""

from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.rules.rule import M, Matrix, Rule, format_bare, format_operand, format_power

MAX_SAMPLED_NUMBERS = 20_000_000  # numbers that one simulation may draw
CHUNK_SIZE = 1_000_000


def _simulated(m: Matrix, sigma: Matrix, d: Matrix, draws: Matrix, seed: Matrix) -> Matrix:
    """Mean and variance of q·k over so many pairs, each with its standard error."""
    return _figures(_drawn(m, sigma, d, draws, seed, same=False))


def _drawn(m: Matrix, sigma: Matrix, d: Matrix, draws: Matrix, seed: Matrix, same: bool) -> Any:
    import numpy as np  # only who simulates waits for it

    size, count = int(d[0]), int(draws[0])
    if not 2 <= count <= MAX_SAMPLED_NUMBERS // size:
        raise WorkError(
            f"samples: needs 2 to {MAX_SAMPLED_NUMBERS // size} for d = {size}, got {count}"
        )
    chance = np.random.default_rng(int(seed[0]))
    # the law depends on the length of the mean alone, so that any direction will do
    mean, spread = float((m[0] / d[0]) ** 0.5), float(sigma[0])
    found = []
    for first in range(0, count, max(1, CHUNK_SIZE // size)):
        rows = min(max(1, CHUNK_SIZE // size), count - first)
        q = mean + spread * chance.standard_normal((rows, size))
        k = q if same else mean + spread * chance.standard_normal((rows, size))
        found.append((q * k).sum(1))
    return np.concatenate(found)


def _figures(s: Any) -> Matrix:
    centred = s - s.mean()
    variance = centred.var(ddof=1)
    fourth = (centred**4).mean()
    of_variance = ((fourth - variance**2) / len(s)) ** 0.5
    told_ = (s.mean(), (variance / len(s)) ** 0.5, variance, of_variance)
    return M([[sympy.Float(float(x), 17) for x in told_]])


def _one(run: Any) -> Any:
    """A rule on lone numbers."""
    return lambda *parts: M([[run(*(part[0] for part in parts))]])


MOMENT_RULES: dict[str, Rule] = {
    "inner product": Rule(
        lambda a: M([[sum(x * x for x in a)]]),
        "{0}ᵀ{0}",
        "{0}^\\top {0}",
        {"the entries were added, not their squares": lambda a: M([[sum(a)]])},
        lambda i, j, a: " + ".join(f"{format_power(x, '²')}" for x in a),
    ),
    "d squares": Rule(
        _one(lambda d, mu: d * mu**2),
        "{0} {1}²",
        "{0}\\, {1}^2",
        {"the d was left out": _one(lambda d, mu: mu**2)},
        lambda i, j, d, mu: f"{format_operand(d[0])}·{format_power(mu[0], '²')}",
    ),
    "variance from the mean": Rule(
        _one(lambda s, m, d: 2 * s**2 * m),
        "2 {0}² {1}",
        "2\\, {0}^2\\, {1}",
        {
            "a factor d was put before it, which belongs to d μ² only": _one(
                lambda s, m, d: 2 * d * s**2 * m
            ),
            "the 2 was left out: q and k both vary": _one(lambda s, m, d: s**2 * m),
            "σ was not squared": _one(lambda s, m, d: 2 * s * m),
        },
        lambda i, j, s, m, d: f"2·{format_power(s[0], '²')}·{format_operand(m[0])}",
    ),
    "variance from the noise": Rule(
        _one(lambda s, d: d * s**4),
        "{1} {0}⁴",
        "{1}\\, {0}^4",
        {
            "σ² was taken for σ⁴": _one(lambda s, d: d * s**2),
            "the d was left out": _one(lambda s, d: s**4),
        },
        lambda i, j, s, d: f"{format_operand(d[0])}·{format_power(s[0], '⁴')}",
    ),
    "mean of q·q": Rule(
        _one(lambda s, m, d: m + d * s**2),
        "{1} + {2} {0}²",
        "{1} + {2}\\, {0}^2",
        {"they were taken as independent": _one(lambda s, m, d: m)},
        lambda i, j, s, m, d: (
            f"{format_operand(m[0])} + {format_operand(d[0])}·{format_power(s[0], '²')}"
        ),
    ),
    "variance of q·q": Rule(
        _one(lambda s, m, d: 4 * s**2 * m + 2 * d * s**4),
        "4 {0}² {1} + 2 {2} {0}⁴",
        "4\\, {0}^2\\, {1} + 2\\, {2}\\, {0}^4",
        {"they were taken as independent": _one(lambda s, m, d: 2 * s**2 * m + d * s**4)},
        lambda i, j, s, m, d: (
            f"4·{format_power(s[0], '²')}·{format_operand(m[0])} + 2·{format_operand(d[0])}·{format_power(s[0], '⁴')}"
        ),
    ),
    "root": Rule(
        _one(sympy.sqrt),
        "√{0}",
        "\\sqrt{{{0}}}",
        {"the root was left out": lambda a: a},
        lambda i, j, a: f"√({format_bare(a[0])})",
    ),
    "divided by": Rule(
        _one(lambda a, b: a / b),
        "{0} / {1}",
        "{0} / {1}",
        {"it was multiplied": _one(lambda a, b: a * b)},
        lambda i, j, a, b: f"{format_power(a[0], '')} / {format_power(b[0], '')}",
    ),
    "divided by the square": Rule(
        _one(lambda a, b: a / b**2),
        "{0} / {1}²",
        "{0} / {1}^2",
        {"the square was left out": _one(lambda a, b: a / b)},
        lambda i, j, a, b: f"{format_power(a[0], '')} / {format_power(b[0])}",
    ),
    "simulate": Rule(
        _simulated,
        "mean ± error, variance ± error of {3} dot products, from {0}, {1}, {2} and the {4}",
        "\\operatorname{{simulate}}({0}, {1}, {2}; {3}, {4})",
        {},
    ),
    "simulate q·q": Rule(
        lambda *parts: _figures(_drawn(*parts, same=True)),
        "mean ± error, variance ± error of {3} squares, from {0}, {1}, {2} and the {4}",
        "\\operatorname{{simulate}}({0}, {1}, {2}; {3}, {4})",
        {},
    ),
}
