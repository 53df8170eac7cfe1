"""Diagnosis of wrong values: common mistakes tried in the step and in earlier ones."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from regard.errors import RegardError
from regard.work.marking.answers import (
    StudentAnswer,
    format_index,
    matches_answer,
    matches_entry,
    wrong_entries,
)
from regard.work.rules import M, Matrix, get_rule
from regard.work.solution import Solution, Step, apply_rule, run_checked

Values = Mapping[str, Matrix]
MAX_RECOMPUTED_STEPS = 1_500  # bounds the search per wrong step


def recompute_step(step: Step, student_values: Values, fallback: Values) -> Matrix:
    """Recompute a step from the student's values; the fallback where the rule fails."""
    try:
        return apply_rule(step.rule, *(student_values[name] for name in step.inputs))
    except RegardError:
        return fallback[step.name]


class Diagnosis(NamedTuple):
    """Description of a mistake and the unrounded value it gives; empty if none is known."""

    description: str = ""
    value: Matrix = None  # None where it is not known


def diagnose(
    solution: Solution,
    step: Step,
    answer: StudentAnswer,
    candidates: Sequence[Values],
    answered_steps: Collection[str],
) -> Diagnosis:
    """Find the known mistake that gives exactly these values.

    `candidates` are values the student may have started from, the most likely first: as written,
    unrounded, and correct.
    """
    for mistake in _multi_step_mistakes(solution, step):
        if mistake.value.shape == step.value.shape and matches_answer(answer, mistake.value):
            return mistake
    result = _mistake_in_step(step, answer, candidates, solution.values())
    for values in candidates[: 1 if candidates[0] == candidates[-1] else 2]:
        result = result or _mistake_in_earlier_step(solution, step, answer, values, answered_steps)
    return result or Diagnosis()


def _multi_step_mistakes(solution: Solution, step: Step) -> list[Diagnosis]:
    return [Diagnosis(text, value) for name, text, value in solution.mistakes if name == step.name]


def _mistake_in_step(
    step: Step, answer: StudentAnswer, candidates: Sequence[Values], fallback: Values
) -> Diagnosis | None:
    for values in candidates:
        for mistake in _mistakes_in_rule(step, values):
            if matches_answer(answer, mistake.value):
                return mistake
        expected = recompute_step(step, values, fallback)
        if expected.rows == expected.cols and matches_answer(answer, M(expected.T)):
            return Diagnosis("rows and columns are swapped", M(expected.T))
        wrong = list(wrong_entries(answer, expected))
        if wrong and all(x.value and matches_entry(x, -right) for _, _, x, right in wrong):
            return Diagnosis(f"a sign, in {', '.join(format_index(i, j) for i, j, *_ in wrong)}")
    return None


def _mistakes_in_rule(step: Step, values: Values) -> Iterator[Diagnosis]:
    """Each common mistake of the rule of a step, applied to these values."""
    inputs = [values[name] for name in step.inputs]
    for description, mistaken in get_rule(step.rule).mistakes.items():
        try:
            result = run_checked(step.rule, mistaken, *inputs)
        except RegardError:
            continue
        if result.shape == step.value.shape:
            yield Diagnosis(description, result)


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
        mistakes = _mistakes_in_rule(earlier, student_values)
        for description, value in (*mistakes, *_multi_step_mistakes(solution, earlier)):
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
