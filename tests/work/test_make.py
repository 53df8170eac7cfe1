"""Generated exercises: clean, reproducible from a seed, solved and checked; class marking."""

import re
import shutil
import subprocess
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from regard import work
from regard.cli import app
from regard.errors import FileError, WorkError
from regard.work.families.registry import exercise_families
from regard.work.making import MAX_DENOMINATOR, MAX_NUMERATOR, blank_answers

run = CliRunner()


# ---- exercises


@pytest.mark.parametrize("level", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", exercise_families())
def test_exercises_of_every_family_and_level_can_be_solved_and_checked(family, level):
    one = work.make_exercise(family, seed=6, level=level)
    if level == 1:
        assert work.make_exercise(family, seed=6, level=level).problem == one.problem
    assert one.questions
    values = tomllib.loads(work.format_sheet([one], "toml"))
    again = work.solve(values)
    assert again.values() == one.solution.values()
    answers = tomllib.loads(work.format_sheet([one], "toml", solutions=True))
    assert set(answers) == set(one.questions)
    short = {k: v for k, v in answers.items() if max(len(x) for row in v for x in row) < 200}
    assert all(found.verdict == "right" for found in work.check_answers(again, short))
    assert work.check_answers(again, tomllib.loads(blank_answers(one))) != []


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["attention", "rnn", "gru", "cross-attention"]),
    st.integers(0, 999),
    st.integers(1, 2),
)
def test_numbers_are_clean(family, seed, level):
    one = work.make_exercise(family, seed, level)
    entries = [x for value in one.solution.given.values() for x in value]
    assert all(abs(x) <= 2 and x.q <= 2 for x in entries if x.is_Rational)
    for step in one.solution.steps:
        assert all(
            abs(x.p) <= MAX_NUMERATOR and x.q <= MAX_DENOMINATOR
            for x in step.value
            if x.is_Rational
        )


def test_exercises_of_a_sheet_differ_and_so_do_seeds():
    sheet = work.make_sheet("rnn", seed=2, count=8)
    values = [str(one.problem) for one in sheet]
    assert len(set(values)) == 8
    assert str(work.make_exercise("rnn", seed=3).problem) not in values
    assert [one.name for one in sheet][:2] == ["rnn-1-2-1", "rnn-1-2-2"]


@pytest.mark.parametrize("family", work.FAMILIES)
def test_a_new_problem_solves_as_it_is_and_names_every_option(family, tmp_path):
    file = tmp_path / "mine.toml"
    done = run.invoke(app, ["work", "--new", family, "-o", str(file)])
    assert done.exit_code == 0, done.output
    assert run.invoke(app, ["work", str(file), "--shapes"]).exit_code == 0
    assert all(f"{name} = " in file.read_text() for name in work.FAMILIES[family].options)
    done = run.invoke(app, ["work", "--new", family, "-o", str(file)])
    assert done.exit_code == 2, "an edited problem is not overwritten"
    assert "which exists" in done.output


# ---- sheets


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "html"])
def test_a_sheet_asks_and_its_solutions_answer(form):
    exercises = work.make_sheet("attention", level=2, count=2)
    asked, answered = (work.format_sheet(exercises, form, solutions) for solutions in (False, True))
    assert "Find" in asked
    assert "weighted means of the values" not in asked
    assert answered.count("weighted means of the values") == 2
    if form == "latex":
        assert asked.isascii()
        assert answered.isascii()
        for line in re.findall(r"^\\\[ (.*) \\\]$", asked + answered, re.MULTILINE):
            assert line.count("{") == line.count("}")
    if form == "html":
        assert re.findall(r'id="([^"]+)"', answered).count("1-at-H") == 1
        assert all(f'id="{at}"' in answered for at in re.findall(r'href="#([^"]+)"', answered))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed here")
@pytest.mark.parametrize("solutions", [False, True])
@pytest.mark.parametrize("family", exercise_families())
def test_the_latex_of_every_sheet_compiles(family, solutions, tmp_path):
    text = work.format_sheet(work.make_sheet(family, level=2, count=2), "latex", solutions)
    (tmp_path / "it.tex").write_text(text)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "it.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:]


def test_the_command_makes_sheets_and_folders(tmp_path):
    out = tmp_path / "sheet.html"
    made = ["work", "--make", "gru", "--seed", "7", "--count", "2"]
    done = run.invoke(app, [*made, "--format", "html", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sheet-solutions.html", "sheet.html"]
    folder = tmp_path / "class"
    done = run.invoke(app, [*made, "--format", "toml", "-o", str(folder)])
    assert done.exit_code == 0, done.output
    assert "gru-1-7-1-answers.toml" in {p.name for p in folder.iterdir()}
    worked = run.invoke(app, ["work", str(folder / "gru-1-7-1.toml"), "--only", "h_1"])
    assert worked.exit_code == 0, worked.output
    assert run.invoke(app, made).output == run.invoke(app, made).output


# ---- a class


def write(folder, name, text):
    (folder / f"{name}.toml").write_text(text)


def test_a_class_is_one_table_with_the_first_wrong_step_of_each(tmp_path):
    right = "Q = [[1, 3], [-1, 1], [2.5, -2]]\n"
    write(tmp_path, "ada", right + "S = [[1.5, -2.5, 8], [-3.5, -3.5, 6], [8.5, 8, -13.25]]\n")
    write(tmp_path, "bob", "Q = [[1, 3], [-1, 1], [2.5, 2]]\n")
    write(tmp_path, "cyd", "Q = [[1, 3]]\n")
    write(tmp_path, "dan", "not TOML")
    done = run.invoke(app, ["work", "three-tokens", "--check", str(tmp_path)])
    lines = done.output.splitlines()
    assert done.exit_code == 3
    assert lines[0] == "ada  2 of 2  all right"
    assert lines[1] == "bob  0 of 1  Q is wrong, likely: a sign, in (3,2)"
    assert lines[2].startswith("cyd  0 of 1  not read: Q needs 3 rows of 2 numbers, got 1 of 2")
    assert lines[3].startswith("dan  0 of 0  not read: needs TOML")
    assert lines[4:] == ["1 of 4 all right", "wrong first: Q (1)"]
    good = ["work", "three-tokens"] + ["--check", str(tmp_path / "ada.toml")] * 2
    assert run.invoke(app, good).exit_code == 0


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_what_cannot_be_made_is_reported(tmp_path):
    with pytest.raises(
        WorkError, match="family: needs one of attention, .*got 'atention'; try att"
    ):
        work.make_exercise("atention")
    with pytest.raises(WorkError, match="level: needs 1, 2 or 3, got 4"):
        work.make_exercise("rnn", level=4)
    with pytest.raises(WorkError, match="count: needs 1 to 100, got 0"):
        work.make_sheet("rnn", count=0)
    with pytest.raises(WorkError, match="fmt: needs one of text"):
        work.format_sheet(work.make_sheet("rnn", count=1), "pdf")
    with pytest.raises(WorkError, match="count: needs 1 for TOML, got 2; try --out FOLDER"):
        work.format_sheet(work.make_sheet("rnn", count=2), "toml")
    with pytest.raises(FileError, match="needs to hold TOML files, got none"):
        work.check_submissions(work.solve(work.read_problem("self-attention")), [tmp_path])


@pytest.mark.parametrize(
    "family", [pytest.param("positions", marks=pytest.mark.slow), "moments", "layer-norm", "counts"]
)
def test_forty_exercises_are_forty(family):
    problems = [one.problem for one in work.make_sheet(family, count=40)]
    assert all(one != other for n, one in enumerate(problems) for other in problems[:n])


@pytest.mark.slow
def test_more_exercises_than_there_are_are_refused_with_their_number():
    with pytest.raises(WorkError, match="needs at most 40, as many as positions has at level 1"):
        work.make_sheet("positions", count=60)


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "html"])
def test_a_sheet_states_the_equations_it_is_marked_by(form):
    text = work.format_sheet(work.make_sheet("gru", count=1), form)
    assert "Marked by:" in text
    assert "1 - z_1" in text or "1 - z_{1}" in text or "<mo>" in text


def test_given_numbers_of_a_problem_are_set_by_name():
    found = CliRunner().invoke(
        app, ["work", "self-attention", "--set", 'X=[[1,"1/2"],[0,2]]', "--only", "S"]
    )
    assert "5/4" in found.output, found.output
