"""A student's values beside the right ones: the first wrong step, what follows from it, and why."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.errors import WorkError
from regard.work.causes import Cause, cause, follows
from regard.work.compare import apart, filled, read_told
from regard.work.solution import Solution


class Finding(NamedTuple):
    """What became of one step of an answer: right, carried forward from a wrong one, or wrong.

    >>> Finding("S", "right", (), "").verdict
    'right'
    """

    name: str
    verdict: str
    wrong: tuple[str, ...]  # entries that differ, told
    why: str  # a likely cause of what is wrong


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
    symbols = [str(s) for value in solution.values().values() for s in value.free_symbols]
    right, findings = solution.values(), []
    own = dict(solution.given)  # as it was written, rounded
    full = dict(solution.given)  # with all the digits that a student may have kept
    spoilt: set[str] = set()  # what comes from a wrong step
    for step in solution.steps:
        own[step.name], full[step.name] = follows(step, own, right), follows(step, full, right)
        if spoilt & set(step.takes):
            spoilt.add(step.name)
        if step.name not in answers:
            continue
        told = read_told(step, answers[step.name], symbols)
        wrong, why = tuple(apart(told, right[step.name])), Cause()
        if not wrong:
            found = Finding(step.name, "right", (), "")
        elif apart(told, own[step.name]) and apart(told, full[step.name]):
            why = cause(solution, step, told, own, answers)
            found = Finding(step.name, "wrong", wrong, why.says)
            full[step.name] = filled(told, full[step.name]) if why.value is None else why.value
        elif step.name in spoilt:
            found = Finding(step.name, "carried forward", (), "")
        else:
            found = Finding(step.name, "wrong", wrong, "the values before it were rounded")
        spoilt = spoilt - {step.name} if found.verdict == "right" else spoilt | {step.name}
        findings.append(found)
        own[step.name] = filled(told, own[step.name])
    return _as_one(findings)


# a softmax along the wrong axis shows in two steps, and is one slip
_AXIS = {
    "columns were added up instead of rows": "it was divided by the column sums",
    "rows were added up instead of columns": "it was divided by the row sums",
}


def _as_one(findings: list[Finding]) -> list[Finding]:
    """A sum along the wrong axis and the division by it, told as one slip."""
    for n, (first, second) in enumerate(zip(findings, findings[1:], strict=False)):
        if first.why and _AXIS.get(first.why) == second.why:
            axis = first.why.split()[0]
            findings[n] = first._replace(why=f"the softmax was taken over the {axis}")
            findings[n + 1] = second._replace(verdict="carried forward", wrong=(), why="")
    return findings


def first_wrong(findings: list[Finding]) -> Finding | None:
    """The first step that is wrong in itself.

    >>> first_wrong([Finding("S", "right", (), ""), Finding("A", "wrong", (), "")]).name
    'A'
    """
    return next((found for found in findings if found.verdict == "wrong"), None)
