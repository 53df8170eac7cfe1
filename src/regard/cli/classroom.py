"""`regard class`: a problem and a sheet for each student, and the marks of a class."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.work import Places, Tolerance

class_ = typer.Typer(help="Problems and sheets for a class, and its marks.", no_args_is_help=True)
SheetFormat = StrEnum("SheetFormat", ["html", "latex", "moodle", "otter", "pdf", "toml", "xlsx"])


@class_.command()
def make(
    roster: Annotated[
        Path, typer.Argument(help="Table of students, .csv or .xlsx: names, and ids if there are.")
    ],
    family: Annotated[
        str, typer.Option(help="Family of the problems, as of `regard work --make`.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the class; one that exists is added to.")
    ],
    level: Annotated[int, typer.Option(min=1, max=3, help="Difficulty of the problems.")] = 1,
    points: Annotated[
        str, typer.Option(metavar="STEP=N,…", help="Points per step: 2, or A=2,H=3; 0: not asked.")
    ] = "",
    formats: Annotated[
        list[SheetFormat] | None,
        typer.Option("--format", help="Format of the sheets; may be repeated.  [default: html]"),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Option of all problems: mask=causal."),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the sheets.")] = "",
    secret: Annotated[
        str | None, typer.Option(help="Draw the problems from this secret instead of a new one.")
    ] = None,
) -> None:
    """Make a problem for each student of a roster, a sheet to print, and the solutions."""
    from regard.work.classroom import Class, make_class, parse_points, read_roster, write_class
    from regard.work.classroom.roster import find_student
    from regard.work.problem import parse_option

    chosen = dict(map(parse_option, options or []))
    settings = Class(family, level, parse_points(points), chosen, title)
    students = read_roster(roster)
    one_class = make_class(out, settings, students, secret)
    for line in write_class(one_class, out, [*map(str, formats or ["html"])]):
        print(line)
    left = [x.student for x in one_class.assignments if find_student(x.student, students) is None]
    if left:
        print(f"{out}: not in {roster.name}, kept: {', '.join(x.name for x in left)}")


@class_.command()
def mark(
    answers: Annotated[
        Path,
        typer.Argument(help="Folder of the class, or answers: .csv, .xlsx, .toml or a folder."),
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--class", help="Folder of the class, where the answers are not inside it."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the marks.  [default: marks/ of the class]"),
    ] = None,
    tolerance: Tolerance = None,
    places: Places = None,
    due: Annotated[
        str | None, typer.Option(help="Papers after this time are noted as late: 2026-11-19 18:00.")
    ] = None,
) -> None:
    """Mark the answers of a class: points, a page per student, a table of the mistakes."""
    from regard.errors import WorkError
    from regard.work.classroom import load_class, mark_class, parse_time, write_marks
    from regard.work.classroom.problems import CLASS_FILE
    from regard.work.marking.findings import chosen_tolerance

    time = parse_time(due or "")
    if due and time is None:
        raise WorkError(f"due: needs a time such as 2026-11-19 18:00, got {due!r}")
    near = (answers, *answers.resolve().parents[:2])
    class_folder = folder or next((x for x in near if (x / CLASS_FILE).is_file()), answers)
    if folder is None and not (class_folder / CLASS_FILE).is_file():
        raise WorkError(
            f"class: needs the folder of the class for {answers}, got none; try --class"
        )
    one = load_class(class_folder)
    marks = mark_class(one, answers, chosen_tolerance(tolerance, places), time)
    print("\n".join([*marks.lines(), "", *write_marks(one, marks, out or class_folder / "marks")]))
    raise typer.Exit(marks.exit_code)
