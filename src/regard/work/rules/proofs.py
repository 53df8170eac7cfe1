"""Proofs as rules: each line follows from the one before it, and is held to that by SymPy."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError
from regard.work.rules.rule import M, Matrix, MatrixFunction, Rule

x, a, b, c, s = sympy.symbols("x a b c s", real=True)


def _raw(kind: Any, *parts: Any) -> Any:
    """A sum or product as it is written, nothing drawn together."""
    return kind(*parts, evaluate=False)


def _over(top: Any, bottom: Any) -> Any:
    return _raw(sympy.Mul, top, _raw(sympy.Pow, bottom, -1))


class ProofLine(NamedTuple):
    """One line of a proof: why it follows, what it says, and what people write there instead.

    >>> ProofLine("by definition", [[x]]).reason
    'by definition'
    """

    reason: str
    cells: Sequence[Sequence[Any]]
    mistakes: Mapping[str, Any] = {}


class Proof(NamedTuple):
    """A proof: what it starts from, what it shows, its symbols, and its lines.

    >>> PROOFS["sigmoid-negation"].statement
    'σ(-x) = 1 - σ(x)'
    """

    statement: str
    left_side: tuple[str, str]  # in plain text and in LaTeX
    symbols: tuple[str, ...]
    lines: tuple[ProofLine, ...]


_E, _DOWN = sympy.exp(x), sympy.exp(-x)
_ONE = _raw(sympy.Add, 1, _DOWN)
_SIGMOID = 1 / (1 + _DOWN)
_TWICE = sympy.exp(-2 * x)
_BOTTOM = _raw(sympy.Add, 1, _TWICE)
_SUM, _DIFFERENCE = _E + _DOWN, _E - _DOWN
_A, _B, _C = sympy.exp(a), sympy.exp(b), sympy.exp(c)
_Z = _A + _B + _C
_SHIFT = sympy.exp(s)


def _shifted(one: Any) -> Any:
    return _raw(sympy.Mul, _SHIFT, one)


PROOFS: dict[str, Proof] = {
    "sigmoid-negation": Proof(
        "σ(-x) = 1 - σ(x)",
        ("σ(-x)", "\\sigma(-x)"),
        ("x",),
        (
            ProofLine("the definition of σ, with -x put in", [[_over(1, _raw(sympy.Add, 1, _E))]],
                 {"the sign was not put in": [[_SIGMOID]]}),
            ProofLine("top and bottom times exp(-x)", [[_over(_DOWN, _raw(sympy.Add, _DOWN, 1))]],
                 {"only the bottom was multiplied": [[1 / (1 + _DOWN)]]}),
            ProofLine("1 added and taken away on top", [[_over(_raw(sympy.Add, _ONE, -1), _ONE)]]),
            ProofLine("split in two: 1 - σ(x)", [[_raw(sympy.Add, 1, -_SIGMOID)]],
                 {"σ was taken to be odd": [[-_SIGMOID]]}),
        ),
    ),
    "tanh": Proof(
        "tanh x = 2 σ(2x) - 1",
        ("tanh x", "\\tanh x"),
        ("x",),
        (
            ProofLine("the definition of tanh", [[_over(_DIFFERENCE, _SUM)]],
                 {"sum and difference were exchanged": [[_SUM / _DIFFERENCE]]}),
            ProofLine("top and bottom times exp(-x)", [[_over(1 - _TWICE, _BOTTOM)]]),
            ProofLine("1 - y is 2 - (1 + y)", [[_over(_raw(sympy.Add, 2, -_BOTTOM), _BOTTOM)]]),
            ProofLine("split in two: 2 σ(2x) - 1", [[_raw(sympy.Add, 2 / (1 + _TWICE), -1)]],
                 {"σ(x) was taken for σ(2x)": [[2 * _SIGMOID - 1]],
                  "the 2 before σ was left out": [[1 / (1 + _TWICE) - 1]]}),
        ),
    ),
    "sigmoid-derivative": Proof(
        "σ'(x) = σ(x) (1 - σ(x))",
        ("σ'(x)", "\\sigma'(x)"),
        ("x",),
        (
            ProofLine("the derivative of (1 + exp(-x)) to the power -1",
                 [[_raw(sympy.Mul, -1, _raw(sympy.Pow, 1 + _DOWN, -2), -_DOWN)]],
                 {"the inner derivative was left out": [[-((1 + _DOWN) ** -2)]]}),
            ProofLine("the signs cancel; one factor apart",
                 [[_raw(sympy.Mul, _SIGMOID, _over(_DOWN, 1 + _DOWN))]]),
            ProofLine("the second is σ(-x) = 1 - σ(x)", [[_raw(sympy.Mul, _SIGMOID, 1 - _SIGMOID)]],
                 {"the slope of tanh was written": [[1 - _SIGMOID**2]]}),
        ),
    ),
    "tanh-derivative": Proof(
        "tanh'(x) = 1 - tanh²(x)",
        ("tanh'(x)", "\\tanh'(x)"),
        ("x",),
        (
            ProofLine("the rule for quotients",
                 [[_over(_raw(sympy.Add, _SUM**2, -(_DIFFERENCE**2)), _raw(sympy.Pow, _SUM, 2))]],
                 {"the terms on top were exchanged": [[(_DIFFERENCE**2 - _SUM**2) / _SUM**2]]}),
            ProofLine("split in two", [[_raw(sympy.Add, 1, -((_DIFFERENCE / _SUM) ** 2))]]),
            ProofLine("which is 1 - tanh²", [[1 - sympy.tanh(x) ** 2]],
                 {"the slope of σ was written": [[sympy.tanh(x) * (1 - sympy.tanh(x))]]}),
        ),
    ),
    "softmax-shift": Proof(
        "softmax(x + s) = softmax(x): one number added to all scores changes no weight",
        ("softmax(a + s, b + s, c + s)", "\\mathrm{{softmax}}(a + s, b + s, c + s)"),
        ("a", "b", "c", "s"),
        (
            ProofLine("the definition of softmax",
                 [[sympy.exp(one + s) / sum(sympy.exp(y + s) for y in (a, b, c))]
                  for one in (a, b, c)]),
            ProofLine("since exp(y + s) = exp(s) exp(y)",
                 [[_over(_shifted(one), _raw(sympy.Add, *map(_shifted, (_A, _B, _C))))]
                  for one in (_A, _B, _C)]),
            ProofLine("with exp(s) taken out below",
                 [[_over(_shifted(one), _shifted(_Z))] for one in (_A, _B, _C)]),
            ProofLine("with exp(s) cancelled", [[one / _Z] for one in (_A, _B, _C)],
                 {"exp(s) was left on top": [[_SHIFT * one / _Z] for one in (_A, _B, _C)]}),
        ),
    ),
    "softmax-derivative": Proof(
        "∂p_i/∂x_j = p_i (δ_ij - p_j), here of p_1 by its own score and by another",
        ("(∂p_1/∂a, ∂p_1/∂b)", "(\\partial p_1 / \\partial a,\\ \\partial p_1 / \\partial b)"),
        ("a", "b", "c"),
        (
            ProofLine("the rule for quotients, p_1 being exp(a) / Z",
                 [[_over(_raw(sympy.Add, _A * _Z, -_raw(sympy.Mul, _A, _A)), _Z**2)],
                  [_over(-_raw(sympy.Mul, _A, _B), _Z**2)]],
                 {"the bottom was not differentiated": [[_A / _Z], [0]]}),
            ProofLine("one factor apart",
                 [[_raw(sympy.Mul, _A / _Z, _over(_raw(sympy.Add, _Z, -_A), _Z))],
                  [-_raw(sympy.Mul, _A / _Z, _B / _Z)]]),
            ProofLine("which are p_1 (1 - p_1) and -p_1 p_2",
                 [[_raw(sympy.Mul, _A / _Z, 1 - _A / _Z)], [-_raw(sympy.Mul, _A / _Z, _B / _Z)]],
                 {"the sign of the other was lost":
                  [[_A / _Z * (1 - _A / _Z)], [_A * _B / _Z**2]]}),
        ),
    ),
    "softmax-of-two": Proof(
        "softmax(a, b) = (σ(a - b), σ(b - a)): two scores make a gate",
        ("softmax(a, b)", "\\mathrm{{softmax}}(a, b)"),
        ("a", "b"),
        (
            ProofLine("the definition of softmax", [[_A / (_A + _B)], [_B / (_A + _B)]]),
            ProofLine("top and bottom over the top: σ(a - b) and σ(b - a)",
                 [[1 / (1 + sympy.exp(b - a))], [1 / (1 + sympy.exp(a - b))]],
                 {"the difference was turned round":
                  [[1 / (1 + sympy.exp(a - b))], [1 / (1 + sympy.exp(b - a))]]}),
        ),
    ),
}  # fmt: skip


def is_same_formula(left: Any, right: Any) -> bool:
    """Whether two formulas are one, by SymPy.

    >>> is_same_formula((x + 1) ** 2, x**2 + 2 * x + 1), is_same_formula(x, -x)
    (True, False)
    """
    left, right = (sympy.sympify(one).doit().rewrite(sympy.exp) for one in (left, right))
    return sympy.simplify(left - right) == 0


def _holds(before: Matrix, line: Matrix) -> Matrix:
    if before.shape != line.shape or not all(map(is_same_formula, before, line)):
        raise WorkError(f"line: needs to equal the one before it, got {list(before)}")
    return line


def _rules(name: str, proof: Proof) -> dict[str, Rule]:
    rules = {}
    for n, line in enumerate(proof.lines, 1):
        slips: dict[str, MatrixFunction] = {
            says: _given(wrong) for says, wrong in line.mistakes.items()
        }
        cells = M(line.cells)
        if n == 1:
            rules[f"{name}, line 1"] = Rule(_given(line.cells), *proof.left_side, slips)
        else:
            run: MatrixFunction = lambda before, cells=cells: _holds(before, cells)  # noqa: E731
            rules[f"{name}, line {n}"] = Rule(run, "{0}", "{0}", slips)
    return rules


def _given(cells: Any) -> MatrixFunction:
    return lambda *_: M(cells)


PROOF_RULES: dict[str, Rule] = {
    key: rule for name, proof in PROOFS.items() for key, rule in _rules(name, proof).items()
}
