"""Proofs of identities of σ, tanh and softmax, every line checked."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.evaluate import evaluate_digits
from regard.work.exact.numbers import format_decimal
from regard.work.families.registry import check_choice, family
from regard.work.rules.proofs import PROOFS
from regard.work.solution import Solution, SolutionBuilder


@family("proof")
def solve_proof(given: Mapping[str, Any], *, identity: str = "sigmoid-negation") -> Solution:
    """Prove an identity line by line; each line is checked against the previous one.

    σ(-x) = 1 - σ(x),   tanh x = 2σ(2x) - 1,   σ' = σ (1 - σ),   softmax(x + s) = softmax(x),   …

    Given: a number per symbol, at which the first and the last line are compared.

    >>> solution = solve_proof({"x": 2})
    >>> solution["L_4"]
    Matrix([[1 - 1/(1 + exp(-x))]])
    >>> solution.remarks[0]
    'So σ(-x) = 1 - σ(x), for every x. At x = 2 both are 0.119203.'
    """
    check_choice("identity", identity, PROOFS)
    proof = PROOFS[identity]
    symbols = ", ".join(proof.symbols)
    if set(given) != set(proof.symbols):
        raise WorkError(f"given: needs a number for each of {symbols}, got {', '.join(given)}")
    builder = SolutionBuilder("proof", {name: given[name] for name in proof.symbols})
    for n, line in enumerate(proof.lines, 1):
        previous = [f"L_{n - 1}"] if n > 1 else []
        builder.add_step(f"L_{n}", f"{identity}, line {n}", *previous, title=line.reason)
    rule = f"substitute {symbols}"
    last = f"L_{len(proof.lines)}"
    builder.add_step("v", rule, "L_1", *proof.symbols, title="the first line at these numbers")
    builder.add_step("w", rule, last, *proof.symbols, title="the last line at these numbers")
    numbers = ", ".join(f"{name} = {builder.values[name][0]}" for name in proof.symbols)
    values = ", ".join(format_decimal(evaluate_digits(x, 20)) for x in builder.values["w"])
    builder.add_remark(
        f"So {proof.statement}, for every {symbols}. At {numbers} both are {values}."
    )
    return builder.build()
