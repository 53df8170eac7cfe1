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
    json = "json"


def work(
    problem: Annotated[
        str | None, typer.Argument(help="A TOML file, or the name of a problem that comes along.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Answers to check: TOML, a value for any of the steps.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.text,
    digits: Annotated[int, typer.Option(min=1, max=50, help="Digits of decimals.")] = 6,
) -> None:
    """Work a problem by hand: every step with its formula, its numbers and its exact result."""
    import json

    from regard import work

    if problem is None:
        print("problems that come along: " + ", ".join(work.problem_names()))
        print("regard work three-tokens works one; a TOML file of your own is worked the same way")
        return
    solution = work.work(work.read_problem(problem))
    if check is not None:
        findings = work.check(solution, work.read_toml(check))
        print(work.findings_as_text(findings))
        raise typer.Exit(0 if work.first_wrong(findings) is None else 3)
    match form:
        case Format.text:
            print(work.as_text(solution, digits))
        case Format.markdown:
            print(work.as_markdown(solution, digits))
        case Format.latex:
            print(work.as_latex(solution, digits))
        case Format.json:
            print(json.dumps(solution.to_json(), indent=1, ensure_ascii=False))
