"""Notebooks of a class: a problem per student in numpy, and tests for otter-grader."""

import json
import re
from pathlib import Path
from typing import Any

from regard.files import make_folder, write_text
from regard.work.classroom.problems import Assignment, Class, format_points
from regard.work.classroom.sheets import definitions, heading
from regard.work.making import chosen_options
from regard.work.rules import Matrix

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
LAST_CELL = """import numpy as np

with open({file!r}, "w") as file:  # for `regard class mark`, with follow-through
    for name in {names!r}:
        value = np.atleast_2d(globals().get(name, "?")).tolist()
        file.write(f"{{name}} = {{value}}\\n".replace("'", '"'))
"""


def write_notebooks(one: Class, folder: Path) -> None:
    """Write a notebook per student, and the tests of all problems."""
    for x in one.assignments:
        text = json.dumps(_notebook(one, x), indent=1, ensure_ascii=False)
        write_text(make_folder(folder / "notebooks") / f"{x.file}.ipynb", text + "\n")
    for step in dict.fromkeys(step.name for x in one.assignments for step in x.steps):
        write_text(make_folder(folder / "tests") / f"{variable(step)}.py", _test(one, step))


def variable(name: str) -> str:
    """The name of a step or matrix as a Python variable.

    >>> variable("dW_2"), variable("A_2.1"), variable("lambda")
    ('dW_2', 'A_2_1', 'lambda_')
    """
    plain = re.sub(r"\W", "_", name)
    return f"{plain}_" if plain == "lambda" else plain


def _notebook(one: Class, x: Assignment) -> dict[str, Any]:
    known = [f"- ${y.tex}${f': {words}' if words else ''}" for y, words in definitions(x)]
    lines = [f"# {heading(one)}", f"Name: {x.student.name} {x.student.id}".strip()]
    given = [
        f"{variable(name)} = np.array({_numbers(value)})"
        for name, value in x.exercise.solution.given.items()
    ]
    cells = [
        _cell("\n\n".join([*lines, chosen_options(x.exercise), "\n".join(known)])),
        _cell("\n".join(["import numpy as np", "", f"problem = {x.number}", *given]), "code"),
    ]
    for step in x.steps:
        points = format_points(x.points[step.name])
        rows, columns = step.value.shape
        text = f"**{points}** ${step.equation.tex}$, {step.title}: a {rows} × {columns} array"
        cells += [_cell(text), _cell(f"{variable(step.name)} = ...", "code")]
    names = [variable(name) for name in x.points]
    cells.append(_cell(LAST_CELL.format(file=f"{x.file}-answers.toml", names=names), "code"))
    for n, cell in enumerate(cells):
        cell["id"] = f"cell-{n}"
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def _cell(text: str, kind: str = "markdown") -> dict[str, Any]:
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    lines = text.splitlines(keepends=True)
    return {"cell_type": kind, "metadata": {}, "source": lines, **more}


def _numbers(value: Matrix) -> str:
    rows = [[float(x) for x in value.row(i)] for i in range(value.rows)]
    return str(rows).replace("inf", "np.inf")


def _test(one: Class, name: str) -> str:
    """A test of otter-grader: the shape, and with all points the numbers, which are hidden."""
    papers = [x for x in one.assignments if name in x.points]
    right = ", ".join(f"{x.number}: {_numbers(x.exercise.solution[name])}" for x in papers)
    shape = papers[0].exercise.solution[name].shape
    answer = variable(name)
    cases = [
        f">>> np.atleast_2d({answer}).shape\n{shape}",
        f">>> right = {{{right}}}[problem]\n"
        f">>> bool(np.allclose(np.atleast_2d({answer}), right, rtol=0.01, atol=0.001))\nTrue",
    ]
    worth = (0, papers[0].points[name])
    listed = [
        {"code": f">>> import numpy as np\n{code}", "points": points, "hidden": bool(points)}
        for code, points in zip(cases, worth, strict=True)
    ]
    suite = {"cases": listed, "scored": True, "setup": "", "teardown": "", "type": "doctest"}
    test = {"name": answer, "points": None, "suites": [suite]}
    return f"OK_FORMAT = True\n\ntest = {test!r}\n"
