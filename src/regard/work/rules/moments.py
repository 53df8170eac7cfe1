"""Rules of mean and variance of a dot product, and of a seeded simulation."""

from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.rules.rule import M, Matrix, Rule, format_power, format_sum, rule

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
    source = f"of {{3}} {what}, from {{0}}, {{1}}, {{2}} and the {{4}}"
    return rule(
        "simulate({0}, {1}, {2}; {3}, {4})",
        run=lambda *inputs: _statistics(_sample(*inputs, q_is_k=q_is_k)),
        words=f"mean ± error, variance ± error {source}",
    )._replace(is_random=True)


MOMENT_RULES: dict[str, Rule] = {
    "inner product": rule(
        "{0}ᵀ{0}",
        {"the entries were added, not their squares": lambda a: M([[sum(a)]])},
        run=lambda a: M([[sum(x * x for x in a)]]),
        entry=lambda a: format_sum(a, format_power),
    ),
    "simulate": _simulation("dot products", q_is_k=False),
    "simulate q·q": _simulation("squares", q_is_k=True),
}
