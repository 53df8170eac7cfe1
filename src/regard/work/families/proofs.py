"""Proofs of the small identities behind gates and softmax, line by line, each line checked."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError, nearest
from regard.work.exact.evaluate import evaluate_digits
from regard.work.exact.numbers import format_decimal
from regard.work.families.registry import family
from regard.work.rules.proofs import PROOFS
from regard.work.solution import Solution, SolutionBuilder


@family("proof")
def solve_proof(given: Mapping[str, Any], *, identity: str = "sigmoid-negation") -> Solution:
    """Show an identity line by line; every line is held to equal the one before it.

    σ(-x) = 1 - σ(x),   tanh x = 2σ(2x) - 1,   σ' = σ (1 - σ),   softmax(x + s) = softmax(x),   …

    Given are numbers for its symbols, at which first and last line are compared.

    >>> worked = solve_proof({"x": 2})
    >>> worked["L_4"]
    Matrix([[1 - 1/(1 + exp(-x))]])
    >>> worked.remarks[0]
    'So σ(-x) = 1 - σ(x), for every x. At x = 2 both are 0.119203.'
    """
    if identity not in tuple(PROOFS):
        raise WorkError(
            f"identity: needs one of {', '.join(PROOFS)}, got {identity!r}{nearest(str(identity), PROOFS)}"
        )
    told = PROOFS[identity]
    if set(given) != set(told.symbols):
        raise WorkError(
            f"given: needs a number for each of {', '.join(told.symbols)}, got {', '.join(given)}"
        )
    work = SolutionBuilder("proof", {name: given[name] for name in told.symbols})
    for n, line in enumerate(told.lines, 1):
        before = [f"L_{n - 1}"] if n > 1 else []
        work.add_step(f"L_{n}", f"{identity}, line {n}", *before, title=line.reason)
    put_in = f"substitute {', '.join(told.symbols)}"
    last = f"L_{len(told.lines)}"
    work.add_step("v", put_in, "L_1", *told.symbols, title="the first line at these numbers")
    work.add_step("w", put_in, last, *told.symbols, title="the last line at these numbers")
    numbers = ", ".join(f"{name} = {work.values[name][0]}" for name in told.symbols)
    found = ", ".join(format_decimal(evaluate_digits(x, 20)) for x in work.values["w"])
    every = ", ".join(told.symbols)
    work.add_remark(f"So {told.statement}, for every {every}. At {numbers} both are {found}.")
    return work.build()
