"""One shared test list over the registry of families: each is complete, documented and checked."""

import inspect
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from regard import work
from regard.errors import WorkError
from regard.work.families import FAMILIES, exercise_families

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/regard/work/families"
EXAMPLES = {
    problem.get("family", "attention"): problem
    for problem in map(work.read_problem, work.problem_names())
}


def test_every_solver_is_registered():
    sources = [file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py")]
    solvers = {name for text in sources for name in re.findall(r"\ndef (solve_\w+)", text)}
    solve = [inspect.unwrap(family.solve) for family in FAMILIES.values()]
    registered = {getattr(one, "func", one).__name__ for one in solve}
    assert solvers == registered


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_an_included_problem_and_a_row_in_the_docs(name):
    assert name in EXAMPLES
    row = next(
        line
        for line in (ROOT / "docs/work/by-hand.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| `{name}` |")
    )
    assert all(f"`{option}`" in row for option in FAMILIES[name].options)


@pytest.mark.parametrize("name", FAMILIES)
def test_unknown_names_and_options_are_refused(name):
    problem = EXAMPLES[name] | {"family": name}
    with pytest.raises(WorkError, match="nonsense: needs .*got 'nonsense'"):
        work.solve(problem | {"nonsense": 1})
    with pytest.raises(WorkError, match=r"given: needs .*qqq"):
        work.solve(problem | {"given": {**problem["given"], "qqq": 1}})


@pytest.mark.parametrize("name", exercise_families())
def test_exercises_have_three_levels_and_ask_for_steps_that_exist(name):
    assert len(FAMILIES[name].exercises) == 3
    # scaled and masked scores, and the cell of an LSTM, are asked for at level 3 only
    at_level_3 = {"Z", "R", "R_*", "c_*", "dc_*"}
    missing = set(FAMILIES[name].exercises[0].questions) - at_level_3
    for level in (1, 2):
        if missing:
            steps = [step.name for step in work.make_exercise(name, 1, level).solution.steps]
            missing = {p for p in missing if not any(fnmatchcase(step, p) for step in steps)}
    assert missing == set()
