"""Solutions as data: given matrices, exact steps, remarks and known mistakes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sympy

from regard.errors import RegardError, ShapeError, WorkError, check_choice
from regard.formulas import FormulaTree, equation, parse_name
from regard.work.exact import (
    check_arguments,
    evaluate_digits,
    has_too_many_digits,
    parse_matrix,
    to_float,
)
from regard.work.rules import M, Matrix, MatrixFunction, get_rule
from regard.work.shapes import shape_error

# operations in one exact entry before it is rounded to DIGITS: BPTT of an LSTM takes 1 s with 100,
# minutes with 400
MAX_OPERATIONS = 100
DIGITS = 50
ROUNDING_NOTE = f"rounded to {DIGITS} digits from here on: the exact numbers are too long"

_check: ContextVar[Callable[[], None]] = ContextVar("check", default=lambda: None)


@contextmanager
def checking(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before each step and each entry inside the `with` block; it may raise.

    >>> calls = []
    >>> with checking(lambda: calls.append(1)):
    ...     _ = apply_rule("exp", M([[1, 0]]))
    >>> len(calls)
    3
    """
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


@dataclass(frozen=True)
class Step:
    """One step: result name, rule, input names, value, and a title.

    >>> Step("S", "exp", ("Z",), sympy.zeros(1), "the exponentials").formula
    'S = exp(Z)'
    """

    name: str
    rule: str
    inputs: tuple[str, ...]
    value: Matrix
    title: str

    @property
    def formula(self) -> str:
        """The step as an equation, in plain text."""
        return f"{self.name} = {get_rule(self.rule).text.format(*self.inputs)}"

    @property
    def equation(self) -> FormulaTree:
        """The step as an equation, which prints as LaTeX and MathML."""
        formula = get_rule(self.rule).formula.fill(*self.inputs)
        return equation(parse_name(self.name), "=", formula)


class KnownMistake(NamedTuple):
    """A common mistake over several steps: the step it shows in, a description, and its value."""

    name: str
    description: str
    value: Matrix


def apply_rule(rule_name: str, *inputs: Matrix) -> Matrix:
    """Apply a rule exactly; entries that grow too long are rounded to 50 digits.

    >>> apply_rule("exp", M([[1, 0]]))
    Matrix([[E, 1]])
    """
    _check.get()()
    return M(run_checked(rule_name, get_rule(rule_name).run, *inputs).applyfunc(_limit_length))


def run_checked(rule_name: str, run: MatrixFunction, *inputs: Matrix) -> Matrix:
    """Run a function of matrices; raise a WorkError unless the result is real.

    >>> run_checked("log", lambda a: a.applyfunc(sympy.log), M([[-1]]))
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: log: needs real numbers that give one, got a root or log below 0
    """
    try:
        value = run(*inputs)
    except RegardError:
        raise
    except (ArithmeticError, TypeError, ValueError, IndexError) as error:  # raised by sympy
        raise WorkError(f"{rule_name}: needs numbers that give one, got {error}") from error
    if value.has(sympy.nan, sympy.zoo):
        got = "inf - inf, 0 · inf or 1 / 0"
        raise WorkError(f"{rule_name}: needs numbers that give one, got {got}")
    if value.has(sympy.I):
        raise WorkError(f"{rule_name}: needs real numbers that give one, got a root or log below 0")
    return value


def _limit_length(x: Any) -> Any:
    _check.get()()
    if x.free_symbols:
        return x
    if x.is_Atom:
        return evaluate_digits(x, DIGITS) if has_too_many_digits(x) else x
    check_arguments(x)
    # once rounded, always rounded: a mixture of exact and rounded terms would keep growing
    return evaluate_digits(x, DIGITS) if x.has(sympy.Float) or x.count_ops() > MAX_OPERATIONS else x


@dataclass(frozen=True)
class Solution:
    """Steps of a problem in order; every value can be recomputed from those before it.

    >>> builder = SolutionBuilder("example", {"a": [[1, 2]], "b": [[3], [4]]})
    >>> builder.add_step("c", "product", "a", "b", title="the product")
    'c'
    >>> builder.build()["c"]
    Matrix([[11]])
    """

    family: str
    given: Mapping[str, Matrix]
    steps: tuple[Step, ...]
    remarks: tuple[str, ...] = ()  # sentences that interpret the numbers
    mistakes: tuple[KnownMistake, ...] = ()
    formulas: Mapping[str, str] = field(default_factory=dict)  # of results, each in one line

    def __getitem__(self, name: str) -> Matrix:
        values = self.values()
        check_choice("name", name, values, WorkError)
        return values[name]

    @property
    def symbols(self) -> list[str]:
        """Names of the symbols among the given numbers."""
        return sorted({str(s) for value in self.given.values() for s in value.free_symbols})

    def values(self) -> dict[str, Matrix]:
        """Given matrices and step results, by name."""
        return {**self.given, **{step.name: step.value for step in self.steps}}

    def recompute(self) -> dict[str, Matrix]:
        """All values, with every step recomputed from its inputs."""
        values = dict(self.given)
        for step in self.steps:
            values[step.name] = apply_rule(step.rule, *(values[name] for name in step.inputs))
        return values

    def __str__(self) -> str:
        from regard.work.show.text import as_text  # imports this module

        return as_text(self)

    def _repr_html_(self) -> str:
        from regard.work.show.formats import html_body

        return html_body(self)

    def to_json(self) -> dict[str, Any]:
        """JSON-serialisable dict; entries are strings that parse back exactly.

        >>> SolutionBuilder("none", {"a": 1}).build().to_json()["given"]
        {'a': [['1']]}
        """
        data = {
            "family": self.family,
            "given": {name: _cells(value) for name, value in self.given.items()},
            "steps": [
                {
                    "name": step.name,
                    "rule": step.rule,
                    "inputs": list(step.inputs),
                    "title": step.title,
                    "value": _cells(step.value),
                }
                for step in self.steps
            ],
            "remarks": list(self.remarks),
        }
        data |= {"formulas": dict(self.formulas)} if self.formulas else {}
        return data | ({"symbols": self.symbols} if self.symbols else {})


@dataclass
class SolutionBuilder:
    """Builds a solution step by step.

    >>> SolutionBuilder("none", {"a": "1/2"}).given["a"]
    Matrix([[1/2]])
    """

    family: str
    given: dict[str, Any]
    steps: list[Step] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    mistakes: list[KnownMistake] = field(default_factory=list)
    formulas: dict[str, str] = field(default_factory=dict)
    is_turned: bool = False  # vectors are rows outside: errors show the transposes

    def __post_init__(self) -> None:
        self.given = {name: parse_matrix(value, name) for name, value in self.given.items()}
        self.values: dict[str, Matrix] = dict(self.given)

    def add_given(self, name: str, value: Any) -> str:
        """Add a given matrix, such as a default scale or a mask; return its name."""
        self.given[name] = self.values[name] = parse_matrix(value, name)
        return name

    def add_step(self, name: str, rule_name: str, *inputs: str, title: str) -> str:
        """Compute and add a step; return its name."""
        if name in self.values:
            raise WorkError(f"name: needs a new one per step, got {name!r} again")
        was_rounded = any(self.values[key].has(sympy.Float) for key in inputs)
        try:
            value = apply_rule(rule_name, *(self.values[key] for key in inputs))
        except ShapeError as error:
            if not self.is_turned:
                raise shape_error(name, rule_name, inputs, self.values, error) from error
            values = {key: M(self.values[key].T) for key in inputs}
            inputs = inputs[::-1] if rule_name == "product" else inputs
            raise shape_error(name, rule_name, inputs, values, error) from error
        self.values[name] = value
        is_random = get_rule(rule_name).is_random  # never was exact
        if value.has(sympy.Float) and not was_rounded and not is_random:
            title = f"{title} ({ROUNDING_NOTE})"
        self.steps.append(Step(name, rule_name, inputs, value, title))
        return name

    def add_steps(self, *steps: tuple[str, str, str, str]) -> list[str]:
        """Add steps (name, rule, inputs separated by spaces, title); return their names."""
        return [
            self.add_step(name, rule, *inputs.split(), title=title)
            for name, rule, inputs, title in steps
        ]

    @property
    def has_symbols(self) -> bool:
        """Whether a given matrix has symbols."""
        return any(value.free_symbols for value in self.given.values())

    def number(self, name: str) -> float:
        """First entry of a matrix, as a float."""
        return to_float(self.values[name][0])

    def add_remark(self, text: str) -> None:
        """Add a sentence about the numbers so far."""
        self.remarks.append(text)

    def add_mistake(self, name: str, description: str, value: Matrix) -> None:
        """Add a common mistake: a description, and the value that step `name` then has."""
        self.mistakes.append(KnownMistake(name, description, value))

    def build(self) -> Solution:
        """The finished solution."""
        steps, remarks, mistakes = tuple(self.steps), tuple(self.remarks), tuple(self.mistakes)
        return Solution(self.family, dict(self.given), steps, remarks, mistakes, self.formulas)


def _cells(value: sympy.MatrixBase) -> list[list[str]]:
    infinity = {sympy.oo: "inf", -sympy.oo: "-inf"}
    return [[infinity.get(x, str(x)) for x in value.row(i)] for i in range(value.rows)]
