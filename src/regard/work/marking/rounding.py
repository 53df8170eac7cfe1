"""How far a step may move if the numbers written before it move within their rounding."""

from collections.abc import Collection, Iterable, Mapping

import sympy

from regard.errors import RegardError
from regard.work.exact import evaluate_digits, is_infinity
from regard.work.marking.reading import StudentAnswer, significant_digits
from regard.work.rules import M, Matrix, get_rule
from regard.work.solution import Solution, Step

DIGITS = 20
LONG = 4  # significant digits that few exact numbers have
DEVIATIONS = 3  # times the root of the squares: 5.2 standard deviations of even errors
MAX_SHARE = 0.1  # of the largest number of the step; a wider spread would let mistakes pass


def rounding_spread(
    solution: Solution,
    step: Step,
    values: Mapping[str, Matrix],
    unrounded: Mapping[str, Matrix],
    written: Mapping[str, StudentAnswer],
    answer: StudentAnswer,
) -> Matrix:
    """Bound of the change of each entry, to first order: Σ |∂f/∂x| · half a unit of x.

    x are the written numbers that the step depends on, where they are rounded at all, and the
    unanswered steps in between, which may have been rounded to as many digits as the answer has.
    Of many terms the bound is five standard deviations of the sum, which is less.

    Args:
        solution: of the problem.
        step: whose entries move.
        values: that the step is computed from.
        unrounded: the same values, as far as they are known.
        written: the answers so far.
        answer: the one to the step.
    """
    between = unanswered_ancestors(solution, step, written)
    names = dict.fromkeys(name for one in (*between, step) for name in one.inputs)
    computed = {one.name for one in between}
    known = {name: _numeric(values[name]) for name in names if name not in computed}
    base = _run(known, between, step)
    spread = squares = M.zeros(*step.value.shape)
    if base is None or base[step.name].free_symbols:
        return spread
    units: dict[str, Iterable[sympy.Expr]] = {
        name: _rounded(written[name], values[name], unrounded[name])
        for name in known
        if name in written
    }
    digits = answer.significant_digits
    units |= {name: base[name].applyfunc(lambda x: _half_unit(x, digits)) for name in computed}
    for name, tolerances in units.items():
        for n, tolerance in enumerate(tolerances):
            if not tolerance or not base[name][n].is_finite:
                continue
            moved = base[name].as_mutable()
            moved[n] += tolerance
            result = _run({**known, name: M(moved)}, between, step)
            if result is not None:
                change = (result[step.name] - base[step.name]).applyfunc(_size)
                spread, squares = spread + change, squares + change.multiply_elementwise(change)
    widest = MAX_SHARE * max((abs(x) for x in base[step.name] if x.is_finite), default=0)
    bounds = zip(spread, squares, strict=True)
    return M(*spread.shape, [min(x, DEVIATIONS * sympy.sqrt(y), widest) for x, y in bounds])


def unanswered_ancestors(solution: Solution, step: Step, answered: Collection[str]) -> list[Step]:
    """Earlier steps that this one depends on without an answered step in between, in order."""
    needed, result = set(step.inputs), []
    for earlier in reversed(solution.steps[: solution.steps.index(step)]):
        if earlier.name in needed and earlier.name not in answered:
            needed |= set(earlier.inputs)
            result.append(earlier)
    return result[::-1]


def _run(known: Mapping[str, Matrix], between: list[Step], step: Step) -> dict[str, Matrix] | None:
    """All values up to the step, computed from known ones; None where a rule fails."""
    values = dict(known)
    try:
        for one in (*between, step):
            if one.name not in values:
                inputs = (values[name] for name in one.inputs)
                values[one.name] = _numeric(get_rule(one.rule).run(*inputs))
    except (RegardError, ArithmeticError, TypeError, ValueError, IndexError):
        return None
    return values


def _rounded(answer: StudentAnswer, written: Matrix, exact: Matrix) -> list[sympy.Expr]:
    """Half a unit of each entry; 0 where nothing was rounded away.

    What a wrong entry was before it was rounded is not known: with so many digits it was.
    """
    entries = [x for *_, x in answer.entries()]
    return [
        sympy.S.Zero
        if entry is None or x == y and significant_digits(entry.text) < LONG
        else entry.tolerance
        for entry, x, y in zip(entries, written, exact, strict=True)
    ]


def _half_unit(x: sympy.Expr, digits: int | None) -> sympy.Expr:
    """Half a unit of the last of so many significant digits; 0 where these are all there are."""
    if digits is None or not x.is_number or not x.is_finite or x.is_Integer or not x:
        return sympy.S.Zero
    unit = sympy.Rational(10) ** (int(sympy.floor(sympy.log(abs(x), 10))) + 1 - digits)
    steps = x / unit
    is_whole = abs(steps - round(steps)) < sympy.Rational(1, 10**9)
    return sympy.S.Zero if is_whole else unit / 2


def _numeric(value: Matrix) -> Matrix:
    return M(
        value.applyfunc(
            lambda x: (
                x
                if x.free_symbols or is_infinity(x) or x.is_Integer
                else evaluate_digits(x, DIGITS)
            )
        )
    )


def _size(x: sympy.Expr) -> sympy.Expr:
    return abs(x) if x.is_number and x.is_finite else sympy.S.Zero
