"""Rules of mean and variance of a dot product, and of a seeded simulation."""

from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.rules.rule import (
    M,
    Matrix,
    MatrixFunction,
    Rule,
    broadcast,
    format_power,
    format_sum,
)

MAX_SAMPLED_NUMBERS = 20_000_000  # per simulation
CHUNK_SIZE = 1_000_000


def _sample(
    m: Matrix, sigma: Matrix, d: Matrix, samples: Matrix, seed: Matrix, q_is_k: bool
) -> Any:
    """Dot products of random q and k."""
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
    """Sample mean and variance, each with its standard error."""
    centred = s - s.mean()
    variance = centred.var(ddof=1)
    fourth_moment = (centred**4).mean()
    variance_error = ((fourth_moment - variance**2) / len(s)) ** 0.5
    statistics = (s.mean(), (variance / len(s)) ** 0.5, variance, variance_error)
    return M([[sympy.Float(float(x), 17) for x in statistics]])


def _simulation(what: str, q_is_k: bool) -> Rule:
    run: MatrixFunction = lambda *inputs: _statistics(_sample(*inputs, q_is_k=q_is_k))  # noqa: E731
    source = f"of {{3}} {what}, from {{0}}, {{1}}, {{2}} and the {{4}}"
    latex = "\\operatorname{{simulate}}({0}, {1}, {2}; {3}, {4})"
    return Rule(run, f"mean ± error, variance ± error {source}", latex=latex, is_random=True)


MOMENT_RULES: dict[str, Rule] = {
    "inner product": Rule(
        lambda a: M([[sum(x * x for x in a)]]),
        "{0}ᵀ{0}",
        {"the entries were added, not their squares": lambda a: M([[sum(a)]])},
        lambda a: format_sum(a, format_power),
        "{0}^\\top {0}",
    ),
    "d squares": Rule(
        broadcast(lambda d, mu: d * mu**2),
        "{0} {1}²",
        {"the d was left out": broadcast(lambda d, mu: mu**2)},
        "{0}·{1:²}",
        "{0}\\, {1}^2",
    ),
    "variance from the mean": Rule(
        broadcast(lambda s, m, d: 2 * s**2 * m),
        "2 {0}² {1}",
        {
            "an extra factor d, which belongs to d μ² only": broadcast(
                lambda s, m, d: 2 * d * s**2 * m
            ),
            "the 2 was left out: q and k both vary": broadcast(lambda s, m, d: s**2 * m),
            "σ was not squared": broadcast(lambda s, m, d: 2 * s * m),
        },
        "2·{0:²}·{1}",
        "2\\, {0}^2\\, {1}",
    ),
    "variance from the noise": Rule(
        broadcast(lambda s, d: d * s**4),
        "{1} {0}⁴",
        {
            "σ² was taken for σ⁴": broadcast(lambda s, d: d * s**2),
            "the d was left out": broadcast(lambda s, d: s**4),
        },
        "{1}·{0:⁴}",
        "{1}\\, {0}^4",
    ),
    "mean of q·q": Rule(
        broadcast(lambda s, m, d: m + d * s**2),
        "{1} + {2} {0}²",
        {"they were taken as independent": lambda s, m, d: m},
        "{1} + {2}·{0:²}",
        "{1} + {2}\\, {0}^2",
    ),
    "variance of q·q": Rule(
        broadcast(lambda s, m, d: 4 * s**2 * m + 2 * d * s**4),
        "4 {0}² {1} + 2 {2} {0}⁴",
        {"they were taken as independent": broadcast(lambda s, m, d: 2 * s**2 * m + d * s**4)},
        "4·{0:²}·{1} + 2·{2}·{0:⁴}",
        "4\\, {0}^2\\, {1} + 2\\, {2}\\, {0}^4",
    ),
    "root": Rule(
        broadcast(sympy.sqrt),
        "√{0}",
        {"the root was left out": lambda a: a},
        "√({0:bare})",
        "\\sqrt{{{0}}}",
    ),
    "divided by": Rule(
        broadcast(lambda a, b: a / b),
        "{0} / {1}",
        {"it was multiplied": broadcast(lambda a, b: a * b)},
        "{0:/} / {1:/}",
    ),
    "divided by the square": Rule(
        broadcast(lambda a, b: a / b**2),
        "{0} / {1}²",
        {"the square was left out": broadcast(lambda a, b: a / b)},
        "{0:/} / {1:²}",
    ),
    "simulate": _simulation("dot products", q_is_k=False),
    "simulate q·q": _simulation("squares", q_is_k=True),
}
