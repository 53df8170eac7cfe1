"""Rules of mean and variance of a dot product, and of a seeded simulation."""

from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.rules.rule import M, Matrix, Rule, format_bare, format_operand, format_power

MAX_SAMPLED_NUMBERS = 20_000_000  # per simulation
CHUNK_SIZE = 1_000_000


def _simulate(m: Matrix, sigma: Matrix, d: Matrix, samples: Matrix, seed: Matrix) -> Matrix:
    """Sample mean and variance of q·k, each with its standard error."""
    return _statistics(_sample(m, sigma, d, samples, seed, q_is_k=False))


def _sample(
    m: Matrix, sigma: Matrix, d: Matrix, samples: Matrix, seed: Matrix, q_is_k: bool
) -> Any:
    import numpy as np  # slow to import, needed only here

    size, count = int(d[0]), int(samples[0])
    if not 2 <= count <= MAX_SAMPLED_NUMBERS // size:
        raise WorkError(
            f"samples: needs 2 to {MAX_SAMPLED_NUMBERS // size} for d = {size}, got {count}"
        )
    rng = np.random.default_rng(int(seed[0]))
    # the distribution depends on the norm of the mean only, so any direction will do
    mean, std = float((m[0] / d[0]) ** 0.5), float(sigma[0])
    chunks = []
    for first in range(0, count, max(1, CHUNK_SIZE // size)):
        rows = min(max(1, CHUNK_SIZE // size), count - first)
        q = mean + std * rng.standard_normal((rows, size))
        k = q if q_is_k else mean + std * rng.standard_normal((rows, size))
        chunks.append((q * k).sum(1))
    return np.concatenate(chunks)


def _statistics(s: Any) -> Matrix:
    centred = s - s.mean()
    variance = centred.var(ddof=1)
    fourth_moment = (centred**4).mean()
    variance_error = ((fourth_moment - variance**2) / len(s)) ** 0.5
    statistics = (s.mean(), (variance / len(s)) ** 0.5, variance, variance_error)
    return M([[sympy.Float(float(x), 17) for x in statistics]])


def _scalar(run: Any) -> Any:
    """Lift a function of numbers to 1×1 matrices."""
    return lambda *inputs: M([[run(*(part[0] for part in inputs))]])


MOMENT_RULES: dict[str, Rule] = {
    "inner product": Rule(
        lambda a: M([[sum(x * x for x in a)]]),
        "{0}ᵀ{0}",
        "{0}^\\top {0}",
        {"the entries were added, not their squares": lambda a: M([[sum(a)]])},
        lambda i, j, a: " + ".join(f"{format_power(x, '²')}" for x in a),
    ),
    "d squares": Rule(
        _scalar(lambda d, mu: d * mu**2),
        "{0} {1}²",
        "{0}\\, {1}^2",
        {"the d was left out": _scalar(lambda d, mu: mu**2)},
        lambda i, j, d, mu: f"{format_operand(d[0])}·{format_power(mu[0], '²')}",
    ),
    "variance from the mean": Rule(
        _scalar(lambda s, m, d: 2 * s**2 * m),
        "2 {0}² {1}",
        "2\\, {0}^2\\, {1}",
        {
            "an extra factor d, which belongs to d μ² only": _scalar(
                lambda s, m, d: 2 * d * s**2 * m
            ),
            "the 2 was left out: q and k both vary": _scalar(lambda s, m, d: s**2 * m),
            "σ was not squared": _scalar(lambda s, m, d: 2 * s * m),
        },
        lambda i, j, s, m, d: f"2·{format_power(s[0], '²')}·{format_operand(m[0])}",
    ),
    "variance from the noise": Rule(
        _scalar(lambda s, d: d * s**4),
        "{1} {0}⁴",
        "{1}\\, {0}^4",
        {
            "σ² was taken for σ⁴": _scalar(lambda s, d: d * s**2),
            "the d was left out": _scalar(lambda s, d: s**4),
        },
        lambda i, j, s, d: f"{format_operand(d[0])}·{format_power(s[0], '⁴')}",
    ),
    "mean of q·q": Rule(
        _scalar(lambda s, m, d: m + d * s**2),
        "{1} + {2} {0}²",
        "{1} + {2}\\, {0}^2",
        {"they were taken as independent": _scalar(lambda s, m, d: m)},
        lambda i, j, s, m, d: (
            f"{format_operand(m[0])} + {format_operand(d[0])}·{format_power(s[0], '²')}"
        ),
    ),
    "variance of q·q": Rule(
        _scalar(lambda s, m, d: 4 * s**2 * m + 2 * d * s**4),
        "4 {0}² {1} + 2 {2} {0}⁴",
        "4\\, {0}^2\\, {1} + 2\\, {2}\\, {0}^4",
        {"they were taken as independent": _scalar(lambda s, m, d: 2 * s**2 * m + d * s**4)},
        lambda i, j, s, m, d: (
            f"4·{format_power(s[0], '²')}·{format_operand(m[0])} + "
            f"2·{format_operand(d[0])}·{format_power(s[0], '⁴')}"
        ),
    ),
    "root": Rule(
        _scalar(sympy.sqrt),
        "√{0}",
        "\\sqrt{{{0}}}",
        {"the root was left out": lambda a: a},
        lambda i, j, a: f"√({format_bare(a[0])})",
    ),
    "divided by": Rule(
        _scalar(lambda a, b: a / b),
        "{0} / {1}",
        "{0} / {1}",
        {"it was multiplied": _scalar(lambda a, b: a * b)},
        lambda i, j, a, b: f"{format_power(a[0], '')} / {format_power(b[0], '')}",
    ),
    "divided by the square": Rule(
        _scalar(lambda a, b: a / b**2),
        "{0} / {1}²",
        "{0} / {1}^2",
        {"the square was left out": _scalar(lambda a, b: a / b)},
        lambda i, j, a, b: f"{format_power(a[0], '')} / {format_power(b[0])}",
    ),
    "simulate": Rule(
        _simulate,
        "mean ± error, variance ± error of {3} dot products, from {0}, {1}, {2} and the {4}",
        "\\operatorname{{simulate}}({0}, {1}, {2}; {3}, {4})",
        {},
        is_random=True,
    ),
    "simulate q·q": Rule(
        lambda *inputs: _statistics(_sample(*inputs, q_is_k=True)),
        "mean ± error, variance ± error of {3} squares, from {0}, {1}, {2} and the {4}",
        "\\operatorname{{simulate}}({0}, {1}, {2}; {3}, {4})",
        {},
        is_random=True,
    ),
}
