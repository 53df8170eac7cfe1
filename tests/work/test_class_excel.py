"""Worksheets of a class: formulas that give the solution, and answers that come back."""

import math
import re

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.work.classroom import Class, Student, make_class, mark_class, write_class

openpyxl = pytest.importorskip("openpyxl")
CALLS = {"EXP": math.exp, "SQRT": math.sqrt, "LN": math.log, "TANH": math.tanh, "MAX": max,
         "SIN": math.sin, "COS": math.cos, "PI": lambda: math.pi}  # fmt: skip


def value(sheet, cell: str, known: dict[str, float]) -> float:
    """What a spreadsheet shows in a cell; a power binds weaker than a sign there."""
    if cell not in known:
        text = sheet[cell].value
        if isinstance(text, str):
            assert text.startswith("="), text
            assert not re.search(r"-[A-Z]+\d+\^", text), "a spreadsheet reads (-A1)^2"
            inner = re.sub(r"\b[A-Z]+\d+\b(?!\()", lambda m: f"cell('{m[0]}')", text[1:])
            names = {**CALLS, "cell": lambda name: value(sheet, name, known)}
            text = eval(inner.replace("^", "**"), {"__builtins__": {}}, names)
        known[cell] = text
    return known[cell]


@pytest.mark.parametrize(
    ("family", "level", "options"),
    [("attention", 3, {"mask": "causal"}), ("gru", 3, {}), ("layer-norm", 3, {})],
)
def test_the_formulas_give_the_solution_and_follow_the_given_numbers(
    family, level, options, tmp_path
):
    one = make_class(tmp_path, Class(family, level, {}, options, secret="s"), [Student("A: b/c")])
    write_class(one, tmp_path, ["xlsx"])
    (sheet,) = openpyxl.load_workbook(tmp_path / "solutions.xlsx").worksheets
    solution, known = one.assignments[0].exercise.solution, {}
    rows = {row[0].value: row[0].row for row in sheet.iter_rows(min_row=3) if row[0].value}
    assert list(rows) == list(solution.values())
    for step in solution.steps:
        for i in range(step.value.rows):
            for j in range(step.value.cols):
                cell = f"{openpyxl.utils.get_column_letter(j + 2)}{rows[step.name] + i}"
                assert str(sheet[cell].value).startswith("="), (step.name, "is a live formula")
                right = max(-1e300, float(step.value[i, j]))
                assert value(sheet, cell, known) == pytest.approx(right, rel=1e-9, abs=1e-12)
    last = f"B{rows[solution.steps[-1].name]}"
    before = known[last]
    sheet[f"B{rows[next(iter(solution.given))]}"] = 5
    assert value(sheet, last, {}) != before, "another given number changes the result"


def test_a_roster_and_answers_as_worksheets(tmp_path):
    book = openpyxl.Workbook()
    for row in (["Full name", "Student ID"], ["Ada Lovelace", 11], ["Bob", 12]):
        book.active.append(row)
    book.save(tmp_path / "roster.xlsx")
    folder = tmp_path / "class"
    command = ["class", "make", str(tmp_path / "roster.xlsx"), "--family", "rnn", "--level", "2"]
    command += ["--secret", "x5"]  # h_2 is -0.998, shown as -1.00
    done = CliRunner().invoke(app, [*command, "--format", "xlsx", "-o", str(folder)])
    assert done.exit_code == 0, done.output
    from regard.work.classroom import load_class

    one = load_class(folder)
    book = openpyxl.load_workbook(folder / "answers/answers.xlsx")
    right = one.assignments[0].exercise.solution.values()
    for n, name in enumerate(one.assignments[0].points):
        cell = book.active.cell(2, 3 + n, round(float(right[name][0]), 2))
        cell.number_format = "0.00"
    book.save(folder / "answers/answers.xlsx")
    marks = mark_class(one, folder)
    assert [x.points for x in marks.marks] == [2], "0.5 in the format 0.00 is 0.50"
    (tmp_path / "bad.xlsx").write_bytes(b"PK not a workbook")
    done = CliRunner().invoke(
        app, ["class", "mark", str(tmp_path / "bad.xlsx"), "--class", str(folder)]
    )
    assert done.exit_code == 2
    assert "needs an .xlsx file" in done.output
