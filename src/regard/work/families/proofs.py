"""Proofs of identities of σ, tanh and softmax, every line checked."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError
from regard.work.exact import evaluate_digits, format_decimal
from regard.work.families.registry import check_choice, family
from regard.work.rules import RULES
from regard.work.rules.rule import M, Matrix, MatrixFunction, Rule, rule
from regard.work.solution import Solution, SolutionBuilder

_X, _a, _b, _c, _s = sympy.symbols("x a b c s", real=True)


# sums, products and powers that SymPy does not simplify
_add, _multiply, _power = (partial(f, evaluate=False) for f in (sympy.Add, sympy.Mul, sympy.Pow))


def _over(numerator: Any, denominator: Any) -> Any:
    return _multiply(numerator, _power(denominator, -1))


class ProofLine(NamedTuple):
    """One line of a proof: its reason, its formulas, and common mistakes."""

    reason: str
    cells: Sequence[Any]  # a column
    mistakes: Mapping[str, Any] = {}


class Proof(NamedTuple):
    """A proof: the statement, its left side, and its lines."""

    statement: str
    left_side: str
    lines: tuple[ProofLine, ...]

    @property
    def symbols(self) -> list[str]:
        """Names of the symbols, sorted."""
        return sorted(map(str, M(self.lines[0].cells).free_symbols))


_E, _E_NEG = sympy.exp(_X), sympy.exp(-_X)
_ONE = _add(1, _E_NEG)
_SIGMOID = 1 / (1 + _E_NEG)
_TWICE = sympy.exp(-2 * _X)
_DENOMINATOR = _add(1, _TWICE)
_SUM, _DIFFERENCE = _E + _E_NEG, _E - _E_NEG
_A, _B, _C = sympy.exp(_a), sympy.exp(_b), sympy.exp(_c)
_Z = _A + _B + _C
_SHIFT = sympy.exp(_s)


def _shifted(term: Any) -> Any:
    return _multiply(_SHIFT, term)


PROOFS: dict[str, Proof] = {
    "sigmoid-negation": Proof(
        "σ(-x) = 1 - σ(x)",
        "σ(-x)",
        (
            ProofLine("the definition of σ at -x", [_over(1, _add(1, _E))],
                 {"the sign was left out": [_SIGMOID]}),
            ProofLine("numerator and denominator times exp(-x)", [_over(_E_NEG, _add(_E_NEG, 1))],
                 {"only the denominator was multiplied": [1 / (1 + _E_NEG)]}),
            ProofLine("1 added and subtracted in the numerator", [_over(_add(_ONE, -1), _ONE)]),
            ProofLine("split in two: 1 - σ(x)", [_add(1, -_SIGMOID)],
                 {"σ was taken to be odd": [-_SIGMOID]}),
        ),
    ),
    "tanh": Proof(
        "tanh x = 2 σ(2x) - 1",
        "tanh x",
        (
            ProofLine("the definition of tanh", [_over(_DIFFERENCE, _SUM)],
                 {"sum and difference were exchanged": [_SUM / _DIFFERENCE]}),
            ProofLine("numerator and denominator times exp(-x)", [_over(1 - _TWICE, _DENOMINATOR)]),
            ProofLine("1 - y is 2 - (1 + y)", [_over(_add(2, -_DENOMINATOR), _DENOMINATOR)]),
            ProofLine("split in two: 2 σ(2x) - 1", [_add(2 / (1 + _TWICE), -1)],
                 {"σ(x) was taken for σ(2x)": [2 * _SIGMOID - 1],
                  "the 2 before σ was left out": [1 / (1 + _TWICE) - 1]}),
        ),
    ),
    "sigmoid-derivative": Proof(
        "σ'(x) = σ(x) (1 - σ(x))",
        "σ'(x)",
        (
            ProofLine("the derivative of (1 + exp(-x)) to the power -1",
                 [_multiply(-1, _power(1 + _E_NEG, -2), -_E_NEG)],
                 {"the inner derivative was left out": [-((1 + _E_NEG) ** -2)]}),
            ProofLine("the signs cancel; one factor split off",
                 [_multiply(_SIGMOID, _over(_E_NEG, 1 + _E_NEG))]),
            ProofLine("the second is σ(-x) = 1 - σ(x)", [_multiply(_SIGMOID, 1 - _SIGMOID)],
                 {"the derivative of tanh was written": [1 - _SIGMOID**2]}),
        ),
    ),
    "tanh-derivative": Proof(
        "tanh'(x) = 1 - tanh²(x)",
        "tanh'(x)",
        (
            ProofLine("the quotient rule",
                 [_over(_add(_SUM**2, -(_DIFFERENCE**2)), _power(_SUM, 2))],
                 {"the numerator has the wrong sign": [(_DIFFERENCE**2 - _SUM**2) / _SUM**2]}),
            ProofLine("split in two", [_add(1, -((_DIFFERENCE / _SUM) ** 2))]),
            ProofLine("which is 1 - tanh²", [1 - sympy.tanh(_X) ** 2],
                 {"the derivative of σ was written": [sympy.tanh(_X) * (1 - sympy.tanh(_X))]}),
        ),
    ),
    "softmax-shift": Proof(
        "softmax(x + s) = softmax(x): one number added to all scores changes no weight",
        "softmax(a + s, b + s, c + s)",
        (
            ProofLine("the definition of softmax",
                 [sympy.exp(term + _s) / sum(sympy.exp(y + _s) for y in (_a, _b, _c))
                  for term in (_a, _b, _c)]),
            ProofLine("since exp(y + s) = exp(s) exp(y)",
                 [_over(_shifted(term), _add(*map(_shifted, (_A, _B, _C))))
                  for term in (_A, _B, _C)]),
            ProofLine("with exp(s) factored out of the denominator",
                 [_over(_shifted(term), _shifted(_Z)) for term in (_A, _B, _C)]),
            ProofLine("with exp(s) cancelled", [term / _Z for term in (_A, _B, _C)],
                 {"the numerator still has exp(s)": [_SHIFT * term / _Z for term in (_A, _B, _C)]}),
        ),
    ),
    "softmax-derivative": Proof(
        "∂p_i/∂x_j = p_i (δ_ij - p_j), here of p_1 with respect to its own score and another",
        "(∂p_1 / ∂a, ∂p_1 / ∂b)",
        (
            ProofLine("the quotient rule, p_1 being exp(a) / Z",
                 [_over(_add(_A * _Z, -_multiply(_A, _A)), _Z**2),
                  _over(-_multiply(_A, _B), _Z**2)],
                 {"the denominator was not differentiated": [_A / _Z, 0]}),
            ProofLine("one factor split off", [_multiply(_A / _Z, _over(_add(_Z, -_A), _Z)),
                  -_multiply(_A / _Z, _B / _Z)]),
            ProofLine("which are p_1 (1 - p_1) and -p_1 p_2",
                 [_multiply(_A / _Z, 1 - _A / _Z), -_multiply(_A / _Z, _B / _Z)],
                 {"the sign of the other was lost":
                  [_A / _Z * (1 - _A / _Z), _A * _B / _Z**2]}),
        ),
    ),
    "softmax-of-two": Proof(
        "softmax(a, b) = (σ(a - b), σ(b - a)): two scores make a gate",
        "softmax(a, b)",
        (
            ProofLine("the definition of softmax", [_A / (_A + _B), _B / (_A + _B)]),
            ProofLine("divided by the numerator: σ(a - b) and σ(b - a)",
                 [1 / (1 + sympy.exp(_b - _a)), 1 / (1 + sympy.exp(_a - _b))],
                 {"the difference was reversed":
                  [1 / (1 + sympy.exp(_a - _b)), 1 / (1 + sympy.exp(_b - _a))]}),
        ),
    ),
}  # fmt: skip


def is_same_formula(left: Any, right: Any) -> bool:
    """Whether SymPy simplifies the difference of two formulas to 0.

    >>> is_same_formula((_X + 1) ** 2, _X**2 + 2 * _X + 1), is_same_formula(_X, -_X)
    (True, False)
    """
    left, right = (sympy.sympify(term).doit().rewrite(sympy.exp) for term in (left, right))
    return sympy.simplify(left - right) == 0


def _check_equal(previous: Matrix, line: Matrix) -> Matrix:
    if previous.shape != line.shape or not all(map(is_same_formula, previous, line)):
        raise WorkError(f"line: needs to equal the one before it, got {list(previous)}")
    return line


def _line_rule(proof: Proof, n: int) -> Rule:
    line = proof.lines[n]
    mistakes = {description: _constant(wrong) for description, wrong in line.mistakes.items()}
    if n == 0:
        return rule(proof.left_side, mistakes, run=_constant(line.cells))
    return rule("{0}", mistakes, run=lambda previous: _check_equal(previous, M(line.cells)))


def _constant(cells: Any) -> MatrixFunction:
    return lambda *_: M(cells)


RULES |= {
    f"{name}, line {n + 1}": _line_rule(proof, n)
    for name, proof in PROOFS.items()
    for n in range(len(proof.lines))
}


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
