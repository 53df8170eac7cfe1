"""`regard work`: a problem solved by hand, step by step, and answers checked."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
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
        Format | None,
        typer.Option(
            "--format", help="How to write it: text, or as --out ends; toml is for exercises."
        ),
    ] = None,
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

    options = {
        "check": check,
        "only": only,
        "shapes": shapes,
        "autograd": autograd,
        "set": chosen,
        "each": each,
    }
    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    to = form.value if form else work.infer_format(out)
    if make is not None:
        _need_none("make", options | {"problem": problems})
        _make(work.make_sheet(make, seed, level, count), to, out, solutions)
        return
    if not problems:
        _need_none("problem", options | {"format": form, "out": out, "solutions": solutions})
        _list()
        return
    if check:
        _need_none("check", {k: options[k] for k in ("only", "shapes", "autograd")})
    told = _gone_through(problems, dict(map(_choice, chosen or [])), each)
    if shapes:
        _need_text("shapes", to)
        _shapes(told, out)
    elif len(told) > 1:
        _need_one(check)
        _show_several(told, to, out, digits, names, autograd)
    elif check:
        _check(work.solve(*told.values()), check, to, out)
    else:
        _show(work.solve(*told.values()), to, out, digits, names, autograd)


def _need_none(what: str, others: dict[str, Any]) -> None:
    """Raise where an option would be dropped without a word."""
    from regard.errors import WorkError

    dropped = [name for name, value in others.items() if value]
    if dropped and what == "problem":
        raise WorkError(f"problem: needs a TOML file or a name for {dropped[0]}, got none")
    if dropped:
        raise WorkError(f"{what}: needs to be without {' and '.join(dropped)}, got both")


def _need_text(what: str, form: str) -> None:
    from regard.errors import WorkError

    if form != "text":
        raise WorkError(f"format: needs text for {what}, got {form}")


def _need_one(check: list[Path] | None) -> None:
    from regard.errors import WorkError

    if check:
        raise WorkError("check: needs one problem, got several; try one at a time")


def _write(text: str, out: Path | None, says: str = "") -> None:
    """To the terminal, or to a file whose path is then said."""
    from regard import work
    from regard.cli.progress import report_written

    if out is None:
        print(text)
        return
    report_written(out, f"{work.write_page(out, text)}{says and ': '}{says}")


def _list() -> None:
    from regard import work

    titles = work.problem_titles()
    wide = max(map(len, titles))
    print("\n".join(f"{name:<{wide}}  {title}" for name, title in titles.items()))
    print("\nregard work three-tokens works one; a TOML file of your own is worked the same way.")
    print(
        "Exercises are made of " + ", ".join(work.EXERCISE_TEMPLATES) + ": regard work --make rnn."
    )


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


def _shapes(told: dict[str, dict[str, Any]], out: Path | None) -> None:
    """One after another, each worked when the one before it is told."""
    from regard import work

    parts = []
    for heading, problem in told.items():
        text = work.shapes_as_text(work.solve(problem))
        parts.append(f"--- {heading}\n\n{text}" if len(told) > 1 else text)
        if out is None:
            print(("\n" if len(parts) > 1 else "") + parts[-1])
    if out is not None:
        _write("\n\n".join(parts), out)


def _show_several(
    told: dict[str, dict[str, Any]],
    form: str,
    out: Path | None,
    digits: int,
    names: list[str],
    autograd: bool,
) -> None:
    """One solution after another; a name that is asked for need not be in each."""
    from regard import work

    solutions = {heading: work.solve(problem) for heading, problem in told.items()}
    says = f"{len(solutions)} solutions"
    if not autograd:
        _write(work.format_solutions(solutions, form, digits, names), out, says)
        return
    _need_text("autograd", form)
    work.check_names(names, *solutions.values())
    parts = []
    for heading, solution in solutions.items():
        here = [name for name in names if work.has_name(solution, name)]
        shown = [work.as_text(solution, digits, here)] if here else []
        held = work.autograd_as_text(work.compare_with_autograd(solution))
        parts.append("\n\n".join([f"--- {heading}", *shown, held]))
    _write("\n\n".join(parts), out, says)


def _show(
    solution: "Solution",
    form: str,
    out: Path | None,
    digits: int,
    names: list[str],
    autograd: bool,
) -> None:
    import sys

    from regard import work

    says = f"{len(solution.steps)} steps"
    if autograd:
        _need_text("autograd", form)
        shown = [work.as_text(solution, digits, names)] if names else []
        held = work.autograd_as_text(work.compare_with_autograd(solution))
        _write("\n\n".join([*shown, held]), out, says)
    elif out is None and form == "text" and sys.stdout.isatty():
        from rich.console import Console  # colours where there is somebody to see them

        Console(highlight=False).print(work.as_rich(solution, digits, names), soft_wrap=True)
    else:
        _write(work.format_solution(solution, form, digits, names), out, says)


def _check(solution: "Solution", places: list[Path], form: str, out: Path | None) -> None:
    """One paper in full, or a table of many.

    3 comes back where something is wrong or cannot be read, 1 where nothing is but something on a
    sheet is still open or a sheet is blank, else 0.
    """
    from regard import work

    if len(places) == 1 and not places[0].is_dir():
        findings = work.check_answers(solution, work.read_toml(places[0]))
        marks = work.marks_from_findings(findings, [step.name for step in solution.steps])
        wrong, finished = work.first_wrong(findings) is not None, work.is_complete(findings)
    else:
        found = work.check_submissions(solution, places)
        marks = work.marks_from_submissions(found)
        wrong = any(paper.is_wrong for paper in found)
        finished = all(paper.is_correct for paper in found)
    title = f"Marks: {places[0].stem}" if len(places) == 1 else "Marks"
    _write(work.format_marks(marks, form, title), out, marks.summary[0])
    raise typer.Exit(3 if wrong else 0 if finished else 1)


def _make(exercises: list, form: str, out: Path | None, solutions: bool) -> None:
    from regard import work
    from regard.cli.progress import report_written

    if out is None:
        print(work.format_sheet(exercises, form, solutions))
        return
    for file in work.write_sheet(exercises, form, out):
        report_written(out, str(file))
