"""Marks of a class: papers written by numpy, through the commands that a teacher types."""

import csv
import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from class_papers import MISTAKES, draw_papers  # tests/work
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import FileError
from regard.work.classroom import Class, Student, make_class, mark_class, write_class
from regard.work.classroom.marks import count_mistakes

run = CliRunner()
STUDENTS = [Student("Ada Lovelace", "11"), Student("Bob Noonan", "12"), Student("Eve Ng", "13")]


def small_class(folder: Path) -> Class:
    one = make_class(folder, Class("rnn", 2, {"h_2": 2}, secret="s"), STUDENTS)
    write_class(one, folder, ["toml"])
    return one


def right(one: Class, n: int) -> dict[str, str]:
    values = one.assignments[n].exercise.solution.values()
    return {name: f"{float(values[name][0]):.4f}" for name in one.assignments[n].points}


def write_table(folder: Path, text: str) -> Path:
    (folder / "answers.csv").write_text(text)
    return folder / "answers.csv"


@pytest.mark.parametrize("count", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_papers_of_a_class_are_marked_with_their_mistakes(count, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("name\n" + "".join(f"Student {n:02}\n" for n in range(count)))
    folder = tmp_path / "class"
    command = ["class", "make", str(roster), "--family", "attention", "--level", "2"]
    done = run.invoke(
        app, [*command, "--points", "A=3,H=2", "--secret", "forty", "-o", str(folder)]
    )
    assert done.exit_code == 0, done.output
    drawn = draw_papers(folder)
    done = run.invoke(app, ["class", "mark", str(folder)])
    assert done.exit_code == 3, done.output
    text = (folder / "marks/marks.csv").read_text(encoding="utf-8-sig")
    rows = {row["name"]: row for row in csv.DictReader(text.splitlines())}
    assert len(rows) == count
    assert len(set(drawn.values())) == len(MISTAKES) or count < 40
    named, worth = 0, {"A": 3, "H": 2}
    for name, mistake in drawn.items():
        step, cause = MISTAKES[mistake]
        assert rows[name]["first wrong"] == step, (name, mistake, rows[name])
        assert float(rows[name]["points"]) == 9 - (worth.get(step, 1) if step else 0), "one slip"
        named += cause in rows[name]["likely cause"]
    assert named >= count - 2, "a sign may be the better name of a coincidence"
    assert len(list((folder / "marks/feedback").iterdir())) == count
    page = (folder / "marks/class.html").read_text()
    assert "Student 0" not in page, "the page of the class has no names"
    assert "<svg" in page
    counted = re.findall(r"<th>[^<]*W_K was used for W_Q[^<]*</th><td[^>]*>(\d+)</td>", page)
    assert sum(map(int, counted)) == list(drawn.values()).count("W_K for W_Q")
    feedback = (folder / "marks/feedback/student-01.html").read_text()
    assert "Student 02" not in feedback
    data = json.loads((folder / "marks/marks.json").read_text())
    assert sum(x["worth"] for x in data["students"][0]["steps"]) == data["students"][0]["points"]


def test_all_right_is_0_and_a_blank_is_1(tmp_path):
    one = small_class(tmp_path)
    lines = [f"{x.name},{','.join(right(one, n).values())}" for n, x in enumerate(STUDENTS)]
    table = write_table(tmp_path, "\n".join(["name,h_1,h_2", *lines]))
    assert run.invoke(app, ["class", "mark", str(table)]).exit_code == 0
    write_table(tmp_path, "\n".join(["name,h_1,h_2", *lines[:2]]))
    done = run.invoke(app, ["class", "mark", str(table)])
    assert done.exit_code == 1
    assert "Nothing from: Eve Ng" in done.output
    write_table(tmp_path, "\n".join(["name,h_1,h_2", *lines[:2], "Eve Ng,,"]))
    done = run.invoke(app, ["class", "mark", str(table)])
    assert "Nothing from: Eve Ng" in done.output, "blanks alone are nothing"


def test_who_it_is_is_found_by_id_address_or_name_and_strangers_are_named(tmp_path):
    one = small_class(tmp_path)
    h = [right(one, n) for n in range(3)]
    text = "student id;name;submitted;h_1;h_2;Remark\n"
    text += f"12;;2026-11-19 10:00;{h[1]['h_1'].replace('.', ',')};{h[1]['h_2']};x\n"
    text += f';"LOVELACE, Ada";20 November 2026 3:45 PM;{h[0]["h_1"]};0.1;\n'
    text += ";Bob Noona;;0.5;0.5;\n;Eve Ng;soon;0.1;0.2;\n;Eve Ng;;0.1;0.2;\n"
    marks = mark_class(one, write_table(tmp_path, text), due=datetime(2026, 11, 19, 18))
    ada, bob, eve = marks.marks
    assert (bob.points, bob.notes) == (3, ())
    assert ada.points == 1
    assert ada.notes == ("late: 2026-11-20 15:45",)
    assert eve.notes[0].startswith("2 papers, the last is marked: answers.csv, line 6")
    assert eve.notes[1] == "the time is not known"
    assert marks.unknown == ["answers.csv, line 4: Bob Noona is not in the class; try Bob Noonan"]
    assert marks.notes == ["answers.csv: columns that are no steps: Remark"]
    assert marks.exit_code == 3


def test_a_folder_of_answer_files_and_an_unreadable_one(tmp_path):
    one = small_class(tmp_path)
    files = tmp_path / "answers"
    (files / "answers.csv").unlink()
    numbers = "".join(f"{name} = [[{x}]]\n" for name, x in right(one, 0).items())
    (files / "Ada Lovelace_123_assignsubmission_file.toml").write_text(numbers)
    (files / "bob-noonan-answers.toml").write_text("h_1 = [[0.5]")
    (files / "eve-ng.toml").write_text('h_1 = [["?"]]')
    marks = mark_class(one, tmp_path)
    assert [x.points for x in marks.marks] == [3, 0]
    assert "needs TOML" in marks.marks[1].error
    assert [x.name for x in marks.missing] == ["Eve Ng"]
    assert run.invoke(app, ["class", "mark", str(tmp_path)]).exit_code == 3


def test_a_whole_matrix_may_stand_in_one_cell(tmp_path):
    one = make_class(tmp_path, Class("attention", 1, secret="s"), STUDENTS[:1])
    values = one.assignments[0].exercise.solution["S"].tolist()
    for cell in ("; ".join(" ".join(map(str, row)) for row in values), str(values)):
        marks = mark_class(one, write_table(tmp_path, f'name,S\nAda Lovelace,"{cell}"\n'))
        assert marks.marks[0].steps["S"] == 1, cell
    marks = mark_class(one, write_table(tmp_path, 'name,S\nAda Lovelace,"1 2"\n'))
    assert "needs 2 rows" in marks.marks[0].findings[0].unread[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,group\nAda,x\n", "needs columns of steps, h_1, h_2, got group"),
        ("h_1\n0.5\n", "needs a column of names"),
    ],
)
def test_a_table_without_names_or_steps_is_refused(tmp_path, text, message):
    one = small_class(tmp_path)
    with pytest.raises(FileError, match=message):
        mark_class(one, write_table(tmp_path, text))


def test_bad_input_is_one_line_and_exit_code_2(tmp_path):
    small_class(tmp_path / "class")
    (tmp_path / "other.csv").write_text("name,h_1\nAda,1\n")
    for command in (
        ["class", "mark", str(tmp_path / "nowhere")],
        ["class", "mark", str(tmp_path / "other.csv")],
        ["class", "mark", str(tmp_path / "class"), "--due", "soon"],
        ["class", "mark", str(tmp_path / "class"), "--tolerance", "x"],
        ["class", "mark", str(tmp_path / "class"), "--tolerance", "1", "--places", "2"],
    ):
        done = run.invoke(app, command)
        assert done.exit_code == 2, (command, done.output)
        assert len(done.output.strip().splitlines()) == 1, done.output
    (tmp_path / "class/class.json").write_text('{"family": "rnn"}')
    assert run.invoke(app, ["class", "mark", str(tmp_path / "class")]).exit_code == 2


def test_mistakes_are_counted_without_their_places(tmp_path):
    one = make_class(tmp_path, Class("attention", 1, secret="s"), STUDENTS)
    lines = ["name,S"]
    for x in one.assignments:
        values = x.exercise.solution["S"].as_mutable()
        n = next(n for n, value in enumerate(values) if value)
        values[n] *= -1
        lines.append(
            f"{x.student.name},{'; '.join(' '.join(map(str, r)) for r in values.tolist())}"
        )
    marks = mark_class(one, write_table(tmp_path, "\n".join(lines)))
    assert count_mistakes(marks)["S"].total() == 3
    assert all("(" not in cause for cause in count_mistakes(marks)["S"])
