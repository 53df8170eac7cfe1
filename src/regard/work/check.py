"""A student's values beside the right ones: the first wrong step, what follows from it, and why."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import sympy

from regard.errors import RegardError, WorkError
from regard.work.evaluate import evaluated
from regard.work.numbers import decimal, number
from regard.work.rules import M, Matrix, rule
from regard.work.solution import Solution, Step, applied

EXACT = 1e-9  # how far apart two ways of writing one number may be
PLACE = sympy.Rational(7, 11)  # where formulas are compared


class Finding(NamedTuple):
    """What became of one step of an answer: right, carried forward from a wrong one, or wrong.

    >>> Finding("S", "right", (), "").verdict
    'right'
    """

    name: str
    verdict: str
    wrong: tuple[str, ...]  # entries that differ, told
    why: str  # a likely cause of what is wrong


class Told(NamedTuple):
    """A student's matrix; entries left out are None, and rounding is as fine as was written.

    >>> Told([[None]], 2).places
    2
    """

    cells: list[list[sympy.Expr | None]]
    places: int | None  # decimals that were written; None: exact


def check(solution: Solution, answers: Mapping[str, Any]) -> list[Finding]:
    """Compare values for any of a solution's steps with what they should be.

    A value that is wrong but follows from an earlier wrong one is carried forward. One entry may be
    left out as "?" or "". Decimals are held to the places that were written.

    >>> from regard.work import attention
    >>> worked = attention({"X": [[1, 0], [1, 1], [0, 2]]}, scale=1)
    >>> [found.verdict for found in check(worked, {"N": [["6.44", 1, 1]]})]
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: N: needs 3 rows of 1 numbers, got 1 of 3
    >>> [found.verdict for found in check(worked, {"N": [["6.44"], ["12.8"], ["63.0"]]})]
    ['wrong']
    """
    names = [step.name for step in solution.steps]
    for name in answers:
        if name not in names:
            raise WorkError(f"answers: need names of steps, {', '.join(names)}, got {name!r}")
    right, own, findings = solution.values(), dict(solution.given), []
    symbols = [str(s) for value in solution.given.values() for s in value.free_symbols]
    spoilt: set[str] = set()  # what comes from a wrong step
    for step in solution.steps:
        own[step.name] = _follows(step, own, right)
        if spoilt & set(step.takes):
            spoilt.add(step.name)
        if step.name not in answers:
            continue
        told = _read(step, answers[step.name], symbols)
        wrong = _apart(told, right[step.name])
        if not wrong:
            found = Finding(step.name, "right", (), "")
        elif _apart(told, own[step.name]):
            why = _longer(solution, step, told) or _cause(step, told, own, right)
            found = Finding(step.name, "wrong", tuple(wrong), why)
        elif step.name in spoilt:
            found = Finding(step.name, "carried forward", (), "")
        else:
            found = Finding(step.name, "wrong", tuple(wrong), "the values before it were rounded")
        spoilt = spoilt - {step.name} if found.verdict == "right" else spoilt | {step.name}
        findings.append(found)
        own[step.name] = _filled(told, own[step.name])
    return findings


def _follows(step: Step, own: Mapping[str, Matrix], right: Mapping[str, Matrix]) -> Matrix:
    """What follows from the student's own values, where anything does."""
    try:
        return applied(step.rule, *(own[name] for name in step.takes))
    except (RegardError, ZeroDivisionError):
        return right[step.name]


def _read(step: Step, told: Any, symbols: list[str]) -> Told:
    want = step.value
    rows = told if isinstance(told, list | tuple) else [told]
    if rows and not isinstance(rows[0], list | tuple):
        rows = [rows] if want.rows == 1 else [[x] for x in rows]
    if len(rows) != want.rows or any(len(row) != want.cols for row in rows):
        raise WorkError(
            f"{step.name}: needs {want.rows} rows of {want.cols} numbers, got "
            f"{len(rows)} of {' and '.join(sorted({str(len(row)) for row in rows}))}"
        )
    places = [_places(x) for row in rows for x in row if not _is_open(x)]
    cells = [[None if _is_open(x) else number(x, symbols) for x in row] for row in rows]
    return Told(cells, max((p for p in places if p is not None), default=None))


def _is_open(x: Any) -> bool:
    return isinstance(x, str) and x.strip() in ("", "?")


def _places(x: Any) -> int | None:
    found = re.fullmatch(r"[+-]?\d*\.(\d+)", str(x).strip())
    return len(found[1]) if found else None


def _apart(told: Told, want: Matrix) -> list[str]:
    """The entries that differ by more than honest rounding, each with what it should be."""
    near, found = _within(told), []
    for i, row in enumerate(told.cells):
        for j, x in enumerate(row):
            if x is not None and not _near(x, want[i, j], near):
                found.append(f"({i + 1},{j + 1}): {decimal(x)} should be {decimal(want[i, j])}")
    return found


def _within(told: Told) -> float:
    """A little more than half of the last place that was written."""
    return EXACT if told.places is None else 0.6 / 10**told.places


def _near(a: sympy.Expr, b: sympy.Expr, within: float) -> bool:
    if a.is_infinite or b.is_infinite:
        return a == b
    if symbols := sorted(a.free_symbols | b.free_symbols, key=str):
        # the same formula gives the same numbers; two odd places tell formulas apart
        for k in (1, 2):
            at: Any = {s: PLACE * k + n / PLACE for n, s in enumerate(symbols)}
            if not _near(a.subs(at), b.subs(at), max(within, EXACT)):
                return False
        return True
    return abs(float(evaluated(a, 20)) - float(evaluated(b, 20))) <= within


def _cause(step: Step, told: Told, own: Mapping[str, Matrix], right: Mapping[str, Matrix]) -> str:
    """The slip that gives just these values, if one of those that are known does."""
    for values in (own, right):
        parts = [values[name] for name in step.takes]
        for says, slip in rule(step.rule).slips.items():
            try:
                found = slip(*parts)
            except (RegardError, ZeroDivisionError, IndexError):
                continue
            if found.shape == step.value.shape and not _apart(told, found):
                return says
        want = _follows(step, values, right)
        if want.rows == want.cols and not _apart(told, M(want.T)):
            return "rows and columns are exchanged"
        signs = [
            f"({i + 1},{j + 1})"
            for i, row in enumerate(told.cells)
            for j, x in enumerate(row)
            if x and not _near(x, want[i, j], EXACT) and _near(x, -want[i, j], _within(told))
        ]
        if signs and all(entry.split(":")[0] in signs for entry in _apart(told, want)):
            return f"a sign, in {', '.join(signs)}"
    return ""


def _longer(solution: Solution, step: Step, told: Told) -> str:
    """The slip over several steps that gives just these values."""
    for name, says, value in solution.slips:
        if name == step.name and value.shape == step.value.shape and not _apart(told, value):
            return says
    return ""


def _filled(told: Told, rest: Matrix) -> Matrix:
    """The student's matrix, with what follows from it in the entries left open."""
    return M(
        [
            [rest[i, j] if x is None else x for j, x in enumerate(row)]
            for i, row in enumerate(told.cells)
        ]
    )


def first_wrong(findings: list[Finding]) -> Finding | None:
    """The first step that is wrong in itself.

    >>> first_wrong([Finding("S", "right", (), ""), Finding("A", "wrong", (), "")]).name
    'A'
    """
    return next((found for found in findings if found.verdict == "wrong"), None)
