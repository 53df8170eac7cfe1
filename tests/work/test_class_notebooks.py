"""Notebooks of a class: their cells run, their tests grade, and their answers are marked again."""

import doctest
import json
import shutil
import subprocess

import numpy as np
import pytest
from class_papers import solve  # tests/work

from regard.work.classroom import Class, Student, make_class, mark_class, write_class


@pytest.fixture
def made(tmp_path):
    students = [Student("Ada Lovelace", "7"), Student("Bob")]
    one = make_class(tmp_path, Class("attention", 2, {"A": 3, "H": 2}, secret="n"), students)
    write_class(one, tmp_path, ["otter"])
    return one, tmp_path / "otter"


def fill_in(one, folder, n, mistake=""):
    """The notebook of a student with its values filled in, as numpy has them."""
    x = one.assignments[n]
    book = json.loads((folder / f"notebooks/{x.file}.ipynb").read_text())
    values = solve(dict(x.exercise.problem), mistake)
    for cell in book["cells"]:
        text = "".join(cell["source"])
        if text.endswith("= ...") and cell["cell_type"] == "code":
            name = text.split()[0]
            cell["source"] = [f"{name} = np.array({values[name].tolist()})"]
    return book


def grade(folder, variables) -> dict[str, float]:
    """Points by step, by running the doctests of each test file."""
    points = {}
    for file in sorted((folder / "tests").iterdir()):
        space: dict = {}
        exec(file.read_text(), space)
        for case in space["test"]["suites"][0]["cases"]:
            test = doctest.DocTestParser().get_doctest(case["code"], dict(variables), "", "", 0)
            failed = doctest.DocTestRunner(verbose=False).run(test, out=lambda text: None).failed
            points[file.stem] = points.get(file.stem, 0) + (0 if failed else case["points"])
    return points


def test_the_tests_give_the_points_and_the_answers_are_marked(made, tmp_path, monkeypatch):
    one, folder = made
    monkeypatch.chdir(tmp_path / "answers")
    (tmp_path / "answers/answers.csv").unlink()
    graded = []
    for n, mistake in enumerate(["", "W_K for W_Q"]):
        variables = {"np": np}
        for cell in fill_in(one, folder, n, mistake)["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), variables)
        graded.append(grade(folder, variables))
    assert graded[0] == {"Q": 1, "K": 1, "V": 1, "S": 1, "A": 3, "H": 2}
    assert graded[1]["Q"] == graded[1]["S"] == 0
    assert graded[1]["K"] == 1
    assert [x.points for x in mark_class(one, tmp_path).marks] == [9, 8], "with follow-through"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("otter") is None, reason="otter-grader is not installed here")
def test_otter_grades_a_notebook(made, tmp_path):
    one, folder = made
    (folder / "filled.ipynb").write_text(json.dumps(fill_in(one, folder, 0, "K for V")))
    (folder / "out").mkdir()
    for command in (
        ["otter", "generate", "-t", "tests", "-o", "autograder.zip"],
        ["otter", "run", "-a", "autograder.zip", "-o", "out", "--no-logo", "filled.ipynb"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads((folder / "out/results.json").read_text())["tests"]
    scores = {x["name"]: x["score"] for x in results if "score" in x}
    assert scores == {"Q": 1, "K": 1, "V": 1, "S": 1, "A": 3, "H": 0}
