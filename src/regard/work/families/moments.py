"""Mean and variance of a dot product, the scale that normalises it, and a simulation."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.exact.numbers import format_decimal, parse_matrix, parse_number
from regard.work.families.registry import check_integer, declared_steps, family
from regard.work.solution import Solution, SolutionBuilder


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
            raise WorkError(f"mm: needs 0 or more and a d beside it, got {given['mm']}, d = {dim}")
        return SolutionBuilder("moments", {"σ": sigma, "d": dim, "m": given["mm"]})
    mu = parse_matrix(given["mu"], "mu")
    rule = "d squares" if len(mu) == 1 and dim is not None else "inner product"
    if rule == "inner product" and dim not in (None, len(mu)):
        raise WorkError(f"d: needs to be the count of mu, {len(mu)}, or left out, got {dim}")
    builder = SolutionBuilder("moments", {"σ": sigma, "d": dim or len(mu), "μ": mu})
    inputs = "d μ" if rule == "d squares" else "μ"
    builder.add_steps(("m", rule, inputs, "μᵀμ: the squared length of the mean"))
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
