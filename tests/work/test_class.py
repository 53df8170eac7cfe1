"""Class mode: rosters, a problem and a sheet per student."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard import work
from regard.cli import app
from regard.errors import FileError, RegardError
from regard.work.classroom import Class, Student, load_class, make_class, read_roster, write_class
from regard.work.classroom.problems import step_points

run = CliRunner()
NAMES = ["Ada Lovelace", "Zoë Åström", "王芳", "Jean-Luc O'Neil", "Müller & Söhne <b>"]


def make_command(folder: Path, *more: str, family: str = "attention", level: int = 2) -> str:
    roster = folder / "roster.csv"
    if not roster.exists():
        roster.write_text("name,id\n" + "".join(f"{x},{n}\n" for n, x in enumerate(NAMES, 10)))
    options = ["--family", family, "--level", str(level), "-o", str(folder / "class"), *more]
    done = run.invoke(app, ["class", "make", str(roster), *options])
    assert done.exit_code == 0, done.output
    return done.output


# ---- rosters


@pytest.mark.parametrize(
    "data",
    [
        b"name,id\nAda Lovelace,7\nBob,8\n",
        "\ufeffMatrikelnummer;Vorname;Nachname\r\n7;Ada;Lovelace\r\n8;Bob;\r\n".encode(),
        b"sep=;\nStudent ID;Full name\n7;Ada Lovelace\n\n8;Bob\n",
        "Last name\tFirst name\tID number\tGroup\nLovelace\tAda\t7\tx\n\tBob\t8\n".encode("utf-16"),
        b'Name,ID\n"Ada\nLovelace",7\nBob,8\n',
    ],
    ids=["plain", "excel-german", "sep", "utf-16", "newline"],
)
def test_a_roster_is_read_as_spreadsheets_write_it(tmp_path, data):
    (tmp_path / "roster.csv").write_bytes(data)
    read = [(x.name, x.id) for x in read_roster(tmp_path / "roster.csv")]
    assert read == [("Ada Lovelace", "7"), ("Bob", "8")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name\nAda\nBob\nADA\n", "line 4: needs another student, got ADA as in r.csv, line 2"),
        ("name,id\nAda,1\nEve,1\n", "line 3: needs another student, got Eve as in r.csv, line 2"),
        ('name\n"Lovelace, Ada"\nAda  Lovelace\n', "line 3: needs another student"),
        ("name,id\nAda,1\n ,2\n", "line 3: needs the name of a student, got none"),
        ("a,b\n1,2\n", "needs a column of names in its first line, got a, b; try the header name"),
        ("", "needs a line of headers"),
        ("name\n", "needs at least one student"),
    ],
)
def test_a_roster_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(FileError, match=re.escape(message)):
        read_roster(tmp_path / "r.csv")


def test_two_students_of_one_name_have_ids(tmp_path):
    (tmp_path / "r.csv").write_text("name,id\nAda,1\nAda,2\n")
    made = make_class(tmp_path / "c", Class("rnn"), read_roster(tmp_path / "r.csv"))
    assert [x.file for x in made.assignments] == ["ada", "ada-2"]


# ---- problems


def test_every_student_has_a_problem_of_its_own_and_the_secret_gives_it_again(tmp_path):
    students = [Student(f"Student {n}") for n in range(40)]
    made, again, other = (
        make_class(tmp_path / "no", Class("attention", 1, secret=x), students) for x in "aab"
    )
    problems = [json.dumps(x.exercise.problem) for x in made.assignments]
    assert len(set(problems)) == 40
    assert problems == [json.dumps(x.exercise.problem) for x in again.assignments]
    assert problems != [json.dumps(x.exercise.problem) for x in other.assignments]


@pytest.mark.parametrize("family", ["attention", "recurrent-attention", "moments"])
def test_all_problems_of_a_class_have_the_same_steps(family, tmp_path):
    made = make_class(tmp_path, Class(family, 3, secret="s"), [Student(str(n)) for n in range(8)])
    assert len({tuple(x.points) for x in made.assignments}) == 1
    kinds = (
        {k: v for k, v in x.exercise.problem.items() if k != "given"} for x in made.assignments
    )
    assert len({json.dumps(x, sort_keys=True) for x in kinds}) == 1


@pytest.mark.slow
def test_a_student_who_comes_later_changes_no_problem(tmp_path):
    make_command(tmp_path)
    before = load_class(tmp_path / "class")
    (tmp_path / "roster.csv").write_text("name,id\nNew One,99\n" + "Ada Lovelace,10\n")
    assert "not in roster.csv, kept: Zoë Åström" in make_command(tmp_path)
    after = load_class(tmp_path / "class")
    assert after.assignments[:5] == before.assignments
    assert [x.student.name for x in after.assignments[5:]] == ["New One"]
    done = run.invoke(app, ["class", "make", str(tmp_path / "roster.csv"), "--family", "rnn", "-o",
                            str(tmp_path / "class")])  # fmt: skip
    assert done.exit_code == 2, "another family in the same folder"
    command = ["class", "make", str(tmp_path / "roster.csv"), "--family", "attention"]
    command += ["--level", "2", "-o", str(tmp_path / "class"), "--secret", "another"]
    assert "secret: needs to be that of" in run.invoke(app, command).output


def test_points_by_step_and_pattern(tmp_path):
    make_command(tmp_path, "--points", "2,A=3,E=0.5,S=0")
    points = load_class(tmp_path / "class").assignments[0].points
    assert points == {"Q": 2, "K": 2, "V": 2, "E": 0.5, "A": 3, "H": 2}
    one = work.make_exercise("rnn", level=2)
    with pytest.raises(RegardError, match="points: needs steps"):
        step_points(one, {"A": 1})


@pytest.mark.parametrize(
    "options",
    [
        ["--family", "attentoin"],
        ["--family", "rnn", "--points", "h_1=x"],
        ["--family", "rnn", "--points", "h_*=0"],
        ["--family", "attention", "--set", "masks=causal"],
        ["--family", "attention", "--level", "2", "--set", "convention=columns"],
        ["--family", "counts"],  # has fewer problems than there are students
    ],
)
def test_a_class_that_cannot_be_is_one_line_and_writes_nothing(options, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("name\n" + "".join(f"Student {n}\n" for n in range(45)))
    done = run.invoke(app, ["class", "make", str(roster), *options, "-o", str(tmp_path / "c")])
    assert done.exit_code == 2, done.output
    assert len(done.output.strip().splitlines()) == 1, done.output
    assert not (tmp_path / "c").exists()


# ---- sheets


def test_a_sheet_defines_its_symbols_and_has_a_field_for_each_number(tmp_path):
    make_command(tmp_path, "--points", "h_1=3", family="gru", level=3)
    folder, made = tmp_path / "class", load_class(tmp_path / "class")
    for x in made.assignments:
        page = (folder / "sheets" / f"{x.file}.html").read_text()
        assert page.count("<td></td>") == sum(len(step.value) for step in x.steps)
        assert "Müller &amp; Söhne &lt;b&gt;" in page or "Müller" not in x.student.name
        assert "3 points" in page
        assert "of 6" in page
        for name in ("zs_1", "W_z", "σ(x)", "A ∘ B"):
            shown = work.making.parse_name(name).mathml() if "_" in name else name
            plain = re.sub(r"<[^>]+>", "", shown.replace("<math>", ""))
            assert plain.replace(" ", "") in re.sub(r"<[^>]+>| ", "", page), name
    page = (folder / "sheets.html").read_text()
    assert page.count('<article class="sheet"') == len(NAMES)
    assert "break-before: page" in page
    assert "Solution" not in page


@pytest.mark.parametrize("family", ["positions", "cost", "gru"])
def test_latex_of_a_class_has_no_empty_list_and_compiles(family, tmp_path):
    wanted = Class(family, 1, secret="s")
    one = make_class(tmp_path, wanted, [Student("Ada & Bob", "a_1"), Student("Zoë", "2")])
    write_class(one, tmp_path, ["latex"])
    for name in ("sheets.tex", "solutions.tex"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert not re.search(r"\\begin\{itemize\}\S*\s*\\end\{itemize\}", text)
        if shutil.which("pdflatex"):
            command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", name]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-2000:]
            assert not re.findall(r"Overfull .hbox \((\d{3})", done.stdout)  # 100 pt and more


@pytest.mark.slow
def test_latex_and_toml_have_each_student(tmp_path):
    make_command(tmp_path, "--format", "latex", "--format", "toml")
    text = (tmp_path / "class/sheets.tex").read_text()
    assert text.count("\\clearpage") == text.count("Name: ") == len(NAMES)
    assert "Müller \\& Söhne $<$b$>$" in text
    for x in load_class(tmp_path / "class").assignments:
        problem = tomllib.loads((tmp_path / f"class/toml/{x.file}.toml").read_text())
        assert work.solve(problem).values() == x.exercise.solution.values()
        blank = tomllib.loads((tmp_path / f"class/toml/{x.file}-answers.toml").read_text())
        assert list(blank) == list(x.points)


def test_a_table_that_is_filled_in_is_never_overwritten(tmp_path):
    make_command(tmp_path)
    table = tmp_path / "class/answers/answers.csv"
    head = table.read_text(encoding="utf-8-sig").splitlines()[0]
    assert head.startswith('name,id,"Q[1,1]","Q[1,2]"')
    table.write_text("mine")
    assert "is kept" in make_command(tmp_path)
    assert table.read_text() == "mine"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium is installed here")
@pytest.mark.slow
def test_the_pdf_has_a_page_or_more_per_student(tmp_path):
    make_command(tmp_path, "--format", "pdf")
    data = (tmp_path / "class/sheets.pdf").read_bytes()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) >= len(NAMES)


def test_without_a_browser_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("regard.work.classroom.sheets.INSTALLED", ())
    (tmp_path / "r.csv").write_text("name\nAda\n")
    command = ["class", "make", str(tmp_path / "r.csv"), "--family", "rnn", "--format", "pdf"]
    done = run.invoke(app, [*command, "-o", str(tmp_path / "class")])
    assert done.exit_code == 2
    assert "try --format html" in done.output


def test_the_command_offers_every_format():
    from regard.cli.classroom import SheetFormat
    from regard.work.classroom.output import WRITERS

    assert list(SheetFormat) == sorted(WRITERS)
