"""Why a value is wrong: the slips that are known, tried one after another, here and before."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from regard.errors import RegardError
from regard.work.marking.answers import StudentAnswer, format_index, matches_answer, matches_entry
from regard.work.rules import M, Matrix, get_rule
from regard.work.solution import Solution, Step, apply_rule, run_checked

Values = Mapping[str, Matrix]
MAX_RECOMPUTED_STEPS = 1_500  # steps recomputed in the search; forty papers should not take an hour


def recompute_step(step: Step, student_values: Values, fallback: Values) -> Matrix:
    """What follows from the student's own values, where anything does.

    >>> from regard.work.families.attention import solve_attention
    >>> solution = solve_attention({"X": [[1], [2]]}, scale=1)
    >>> recompute_step(solution.steps[0], solution.values(), solution.values()) == solution["S"]
    True
    """
    try:
        return apply_rule(step.rule, *(student_values[name] for name in step.inputs))
    except RegardError:
        return fallback[step.name]


class Diagnosis(NamedTuple):
    """A slip in words, and all the digits of what it gives; neither where none is known.

    >>> Diagnosis().description
    ''
    """

    description: str = ""
    value: Matrix | None = None


def diagnose(
    solution: Solution,
    step: Step,
    answer: StudentAnswer,
    candidates: Sequence[Values],
    answered_steps: Collection[str],
) -> Diagnosis:
    """The slip that gives just these values, if one of those that are known does.

    `maps` are the values that the student may have started from, the likeliest first: as written,
    with all digits, and the right ones.

    >>> from regard.work.families.attention import solve_attention
    >>> from regard.work.marking.answers import parse_answer
    >>> solution = solve_attention({"X": [[1, 2], [0, 1]]})
    >>> answer = parse_answer(solution.steps[1], [[5, 2], [2, 1]], [])
    >>> diagnose(solution, solution.steps[1], answer, [solution.values()], ["Z"]).description
    'the scale was left out'
    """
    found = _longer(solution, step, answer) or _here(step, answer, candidates, solution.values())
    for values in candidates[: 1 if candidates[0] == candidates[-1] else 2]:
        found = found or _before(solution, step, answer, values, answered_steps)
    return found or Diagnosis()


def _longer(solution: Solution, step: Step, told: StudentAnswer) -> Diagnosis | None:
    """The slip over several steps that gives just these values."""
    for name, says, value in solution.mistakes:
        if name == step.name and value.shape == step.value.shape and matches_answer(told, value):
            return Diagnosis(says, value)
    return None


def _here(
    step: Step, told: StudentAnswer, maps: Sequence[Values], right: Values
) -> Diagnosis | None:
    for values in maps:
        for says, found in _slipped(step, values):
            if matches_answer(told, found):
                return Diagnosis(says, found)
        want = recompute_step(step, values, right)
        if want.rows == want.cols and matches_answer(told, M(want.T)):
            return Diagnosis("rows and columns are exchanged", M(want.T))
        if says := _signs(told, want):
            return Diagnosis(says)
    return None


def _signs(told: StudentAnswer, want: Matrix) -> str:
    """Entries that are right but for their sign, if there is nothing else wrong."""
    wrong = [
        (i, j, x)
        for i, j, x in told.entries()
        if x is not None and not matches_entry(x, want[i, j])
    ]
    if wrong and all(x.value and matches_entry(x, -want[i, j]) for i, j, x in wrong):
        return f"a sign, in {', '.join(format_index(i, j) for i, j, _ in wrong)}"
    return ""


def _slipped(step: Step, values: Values) -> Iterator[tuple[str, Matrix]]:
    """What the slips of a step make of these values, each with what it is called."""
    parts = [values[name] for name in step.inputs]
    for says, slip in get_rule(step.rule).mistakes.items():
        try:
            found = run_checked(step.rule, slip, *parts)
        except RegardError:
            continue
        if found.shape == step.value.shape:
            yield says, found


def _before(
    solution: Solution, step: Step, told: StudentAnswer, own: Values, written: Collection[str]
) -> Diagnosis | None:
    """The slip in an earlier step, not written down, from which these values follow."""
    between = _leading_to(solution, step, written)
    tries = 0
    for n, early in reversed(list(enumerate(between))):
        longer = ((says, value) for name, says, value in solution.mistakes if name == early.name)
        for says, value in (*_slipped(early, own), *longer):
            tries += len(between) - n
            if tries > MAX_RECOMPUTED_STEPS:
                return None
            values = {**own, early.name: value}
            for later in between[n + 1 :]:
                values[later.name] = recompute_step(later, values, own)
            found = recompute_step(step, values, own)
            if matches_answer(told, found):
                return Diagnosis(f"{says}, in {early.name}", found)
    return None


def _leading_to(solution: Solution, step: Step, written: Collection[str]) -> list[Step]:
    """The steps that this one rests on without a written value in between, in their order."""
    needed, found = set(step.inputs), []
    for early in reversed(solution.steps[: solution.steps.index(step)]):
        if early.name in needed and early.name not in written:
            needed |= set(early.inputs)
            found.append(early)
    return found[::-1]
