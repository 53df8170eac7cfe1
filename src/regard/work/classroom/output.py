"""The files of a class: sheets, solutions, problems, and a table for the answers."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from regard.errors import WorkError, counted
from regard.files import make_folder, write_quiz_file, write_text
from regard.work.classroom.excel import write_table, write_workbook
from regard.work.classroom.moodle import class_quiz
from regard.work.classroom.notebooks import write_notebooks
from regard.work.classroom.problems import Class
from regard.work.classroom.sheets import sheets_html, sheets_latex, solutions_html, write_pdf
from regard.work.making import blank_answers, problem_toml

ANSWERS = "answers"  # folder of what students hand in
Writer = Callable[[Class, Path], Iterator[str]]


def write_class(one: Class, folder: str | Path, formats: Sequence[str]) -> list[str]:
    """Write the class in these formats; returns a line about each file or folder."""
    place = make_folder(folder)
    for name in formats:
        if name not in WRITERS:
            raise WorkError(f"format: needs one of {', '.join(WRITERS)}, got {name!r}")
    one.save(place)
    size = counted(len(one.assignments), "student")
    lines = [f"{place}: {size}, {one.family}, level {one.level}"]
    for name in dict.fromkeys(formats):
        lines += WRITERS[name](one, place)
    suffix = "xlsx" if "xlsx" in formats else "csv"
    lines += _write_table(one, make_folder(place / ANSWERS) / f"answers.{suffix}")
    return [*lines, f"{place / 'class.json'}: the secret and all problems, to mark with: keep it"]


def _write_html(one: Class, place: Path) -> Iterator[str]:
    write_text(place / "sheets.html", sheets_html(one, one.assignments))
    for x in one.assignments:
        write_text(make_folder(place / "sheets") / f"{x.file}.html", sheets_html(one, [x]))
    yield f"{place / 'sheets.html'}: all sheets to print; sheets/ has one file per student"
    yield f"{write_text(place / 'solutions.html', solutions_html(one))}: the solutions"


def _write_latex(one: Class, place: Path) -> Iterator[str]:
    yield f"{write_text(place / 'sheets.tex', sheets_latex(one))}: all sheets"
    solutions = write_text(place / "solutions.tex", sheets_latex(one, solutions=True))
    yield f"{solutions}: the solutions"


def _write_pdf(one: Class, place: Path) -> Iterator[str]:
    sheets = write_pdf(sheets_html(one, one.assignments), place / "sheets.pdf")
    yield f"{sheets}: all sheets to print"
    yield f"{write_pdf(solutions_html(one), place / 'solutions.pdf')}: the solutions"


def _write_moodle(one: Class, place: Path) -> Iterator[str]:
    quiz = write_quiz_file(class_quiz(one), place / "quiz.xml")
    yield f"{quiz}: a quiz for Moodle, one variant per problem"


def _write_toml(one: Class, place: Path) -> Iterator[str]:
    folder = make_folder(place / "toml")
    for x in one.assignments:
        exercise = x.exercise._replace(questions=tuple(x.points))
        write_text(folder / f"{x.file}.toml", problem_toml(exercise))
        write_text(folder / f"{x.file}-answers.toml", blank_answers(exercise))
    yield f"{folder}: problems and blank answer files, for {ANSWERS}/"


def entry_names(one: Class) -> list[str]:
    """Headers of a table of answers: S[1,2] is row 1, column 2; a single number has its name.

    Steps of all problems, each as large as the largest.
    """
    shapes: dict[str, tuple[int, int]] = {}
    for x in one.assignments:
        for step in x.steps:
            rows, columns = shapes.get(step.name, (0, 0))
            shapes[step.name] = max(rows, step.value.rows), max(columns, step.value.cols)
    return [
        name if shape == (1, 1) else f"{name}[{i + 1},{j + 1}]"
        for name, shape in shapes.items()
        for i in range(shape[0])
        for j in range(shape[1])
    ]


def _write_table(one: Class, file: Path) -> Iterator[str]:
    if file.exists():
        yield f"{file}: is kept as it is; new students need a line of their own there"
        return
    rows = [["name", "id", *entry_names(one)], *(list(x.student[:2]) for x in one.assignments)]
    if file.suffix == ".xlsx":
        write_table(rows, file)
    else:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        write_text(file, "\ufeff" + text.getvalue())  # Excel needs the mark to read UTF-8
    yield f"{file}: a table to enter answers in, for `regard class mark {file.parent.parent}`"


def _write_otter(one: Class, place: Path) -> Iterator[str]:
    write_notebooks(one, place / "otter")
    yield f"{place / 'otter'}: a notebook per student, and tests for otter-grader"


def _write_xlsx(one: Class, place: Path) -> Iterator[str]:
    yield f"{write_workbook(one, place / 'solutions.xlsx')}: the solutions as live formulas"


WRITERS: dict[str, Writer] = {
    "html": _write_html,
    "latex": _write_latex,
    "pdf": _write_pdf,
    "moodle": _write_moodle,
    "otter": _write_otter,
    "toml": _write_toml,
    "xlsx": _write_xlsx,
}
