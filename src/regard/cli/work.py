"""`regard work`: solve exercises step by step, mark answers, generate exercises."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import counted

Format = StrEnum("Format", ["text", "markdown", "latex", "html", "json", "toml"])
Tolerance = Annotated[
    str | None,
    typer.Option(help="Largest error of an answer, in place of the digits written: 0.01."),
]
Places = Annotated[
    int | None,
    typer.Option(min=0, max=50, help="Compare at so many decimals instead of those written."),
]


def work(
    problems: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROBLEM", help="TOML files or names of included problems."),
    ] = None,
    check: Annotated[
        list[Path] | None,
        typer.Option(help="Answers to mark: a TOML file of step values, or a folder."),
    ] = None,
    tolerance: Tolerance = None,
    places: Places = None,
    fmt: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Output format; default: from the suffix of --out, or text. toml: for --make.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Output file; a folder for toml; .png, .svg: maps."),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Steps to show, by name: A,H or h_*.")] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Show only the convention and the matrix shapes.")
    ] = False,
    autograd: Annotated[
        bool, typer.Option("--autograd", help="Compare bptt gradients with torch's autograd.")
    ] = False,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Override an option or a given matrix: mask=causal, X=[[1,0],[0,1]].",
        ),
    ] = None,
    each: Annotated[
        str | None,
        typer.Option(metavar="NAME=V1,V2", help="Solve once per value: scale=0,1/sqrt(2),100."),
    ] = None,
    digits: Annotated[int, typer.Option(min=1, max=50, help="Significant digits.")] = 6,
    make: Annotated[
        str | None, typer.Option(metavar="FAMILY", help="Generate exercises of this family.")
    ] = None,
    new: Annotated[
        str | None, typer.Option(metavar="FAMILY", help="Write a problem file to start from.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the exercises.")] = 0,
    level: Annotated[int, typer.Option(min=1, max=3, help="Difficulty of the exercises.")] = 1,
    count: Annotated[int, typer.Option(min=1, max=100, help="Number of exercises.")] = 1,
    solutions: Annotated[
        bool, typer.Option("--solutions", help="Print the solutions instead of the exercises.")
    ] = False,
) -> None:
    """Solve a problem step by step: formula, numbers and exact result of each step."""
    from regard import work
    from regard.cli.output import report_written
    from regard.errors import WorkError
    from regard.files import is_stream
    from regard.work.marking.findings import chosen_tolerance
    from regard.work.problem import new_problem, parse_option, read_problems
    from regard.work.show.formats import format_report, infer_format, iter_shapes
    from regard.work.show.marks import format_marks, mark_files
    from regard.work.show.pictures import as_picture, write_picture

    view = {"only": only, "shapes": shapes, "autograd": autograd}
    allowed = chosen_tolerance(tolerance, places)
    given = {"check": check, **view, "set": options, "each": each}
    picture = None if any((fmt, new, make, check, shapes, autograd)) else as_picture(out)
    form = str(fmt) if fmt else infer_format(None if picture else out)
    if new is not None:
        _refuse("new", given | {"problem": problems, "make": make, "format": fmt})
        if out is not None and out.exists() and not is_stream(out):
            raise WorkError(f"out: needs a new file for a problem, got {out}, which exists")
        _write(new_problem(new).rstrip("\n") if out is None else new_problem(new), out)
        return
    if make is not None:
        _refuse("make", given | {"problem": problems})
        _print_sheet(work.make_sheet(make, seed, level, count), form, out, solutions)
        return
    if not problems:
        _refuse("problem", given | {"format": fmt, "out": out, "solutions": solutions})
        _print_problems()
        return
    if check:
        _refuse("check", view)
    elif allowed is not None:
        name = "places" if tolerance is None else "tolerance"
        raise WorkError(f"{name}: needs answers to mark, got none; try --check answers.toml")
    tables = read_problems(problems, dict(map(parse_option, options or [])), each)
    if check and len(tables) > 1:
        raise WorkError("check: needs one problem, got several; try one at a time")
    if shapes:
        if form != "text":
            raise WorkError(f"format: needs text for shapes, got {form}")
        if out is not None:
            _write("\n\n".join(iter_shapes(tables)), out)
            return
        for n, part in enumerate(iter_shapes(tables)):
            print(("\n" if n else "") + part)
        return
    solved = {heading: work.solve(table) for heading, table in tables.items()}
    first = next(iter(solved.values()))
    if check:
        marks = mark_files(first, check, allowed)
        title = f"Marks: {check[0].stem}" if len(check) == 1 else "Marks"
        _write(format_marks(marks, form, title), out, marks.summary[0])
        raise typer.Exit(3 if marks.is_wrong else 0 if marks.is_complete else 1)
    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    if picture:
        if len(solved) > 1:
            raise WorkError("out: needs one problem for a picture, got several; try one at a time")
        report_written(picture, str(write_picture(first, picture, names)))
        return
    is_plain = out is None and form == "text" and len(solved) == 1 and not autograd
    if is_plain and sys.stdout.isatty():
        from rich.console import Console

        from regard.work.show.text import as_rich

        Console(highlight=False).print(as_rich(first, digits, names), soft_wrap=True)
        return
    text = format_report(solved, form, digits=digits, only=names, autograd=autograd)
    size = counted(len(first.steps), "step") if len(solved) == 1 else f"{len(solved)} solutions"
    _write(text, out, size)


def _refuse(option: str, others: dict[str, Any]) -> None:
    """Raise where another option would be ignored silently."""
    from regard.errors import WorkError

    ignored = [name for name, value in others.items() if value]
    if ignored and option == "problem":
        raise WorkError(f"problem: needs a TOML file or a name for {ignored[0]}, got none")
    if ignored:
        raise WorkError(f"{option}: needs to be without {' and '.join(ignored)}, got both")


def _write(text: str, out: Path | None, summary: str = "") -> None:
    """Print the text, or write it to a file and print its path."""
    from regard.cli.output import report_written
    from regard.files import write_text

    if out is None:
        print(text)
        return
    report_written(out, f"{write_text(out, text)}{summary and ': '}{summary}")


def _print_problems() -> None:
    from regard import work
    from regard.work.families import exercise_families

    titles = work.problem_titles()
    width = max(map(len, titles))
    print("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
    print("\nSolve one with `regard work three-tokens`, or a TOML file with a problem.")
    print(f"New exercises (`regard work --make rnn`): {', '.join(exercise_families())}.")


def _print_sheet(exercises: list, form: str, out: Path | None, solutions: bool) -> None:
    from regard import work
    from regard.cli.output import report_written

    if out is None:
        print(work.format_sheet(exercises, form, solutions))
        return
    for file in work.write_sheet(exercises, form, out):
        report_written(out, str(file))
