"""Random exercises, redrawn until their numbers are simple."""

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.errors import RegardError, WorkError, suggestion
from regard.work.exact.evaluate import evaluate_digits
from regard.work.families.registry import FAMILIES, ExerciseTemplate, exercise_families
from regard.work.problem import solve
from regard.work.show.selection import matches_any
from regard.work.solution import Solution

ENTRY_CHOICES = ((-1, 0, 1, 2), (-2, -1, 0, 1, 2), (-2, -1, "-1/2", 0, "1/2", 1, 2))  # by level
SPARSE_ENTRY_CHOICES = ((-1, 0, 1), (-1, 0, 0, 1), (-1, 0, 0, "1/2", 1))  # for sums of many terms
MAX_DRAWS = 300
MAX_ACTIVATION_INPUT = 4  # of exp, σ and tanh: larger ones saturate
MAX_NUMERATOR, MAX_DENOMINATOR = 24, 8
MAX_EXERCISES = 100  # per sheet


class Exercise(NamedTuple):
    """A problem, its solution, and the names of the steps asked for.

    >>> make_exercise("attention", seed=1).problem["family"]
    'attention'
    """

    name: str
    problem: Mapping[str, Any]
    solution: Solution
    questions: tuple[str, ...]


def make_exercise(family: str, seed: int = 0, level: int = 1, variant: int = 1) -> Exercise:
    """Generate an exercise with simple numbers.

    Args:
        family: one of `exercise_families()`.
        seed: random seed.
        level: difficulty, 1 to 3.
        variant: number of the exercise on a sheet.

    >>> make_exercise("rnn", seed=3).problem == make_exercise("rnn", seed=3).problem
    True
    """
    if family not in (known := exercise_families()):
        hint = suggestion(family, known)
        raise WorkError(f"family: needs one of {', '.join(known)}, got {family!r}{hint}")
    if not 1 <= level <= 3:
        raise WorkError(f"level: needs 1, 2 or 3, got {level}")
    name = f"{family}-{level}-{seed}-{variant}"
    template = FAMILIES[family].exercises[level - 1]
    rng = random.Random(name)  # seeded by a string: the same on every machine
    for _ in range(MAX_DRAWS):
        problem = {"family": family, **_draw_problem(template, level, rng)}
        try:
            solution = solve(problem)
        except RegardError:
            continue  # a divisor that does not divide, a variance of 0
        if _is_simple(solution, template):
            names = [step.name for step in solution.steps]
            questions = tuple(name for name in names if matches_any(name, template.questions))
            return Exercise(name, problem, solution, questions)
    raise WorkError(f"seed: needs one that gives simple numbers, got {seed}; try another")


def make_sheet(family: str, seed: int = 0, level: int = 1, count: int = 4) -> list[Exercise]:
    """Generate `count` exercises, distinct where the family has enough of them.

    >>> [one.name for one in make_sheet("counts", count=2)]
    ['counts-1-0-1', 'counts-1-0-2']
    """
    if not 1 <= count <= MAX_EXERCISES:
        raise WorkError(f"count: needs 1 to {MAX_EXERCISES}, got {count}")
    found: list[Exercise] = []
    for number in range(1, count + 1):
        one = make_exercise(family, seed, level, number)
        for again in range(1, 20):
            if all(one.problem != other.problem for other in found):
                break
            one = make_exercise(family, seed, level, number + 1000 * again)
        found.append(one._replace(name=f"{family}-{level}-{seed}-{number}"))
    return found


def _draw_problem(template: ExerciseTemplate, level: int, rng: random.Random) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, (rows, columns) in template.shapes.items():
        some = (SPARSE_ENTRY_CHOICES if columns > 2 else ENTRY_CHOICES)[level - 1]
        cells = [[rng.choice(some) for _ in range(columns)] for _ in range(rows)]
        given[name] = cells[0][0] if rows == columns == 1 else cells
    given |= {name: rng.choice(some) for name, some in template.value_choices.items()}
    chosen = {name: rng.choice(some) for name, some in template.option_choices.items()}
    return {**{k: v for k, v in chosen.items() if v != "none"}, "given": given}


def _is_simple(solution: Solution, template: ExerciseTemplate) -> bool:
    """Whether fractions are short, activations not saturated, and matrices not constant."""
    values = solution.values()
    for step in solution.steps:
        if step.rule in ("exp", "sigmoid", "tanh"):
            inside = [x for x in values[step.inputs[0]] if not x.is_infinite]
            if any(abs(float(evaluate_digits(x, 9))) > MAX_ACTIVATION_INPUT for x in inside):
                return False
        rationals = [x for x in step.value if x.is_Rational]
        is_long = any(abs(x.p) > MAX_NUMERATOR or x.q > MAX_DENOMINATOR for x in rationals)
        if template.shapes and is_long:
            return False
    if not template.shapes:  # chosen numbers are simple already
        return True
    drawn = [v for name, v in solution.given.items() if name in template.shapes and len(v) > 1]
    varied = all(len(set(v)) > 1 and all(any(v.row(i)) for i in range(v.rows)) for v in drawn)
    # the last may be a difference that has to be 0
    return varied and any(x != 0 for step in solution.steps[-3:] for x in step.value)
