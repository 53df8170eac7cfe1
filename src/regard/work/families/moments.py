"""Mean and variance of a dot product: formula, scale, and a simulation beside them."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.exact.numbers import format_decimal, parse_matrix, parse_number
from regard.work.families.registry import ExerciseTemplate, check_given, family
from regard.work.solution import Solution, SolutionBuilder


@family(
    "moments",
    given="sigma mu mm d",
    exercises=(
        ExerciseTemplate(
            value_choices={"mu": (0,), "sigma": (1, 2), "d": (16, 64)},
            option_choices={"samples": (0,)},
        ),
        ExerciseTemplate(
            value_choices={"mm": (3, 5, 9), "sigma": (1, 2), "d": (16, 64)},
            option_choices={"samples": (0,)},
        ),
        ExerciseTemplate(
            value_choices={"mu": ([1, 0, 2], [1, -1, 1]), "sigma": ("1/2", 2)},
            option_choices={"samples": (0,), "q_is_k": (True, False)},
        ),
    ),
)
def solve_moments(
    given: Mapping[str, Any], *, samples: int = 20_000, seed: int = 0, q_is_k: bool = False
) -> Solution:
    """What q·k is on average and how far it spreads, for q and k with means μ and spread σ.

    E = μᵀμ,   Var = 2σ²μᵀμ + dσ⁴;   with q = k: E = μᵀμ + dσ²,   Var = 4σ²μᵀμ + 2dσ⁴

    Given are σ as `sigma`, and `mu` (its entries; or one for all with `d`), or `mm` (μᵀμ) with `d`.
    A simulation of so many `draws` stands beside the formula; none with draws = 0, or with symbols.

    >>> worked = solve_moments({"mu": 0, "sigma": "1/2", "d": 64}, samples=0)
    >>> worked["E"], worked["v"], worked["s"]
    (Matrix([[0]]), Matrix([[4]]), Matrix([[2]]))
    """
    for name, value in {"samples": samples, "seed": seed}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise WorkError(f"{name}: needs a whole number from 0 on, got {value!r}")
    check_given("moments", given)
    work = _begun(given)
    for name, value in work.given.items():
        if any(x.is_infinite for x in value):
            raise WorkError(f"{name}: needs finite numbers, got inf")
    if q_is_k:
        takes = ("σ", "m", "d")
        work.add_step("E", "mean of q·q", *takes, title="the mean of q·q")
        work.add_step("v", "variance of q·q", *takes, title="the variance of q·q")
    else:
        work.add_step("E", "copy", "m", title="the mean: E[q·k] = E[q]·E[k], q and k independent")
        says = "the variance that the mean brings in"
        work.add_step("v_1", "variance from the mean", "σ", "m", "d", title=says)
        says = "the variance of the noise: d products, σ⁴ each"
        work.add_step("v_2", "variance from the noise", "σ", "d", title=says)
        work.add_step("v", "add", "v_1", "v_2", title="the variance of q·k")
    work.add_step("s", "root", "v", title="the scale that makes the variance 1: divide by this")
    work.add_step("r", "root", "d", title="the usual scale")
    says = "what variance is left after division by √d"
    work.add_step("u", "divided by the square", "v", "r", title=says)
    work.add_step("w", "divided by", "E", "r", title="the mean after division by √d")
    symbols = any(value.free_symbols for value in work.given.values())
    if samples and not symbols:
        work.add_given("n", samples)
        work.add_given("seed", seed)
        by = "simulate q·q" if q_is_k else "simulate"
        says = "a simulation: mean, its standard error, variance, its standard error"
        work.add_step("sim", by, "m", "σ", "d", "n", "seed", title=says)
    if not symbols:
        _remarks(work, q_is_k)
    return work.build()


def _begun(given: Mapping[str, Any]) -> SolutionBuilder:
    if "sigma" not in given or not ({"mu", "mm"} & set(given)):
        raise WorkError(
            f"given: needs sigma, and mu or mm with d, got {', '.join(given) or 'nothing'}"
        )
    sigma = parse_number(given["sigma"])
    if sigma.is_negative or sigma.is_zero or sigma.is_infinite:
        raise WorkError(f"sigma: needs a number above 0, got {sigma}")
    size = None if given.get("d") is None else parse_number(given["d"])
    if size is not None and not size.free_symbols and not (size.is_Integer and size > 0):
        raise WorkError(f"d: needs a whole number of 1 or more, got {size}")
    if "mm" in given:
        if size is None or parse_number(given["mm"]).is_negative:
            raise WorkError(f"mm: needs 0 or more and a d beside it, got {given['mm']}, d = {size}")
        work = SolutionBuilder("moments", {"σ": sigma, "d": size, "m": given["mm"]})
    else:
        mu = parse_matrix(given["mu"], "mu")
        if len(mu) == 1 and size is not None:
            work = SolutionBuilder("moments", {"σ": sigma, "d": size, "μ": mu})
            work.add_step("m", "d squares", "d", "μ", title="μᵀμ: the squared length of the mean")
            return work
        if size not in (None, len(mu)):
            raise WorkError(f"d: needs to be the count of mu, {len(mu)}, or left out, got {size}")
        work = SolutionBuilder("moments", {"σ": sigma, "d": len(mu), "μ": mu})
        work.add_step("m", "inner product", "μ", title="μᵀμ: the squared length of the mean")
    return work


def _remarks(work: SolutionBuilder, same: bool) -> None:
    value = {name: work.values[name][0] for name in work.values if len(work.values[name]) == 1}
    work.add_remark(
        f"Divide by {format_decimal(value['s'])} for a variance of 1"
        + (", which is σ²√d." if value["m"] == 0 and not same else ".")
    )
    if value["m"] == 0 and not same:
        work.add_remark(
            f"√d alone leaves a variance of σ⁴ = {format_decimal(value['u'])}, whatever d is; that is 1 "
            "for σ = 1."
        )
    elif not same:
        work.add_remark(
            f"√d is right for μ = 0 only: here it leaves a variance of {format_decimal(value['u'])}. If "
            "every μ_i is the same, the mean over √d grows as √d; a constant scale makes it grow "
            "as d. No scale changes both as one likes."
        )
    if "sim" in work.values:
        mean, error, variance, spread = (to_float(x) for x in work.values["sim"])
        wanted = [to_float(value[name]) for name in ("E", "v")]
        off = [abs(mean - wanted[0]) / error, abs(variance - wanted[1]) / spread]
        work.add_remark(
            f"{work.values['n'][0]} draws: mean {mean:.4g} ± {error:.2g} against "
            f"{wanted[0]:.4g} ({off[0]:.1f} standard errors off), variance {variance:.4g} ± "
            f"{spread:.2g} against {wanted[1]:.4g} ({off[1]:.1f})."
        )
