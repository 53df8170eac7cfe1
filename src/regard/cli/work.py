"""`regard work`: a problem solved by hand, step by step, and answers checked."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard.work import Solution


class Format(StrEnum):
    """How a solution is written."""

    text = "text"
    markdown = "markdown"
    latex = "latex"
    html = "html"
    json = "json"
    toml = "toml"


def work(
    problems: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROBLEM]...", help="TOML files, or names of problems that come along."
        ),
    ] = None,
    check: Annotated[
        list[Path] | None,
        typer.Option(help="Answers to check: TOML, a value for any of the steps; or a folder."),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="How to write it; toml is for exercises.")
    ] = Format.text,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file to write it to; of toml, a folder.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Steps to show, by name: A,H or h_*.")] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Only the convention, and the shape of each matrix.")
    ] = False,
    autograd: Annotated[
        bool, typer.Option("--autograd", help="Hold the gradients of a bptt to torch's autograd.")
    ] = False,
    chosen: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A choice of the problem: mask=causal."),
    ] = None,
    each: Annotated[
        str | None,
        typer.Option(metavar="NAME=V1,V2", help="Work it once for each: scale=0,1/sqrt(2),100."),
    ] = None,
    digits: Annotated[int, typer.Option(min=1, max=50, help="Digits of decimals.")] = 6,
    make: Annotated[
        str | None, typer.Option(metavar="FAMILY", help="Make new exercises of this family.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which exercises: the same seed, the same ones.")] = 0,
    level: Annotated[int, typer.Option(min=1, max=3, help="How hard they are.")] = 1,
    count: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 1,
    solutions: Annotated[
        bool, typer.Option("--solutions", help="Show the solutions of exercises instead.")
    ] = False,
) -> None:
    """Work a problem by hand: every step with its formula, its numbers and its exact result."""
    from regard import work

    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    if make is not None:
        _make(work.sheet(make, seed, level, count), form, out, solutions)
    elif not problems:
        _list()
    else:
        told = _gone_through(problems, dict(map(_choice, chosen or [])), each)
        if shapes:
            _tell_each(told, work.shapes_as_text)
        elif len(told) > 1:
            _need_text(form, out, check)
            _show_several(told, digits, names, autograd)
        else:
            solution = work.work(*told.values())
            if check:
                _check(solution, check)
            elif names or not autograd:
                _show(solution, form, out, digits, names)
            if autograd:
                held = work.autograd_as_text(work.by_autograd(solution))
                print(("\n" if names else "") + held)


def _list() -> None:
    from regard import work

    titles = work.problem_titles()
    wide = max(map(len, titles))
    print("\n".join(f"{name:<{wide}}  {title}" for name, title in titles.items()))
    print("\nregard work three-tokens works one; a TOML file of your own is worked the same way.")
    print("Exercises are made of " + ", ".join(work.PLANS) + ": regard work --make rnn.")


def _choice(told: str) -> tuple[str, Any]:
    """A choice as a problem has it: a number where it is one, else the text."""
    from regard.errors import WorkError

    name, sign, text = (part.strip() for part in told.partition("="))
    if not (name and sign and text):
        raise WorkError(f"set: needs NAME=VALUE, got {told!r}; try mask=causal")
    if text in ("true", "false"):
        return name, text == "true"
    return name, int(text) if text.lstrip("-").isdigit() else text


def _gone_through(
    problems: list[str], chosen: dict[str, Any], each: str | None
) -> dict[str, dict[str, Any]]:
    """Every problem with every value of the choice that is gone through, by a heading."""
    from regard import work

    told = {problem: work.read_problem(problem) | chosen for problem in problems}
    if each is None:
        return told
    name, _, values = each.partition("=")
    return {
        f"{problem}, {name} = {value}" if len(problems) > 1 else f"{name} = {value}": given
        | dict([_choice(f"{name}={value}")])
        for problem, given in told.items()
        for value in values.split(",")
    }


def _tell_each(told: dict[str, dict[str, Any]], tell: "Callable[[Solution], str]") -> None:
    """One after another, each worked when the one before it is told."""
    from regard import work

    for n, (heading, problem) in enumerate(told.items()):
        if len(told) > 1:
            print(("\n" if n else "") + f"--- {heading}\n")
        print(tell(work.work(problem)))


def _need_text(form: Format, out: Path | None, check: list[Path] | None) -> None:
    from regard.errors import WorkError

    if form is not Format.text or out is not None or check:
        raise WorkError("format, out, check: need one problem, got several; try one at a time")


def _show_several(
    told: dict[str, dict[str, Any]], digits: int, names: list[str], autograd: bool
) -> None:
    """One solution after another; a name that is asked for need not be in each."""
    from regard import work

    solutions = {heading: work.work(problem) for heading, problem in told.items()}
    work.need_names(names, *solutions.values())
    for n, (heading, solution) in enumerate(solutions.items()):
        print(("\n" if n else "") + f"--- {heading}\n")
        here = [name for name in names if work.has_name(solution, name)]
        if here or not (names or autograd):
            print(work.as_text(solution, digits, here))
        if autograd:
            print(("\n" if here else "") + work.autograd_as_text(work.by_autograd(solution)))


def _show(
    solution: "Solution", form: Format, out: Path | None, digits: int, names: list[str]
) -> None:
    import sys

    from regard import work

    if out is not None:
        text = work.shown_as(solution, form.value, digits, names)
        print(f"{work.write_page(out, text)}: {len(solution.steps)} steps")
    elif form is Format.text and sys.stdout.isatty():
        from rich.console import Console  # colours where there is somebody to see them

        Console(highlight=False).print(work.as_rich(solution, digits, names), soft_wrap=True)
    else:
        print(work.shown_as(solution, form.value, digits, names))


def _check(solution: "Solution", places: list[Path]) -> None:
    """One paper in full, or a table of many; 3 comes back where something is wrong."""
    from regard import work

    if len(places) == 1 and not places[0].is_dir():
        findings = work.check(solution, work.read_toml(places[0]))
        print(work.findings_as_text(findings, [step.name for step in solution.steps]))
        raise typer.Exit(
            3 if work.first_wrong(findings) else 0 if work.is_finished(findings) else 1
        )
    found = work.papers(solution, places)
    print(work.papers_as_text(found))
    wrong = any(paper.is_wrong for paper in found)
    raise typer.Exit(3 if wrong else 0 if all(paper.is_right for paper in found) else 1)


def _make(exercises: list, form: Format, out: Path | None, solutions: bool) -> None:
    from regard import work

    if out is None:
        print(work.sheet_as(exercises, form.value, solutions))
        return
    for file in work.write_sheet(exercises, form.value, out):
        print(file)
