"""`regard work`: a problem solved by hand, step by step, and answers checked."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How a solution is written."""

    text = "text"
    markdown = "markdown"
    latex = "latex"
    html = "html"
    json = "json"


def work(
    problem: Annotated[
        str | None, typer.Argument(help="A TOML file, or the name of a problem that comes along.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Answers to check: TOML, a value for any of the steps.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.text,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file to write it to.")] = None,
    only: Annotated[str | None, typer.Option(help="Steps to show, by name: A,H or h_*.")] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Only the convention, and the shape of each matrix.")
    ] = False,
    digits: Annotated[int, typer.Option(min=1, max=50, help="Digits of decimals.")] = 6,
) -> None:
    """Work a problem by hand: every step with its formula, its numbers and its exact result."""
    from regard import work

    if problem is None:
        print("problems that come along: " + ", ".join(work.problem_names()))
        print("regard work three-tokens works one; a TOML file of your own is worked the same way")
        return
    solution = work.work(work.read_problem(problem))
    if shapes:
        print(work.shapes_as_text(solution))
        return
    if check is not None:
        findings = work.check(solution, work.read_toml(check))
        print(work.findings_as_text(findings))
        raise typer.Exit(0 if work.first_wrong(findings) is None else 3)
    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    if form is Format.text and out is None:
        _to_terminal(solution, digits, names)
        return
    text = work.shown_as(solution, form.value, digits, names)
    if out is None:
        print(text)
    else:
        print(f"{work.write_page(out, text)}: {len(solution.steps)} steps")


def _to_terminal(solution: object, digits: int, names: list[str]) -> None:
    """With colours where there is somebody to see them."""
    import sys

    from regard import work

    assert isinstance(solution, work.Solution)
    if not sys.stdout.isatty():
        print(work.as_text(solution, digits, names))
        return
    from rich.console import Console

    Console(highlight=False).print(work.as_rich(solution, digits, names), soft_wrap=True)
