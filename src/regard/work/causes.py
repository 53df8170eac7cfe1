"""Why a value is wrong: the slips that are known, tried one after another, here and before."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from regard.errors import RegardError
from regard.work.compare import Told, agrees, at, fits
from regard.work.rules import M, Matrix, rule
from regard.work.solution import Solution, Step, applied, computed

Values = Mapping[str, Matrix]
TRIES = 1_500  # steps recomputed in the search; forty papers should not take an hour


def follows(step: Step, own: Values, right: Values) -> Matrix:
    """What follows from the student's own values, where anything does.

    >>> from regard.work import attention
    >>> worked = attention({"X": [[1], [2]]}, scale=1)
    >>> follows(worked.steps[0], worked.values(), worked.values()) == worked["S"]
    True
    """
    try:
        return applied(step.rule, *(own[name] for name in step.takes))
    except RegardError:
        return right[step.name]


class Cause(NamedTuple):
    """A slip in words, and all the digits of what it gives; neither where none is known.

    >>> Cause().says
    ''
    """

    says: str = ""
    value: Matrix | None = None


def cause(
    solution: Solution, step: Step, told: Told, maps: Sequence[Values], written: Collection[str]
) -> Cause:
    """The slip that gives just these values, if one of those that are known does.

    `maps` are the values that the student may have started from, the likeliest first: as written,
    with all digits, and the right ones.

    >>> from regard.work import attention
    >>> from regard.work.compare import read_told
    >>> worked = attention({"X": [[1, 2], [0, 1]]})
    >>> told = read_told(worked.steps[1], [[5, 2], [2, 1]], [])
    >>> cause(worked, worked.steps[1], told, [worked.values()], ["Z"]).says
    'the scale was left out'
    """
    found = _longer(solution, step, told) or _here(step, told, maps, solution.values())
    for values in maps[: 1 if maps[0] == maps[-1] else 2]:
        found = found or _before(solution, step, told, values, written)
    return found or Cause()


def _longer(solution: Solution, step: Step, told: Told) -> Cause | None:
    """The slip over several steps that gives just these values."""
    for name, says, value in solution.slips:
        if name == step.name and value.shape == step.value.shape and agrees(told, value):
            return Cause(says, value)
    return None


def _here(step: Step, told: Told, maps: Sequence[Values], right: Values) -> Cause | None:
    for values in maps:
        for says, found in _slipped(step, values):
            if agrees(told, found):
                return Cause(says, found)
        want = follows(step, values, right)
        if want.rows == want.cols and agrees(told, M(want.T)):
            return Cause("rows and columns are exchanged", M(want.T))
        if says := _signs(told, want):
            return Cause(says)
    return None


def _signs(told: Told, want: Matrix) -> str:
    """Entries that are right but for their sign, if there is nothing else wrong."""
    wrong = [(i, j, x) for i, j, x in told.entries() if x is not None and not fits(x, want[i, j])]
    if wrong and all(x.value and fits(x, -want[i, j]) for i, j, x in wrong):
        return f"a sign, in {', '.join(at(i, j) for i, j, _ in wrong)}"
    return ""


def _slipped(step: Step, values: Values) -> Iterator[tuple[str, Matrix]]:
    """What the slips of a step make of these values, each with what it is called."""
    parts = [values[name] for name in step.takes]
    for says, slip in rule(step.rule).slips.items():
        try:
            found = computed(step.rule, slip, *parts)
        except RegardError:
            continue
        if found.shape == step.value.shape:
            yield says, found


def _before(
    solution: Solution, step: Step, told: Told, own: Values, written: Collection[str]
) -> Cause | None:
    """The slip in an earlier step, not written down, from which these values follow."""
    between = _leading_to(solution, step, written)
    tries = 0
    for n, early in reversed(list(enumerate(between))):
        longer = ((says, value) for name, says, value in solution.slips if name == early.name)
        for says, value in (*_slipped(early, own), *longer):
            tries += len(between) - n
            if tries > TRIES:
                return None
            values = {**own, early.name: value}
            for later in between[n + 1 :]:
                values[later.name] = follows(later, values, own)
            found = follows(step, values, own)
            if agrees(told, found):
                return Cause(f"{says}, in {early.name}", found)
    return None


def _leading_to(solution: Solution, step: Step, written: Collection[str]) -> list[Step]:
    """The steps that this one rests on without a written value in between, in their order."""
    needed, found = set(step.takes), []
    for early in reversed(solution.steps[: solution.steps.index(step)]):
        if early.name in needed and early.name not in written:
            needed |= set(early.takes)
            found.append(early)
    return found[::-1]
