"""Diagnosis of wrong values: common mistakes tried in the step and in earlier ones."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from regard.errors import RegardError
from regard.work.marking.answers import StudentAnswer, format_index, matches_answer, matches_entry
from regard.work.rules import M, Matrix, get_rule
from regard.work.solution import Solution, Step, apply_rule, run_checked

Values = Mapping[str, Matrix]
MAX_RECOMPUTED_STEPS = 1_500  # bounds the search per wrong step


def recompute_step(step: Step, student_values: Values, fallback: Values) -> Matrix:
    """Recompute a step from the student's values; the fallback where the rule fails.

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
    """Description of a mistake and the unrounded value it gives; empty if none is known.

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
    """Find the known mistake that gives exactly these values.

    Args:
        solution: the correct solution.
        step: the wrong step.
        answer: the student's values of the step.
        candidates: values the student may have started from, the most likely first: as written,
            unrounded, and correct.
        answered_steps: names of the steps on the sheet.

    >>> from regard.work.families.attention import solve_attention
    >>> from regard.work.marking.answers import parse_answer
    >>> solution = solve_attention({"X": [[1, 2], [0, 1]]})
    >>> answer = parse_answer(solution.steps[1], [[5, 2], [2, 1]], [])
    >>> diagnose(solution, solution.steps[1], answer, [solution.values()], ["Z"]).description
    'the scale was left out'
    """
    result = _multi_step_mistake(solution, step, answer) or _mistake_in_step(
        step, answer, candidates, solution.values()
    )
    for values in candidates[: 1 if candidates[0] == candidates[-1] else 2]:
        result = result or _mistake_in_earlier_step(solution, step, answer, values, answered_steps)
    return result or Diagnosis()


def _multi_step_mistake(solution: Solution, step: Step, answer: StudentAnswer) -> Diagnosis | None:
    """The mistake over several steps that gives these values."""
    for name, description, value in solution.mistakes:
        if name == step.name and value.shape == step.value.shape and matches_answer(answer, value):
            return Diagnosis(description, value)
    return None


def _mistake_in_step(
    step: Step, answer: StudentAnswer, candidates: Sequence[Values], fallback: Values
) -> Diagnosis | None:
    for values in candidates:
        for description, result in _mistaken_values(step, values):
            if matches_answer(answer, result):
                return Diagnosis(description, result)
        expected = recompute_step(step, values, fallback)
        if expected.rows == expected.cols and matches_answer(answer, M(expected.T)):
            return Diagnosis("rows and columns are swapped", M(expected.T))
        if description := _signs(answer, expected):
            return Diagnosis(description)
    return None


def _signs(answer: StudentAnswer, expected: Matrix) -> str:
    """Entries that are wrong in their sign only, if nothing else is wrong."""
    wrong = [
        (i, j, x)
        for i, j, x in answer.entries()
        if x is not None and not matches_entry(x, expected[i, j])
    ]
    if wrong and all(x.value and matches_entry(x, -expected[i, j]) for i, j, x in wrong):
        return f"a sign, in {', '.join(format_index(i, j) for i, j, _ in wrong)}"
    return ""


def _mistaken_values(step: Step, values: Values) -> Iterator[tuple[str, Matrix]]:
    """Description and value of each common mistake of a step."""
    inputs = [values[name] for name in step.inputs]
    for description, mistaken in get_rule(step.rule).mistakes.items():
        try:
            result = run_checked(step.rule, mistaken, *inputs)
        except RegardError:
            continue
        if result.shape == step.value.shape:
            yield description, result


def _mistake_in_earlier_step(
    solution: Solution,
    step: Step,
    answer: StudentAnswer,
    student_values: Values,
    answered_steps: Collection[str],
) -> Diagnosis | None:
    """The mistake in an earlier, unanswered step from which these values follow."""
    between = _unanswered_ancestors(solution, step, answered_steps)
    recomputed = 0
    for n, earlier in reversed(list(enumerate(between))):
        multi_step = (
            (description, value)
            for name, description, value in solution.mistakes
            if name == earlier.name
        )
        for description, value in (*_mistaken_values(earlier, student_values), *multi_step):
            recomputed += len(between) - n
            if recomputed > MAX_RECOMPUTED_STEPS:
                return None
            values = {**student_values, earlier.name: value}
            for later in between[n + 1 :]:
                values[later.name] = recompute_step(later, values, student_values)
            result = recompute_step(step, values, student_values)
            if matches_answer(answer, result):
                return Diagnosis(f"{description}, in {earlier.name}", result)
    return None


def _unanswered_ancestors(
    solution: Solution, step: Step, answered_steps: Collection[str]
) -> list[Step]:
    """Earlier steps that this one depends on without an answered step in between, in order."""
    needed, result = set(step.inputs), []
    for earlier in reversed(solution.steps[: solution.steps.index(step)]):
        if earlier.name in needed and earlier.name not in answered_steps:
            needed |= set(earlier.inputs)
            result.append(earlier)
    return result[::-1]
