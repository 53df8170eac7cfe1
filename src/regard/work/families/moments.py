"""Mean and variance of a dot product, by formula and simulation; the sharpness of a softmax."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact import evaluate_digits, format_decimal, parse_matrix, parse_number, to_float
from regard.work.families.attention import (
    ROW_SETUP,
    AttentionSetup,
    add_scores,
    add_softmax_output,
    project_qkv,
)
from regard.work.families.registry import check_integer, declared_steps, family
from regard.work.rules import RULES
from regard.work.rules.rule import M, Matrix, Rule, format_power, format_sum, rule
from regard.work.solution import Solution, SolutionBuilder

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


RULES |= {
    "inner product": rule(
        "{0}ᵀ{0}",
        {"the entries were added, not their squares": lambda a: M([[sum(a)]])},
        run=lambda a: M([[sum(x * x for x in a)]]),
        entry=lambda a: format_sum(a, format_power),
    ),
    "simulate": _simulation("dot products", q_is_k=False),
    "simulate q·q": _simulation("squares", q_is_k=True),
}


DEFAULT_SCALES = (0, "default", 1, 10, "inf")


@family("sharpness")
def solve_sharpness(
    given: Mapping[str, Any], *, scales: Sequence[Any] = DEFAULT_SCALES
) -> Solution:
    """Weights, outputs and entropy of one attention at several scales β; tokens are rows.

    A_n = softmax(β_n Q Kᵀ),   β = 0: the mean of the values,   β → ∞: the value of the best key

    Given: as for attention. A scale is a number, "default" for 1/√d, or "inf". Entropy is in nats,
    at most log(number of keys).

    >>> given = {"Q": 1, "K": [[1], [2], [2], [0]], "V": [[1], [2], [4], [0]]}
    >>> solution = solve_sharpness(given, scales=[0, "inf"])
    >>> solution["A_1"], solution["A_2"]
    (Matrix([[1/4, 1/4, 1/4, 1/4]]), Matrix([[0, 1/2, 1/2, 0]]))
    """
    if isinstance(scales, str) or not isinstance(scales, Sequence) or not scales:
        raise WorkError(f'scales: needs a list such as [0, 1, "inf"], got {scales!r}')
    builder = SolutionBuilder("sharpness", dict(given))
    q, k, v = project_qkv(builder)
    s, width = add_scores(builder, q, k, "", ROW_SETUP), builder.values[q].cols
    default = 1 / sympy.sqrt(width)
    betas = sorted(
        (default if scale == "default" else parse_number(scale) for scale in scales),
        key=_scale_value,
    )
    for n, beta in enumerate(betas, 1):
        setup = AttentionSetup(scale=beta, scale_name=f"β_{n}")
        add_softmax_output(builder, s, width, v, f"_{n}", setup)
        title = "the entropy of the weights of each query"
        builder.add_step(f"h_{n}", "entropy of rows", f"A_{n}", title=title)
    _add_remarks(builder, betas)
    return builder.build()


def _scale_value(beta: Any) -> float:
    if not beta.is_number:
        raise WorkError(f"scales: needs numbers, got {beta}")
    return float(beta.evalf(15))


def _add_remarks(builder: SolutionBuilder, betas: list[Any]) -> None:
    """Remark the largest weight and the entropy of query 1 at each scale."""
    if any(builder.values[f"A_{n}"].free_symbols for n in range(1, len(betas) + 1)):
        return
    max_entropy = format_decimal(sympy.log(builder.values["S"].cols), 4)
    for n, beta in enumerate(betas, 1):
        weights, entropy = builder.values[f"A_{n}"].row(0), builder.values[f"h_{n}"][0, 0]
        largest = max(weights, key=lambda x: evaluate_digits(x, 20))
        value = "inf" if beta == sympy.oo else format_decimal(beta, 4)
        builder.add_remark(
            f"β = {value}: the largest weight of query 1 is {format_decimal(largest, 4)}, its "
            f"entropy {format_decimal(entropy, 4)} of {max_entropy}."
        )
    entropies = [builder.values[f"h_{n}"] for n in range(1, len(betas) + 1)]
    gaps = [float(gap.evalf(20)) for a, b in pairwise(entropies) for gap in a - b]
    if gaps and min(gaps) >= -1e-15:
        builder.add_remark("The entropy decreases with β: β is the inverse temperature.")


@family("moments")
def solve_moments(
    given: Mapping[str, Any], *, samples: int = 20_000, seed: int = 0, q_is_k: bool = False
) -> Solution:
    """Mean and variance of q·k for q, k with mean μ and standard deviation σ per feature.

    E = μᵀμ,   Var = 2σ²μᵀμ + dσ⁴;   with q = k: E = μᵀμ + dσ²,   Var = 4σ²μᵀμ + 2dσ⁴

    Given: `sigma`, and `mu` (a vector, or one number with `d`) or `mm` (μᵀμ) with `d`.

    Args:
        given: matrices by name.
        samples: number of simulated dot products; 0 for no simulation.
        seed: random seed of the simulation.
        q_is_k: whether q and k are the same vector.

    >>> solution = solve_moments({"mu": 0, "sigma": "1/2", "d": 64}, samples=0)
    >>> solution["E"], solution["v"], solution["s"]
    (Matrix([[0]]), Matrix([[4]]), Matrix([[2]]))
    """
    check_integer("samples", samples, 0)
    check_integer("seed", seed, 0)
    builder = _start(given)
    for name, value in builder.given.items():
        if any(x.is_infinite for x in value):
            raise WorkError(f"{name}: needs finite numbers, got inf")
    if q_is_k:
        builder.add_steps(*declared_steps("moments", "same_vector"))
    else:
        builder.add_steps(*declared_steps("moments", "two_vectors"))
    builder.add_steps(*declared_steps("moments", "scaled"))
    if builder.has_symbols:
        return builder.build()
    if samples:
        builder.add_given("n", samples)
        builder.add_given("seed", seed)
        rule = "simulate q·q" if q_is_k else "simulate"
        title = "a simulation: mean, its standard error, variance, its standard error"
        builder.add_step("sim", rule, "m", "σ", "d", "n", "seed", title=title)
    _remarks(builder, q_is_k)
    return builder.build()


def _start(given: Mapping[str, Any]) -> SolutionBuilder:
    if "sigma" not in given or not ({"mu", "mm"} & set(given)):
        raise WorkError(
            f"given: needs sigma, and mu or mm with d, got {', '.join(given) or 'nothing'}"
        )
    sigma = parse_number(given["sigma"])
    if sigma.is_negative or sigma.is_zero or sigma.is_infinite:
        raise WorkError(f"sigma: needs a number above 0, got {sigma}")
    dim = parse_number(given["d"]) if "d" in given else None
    if dim is not None and not dim.free_symbols and not (dim.is_Integer and dim > 0):
        raise WorkError(f"d: needs a whole number of 1 or more, got {dim}")
    if "mm" in given:
        if dim is None or parse_number(given["mm"]).is_negative:
            raise WorkError(f"mm: needs 0 or more, and d with it, got {given['mm']}, d = {dim}")
        return SolutionBuilder("moments", {"σ": sigma, "d": dim, "m": given["mm"]})
    mu = parse_matrix(given["mu"], "mu")
    rule = "d squares" if len(mu) == 1 and dim is not None else "inner product"
    if rule == "inner product" and dim not in (None, len(mu)):
        raise WorkError(f"d: needs to be the count of mu, {len(mu)}, or left out, got {dim}")
    builder = SolutionBuilder("moments", {"σ": sigma, "d": dim or len(mu), "μ": mu})
    inputs = "d μ" if rule == "d squares" else "μ"
    builder.add_steps(("m", rule, inputs, "the squared length of the mean, μᵀμ"))
    return builder


def _remarks(builder: SolutionBuilder, q_is_k: bool) -> None:
    value = {name: matrix[0] for name, matrix in builder.values.items() if len(matrix) == 1}
    builder.add_remark(
        f"Divide by {format_decimal(value['s'])} for a variance of 1"
        + (", which is σ²√d." if value["m"] == 0 and not q_is_k else ".")
    )
    if value["m"] == 0 and not q_is_k:
        builder.add_remark(
            f"√d alone leaves a variance of σ⁴ = {format_decimal(value['u'])}, 1 if σ = 1."
        )
    elif not q_is_k:
        builder.add_remark(
            "√d is right for μ = 0 only: here it leaves a variance of "
            f"{format_decimal(value['u'])}. If all μ_i are equal, the mean over √d grows as √d, "
            "and with a constant scale as d. No scale normalises both mean and variance."
        )
    if "sim" in builder.values:
        mean, error, variance, variance_error = (to_float(x) for x in builder.values["sim"])
        expected = [to_float(value[name]) for name in ("E", "v")]
        z_scores = [abs(mean - expected[0]) / error, abs(variance - expected[1]) / variance_error]
        builder.add_remark(
            f"{builder.values['n'][0]} samples: mean {mean:.4g} ± {error:.2g} against "
            f"{expected[0]:.4g} ({z_scores[0]:.1f} standard errors off), variance {variance:.4g} ± "
            f"{variance_error:.2g} against {expected[1]:.4g} ({z_scores[1]:.1f})."
        )
