"""The work view: exercises solved step by step, and answers marked with diagnoses."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

from pydantic import Field

from regard import work as exercises
from regard.errors import ConfigError, WorkError, suggestion
from regard.web.explorer.explorer import Explorer, QueryRequest, Rows, query
from regard.web.jobs import Job
from regard.work import check_answers, format_solution
from regard.work.exact import format_decimal, format_plain, is_short_form, parse_number
from regard.work.families import FAMILIES, exercise_families
from regard.work.making import Exercise, format_sheet, make_exercise
from regard.work.problem import COMMON_KEYS, parse_option
from regard.work.show.marks import marks_from_findings
from regard.work.show.text import DisplayStep, select, value_equation
from regard.work.solution import checking

DEFAULT = "three-tokens"
MAX_TEXT = 40_000  # characters of the changed numbers, and of the answers
MAX_SIDE, MAX_NUMBERS = 16, 600  # of a matrix; of all together
MAX_SECONDS = 20.0
DIGITS = 6


class WorkRequest(QueryRequest):
    """A built-in problem, or a generated exercise of a family, and what is changed of it."""

    problem: str = Field(DEFAULT, max_length=60)
    family: str | None = Field(None, max_length=60)
    level: int = Field(1, ge=1, le=3)
    seed: int = Field(0, ge=0, le=1_000_000)
    given: str | None = Field(None, max_length=MAX_TEXT)  # JSON: {"X": [["1/2", "0"]]}
    options: str | None = Field(None, max_length=2_000)  # JSON: {"scale": "1"}


class WorkViewRequest(WorkRequest):
    """An exercise, and what is solved of it."""

    mode: Literal["see", "solve"] = "see"
    answers: str | None = Field(None, max_length=MAX_TEXT)  # JSON, as of the check


class AnswersRequest(WorkRequest):
    """Answers to mark."""

    answers: str = Field(max_length=MAX_TEXT)  # JSON: {"S": [["1", "?"]]}


class SheetRequest(WorkRequest):
    """A format to write the problem or its solution in."""

    format: Literal["toml", "latex", "markdown", "text"] = "toml"


class Chosen(NamedTuple):
    """A problem with the changes of the form applied, and the steps to be answered."""

    name: str
    title: str
    problem: dict[str, Any]
    questions: tuple[str, ...]  # empty: all


def work_table(response: dict[str, Any]) -> Rows:
    """One row per entry of each step."""
    entries = [
        [step["name"], i + 1, j + 1, exact, step["rounded"][i][j]]
        for step in response["steps"]
        for i, row in enumerate(step["exact"])
        for j, exact in enumerate(row)
    ]
    return [["step", "row", "column", "exact", "rounded"], *entries]


def _related(request: WorkViewRequest, response: Any) -> list[tuple[str, dict[str, Any]]]:
    if request.mode == "see" or not request.answers:
        return []
    body, answers = request.model_dump(exclude_unset=True, exclude={"mode"}), request.answers
    with suppress(ValueError):  # as the page writes them; the check refuses what is no JSON
        answers = json.dumps(json.loads(answers), ensure_ascii=False, separators=(",", ":"))
    return [("work.check", body | {"answers": answers})]


@query("work", WorkViewRequest, table=work_table, related=_related)
def answer_work(explorer: Explorer, request: WorkRequest, job: Job) -> dict[str, Any]:
    """An exercise and its solution, step by step, as MathML and text."""
    with _limited(job):
        chosen = _choose(request)
        solution = exercises.solve(chosen.problem)
        shown = select(solution, DIGITS)
        steps = [_step(one, len(shown.steps), job) for one in shown.steps]
    family = FAMILIES[solution.family]
    options = {k: v for k, v in chosen.problem.items() if k not in COMMON_KEYS}
    return {
        "name": chosen.name,
        "title": chosen.title,
        "family": solution.family,
        "given": {  # texts, row by row
            name: [list(map(_as_text, row)) for row in _rows(x)]
            for name, x in chosen.problem["given"].items()
        },
        "symbols": solution.symbols,
        "options": {name: _as_text(options.get(name, "")) for name in family.options},
        "added": [  # such as the scale that follows from the width
            {"name": name, "mathml": value_equation(name, value, DIGITS).mathml()}
            for name, value in solution.given.items()
            if name not in chosen.problem["given"]
        ],
        "questions": list(chosen.questions) or [step["name"] for step in steps],
        "steps": steps,
        "remarks": list(solution.remarks),
        "problems": exercises.problem_titles(),
        "families": exercise_families(),
    }


@query("work.check", AnswersRequest)
def answer_work_check(explorer: Explorer, request: AnswersRequest, job: Job) -> dict[str, Any]:
    """Verdict and likely mistake of each answered step; blanks are not checked."""
    answers = _parse_tables("answers", request.answers)
    with _limited(job):
        solution = exercises.solve(_choose(request).problem)
        job.report(0.3, "marking")
        findings = check_answers(solution, answers)
    marks = marks_from_findings(findings)
    return {"findings": marks.data["steps"], "summary": marks.summary, "is_wrong": marks.is_wrong}


@query("work.text", SheetRequest)
def answer_work_text(explorer: Explorer, request: SheetRequest, job: Job) -> dict[str, Any]:
    """The problem as TOML, or its solution as LaTeX, Markdown or plain text."""
    with _limited(job):
        chosen = _choose(request)
        solution = exercises.solve(chosen.problem)
        if request.format != "toml":
            return {"text": format_solution(solution, request.format, DIGITS)}
        questions = chosen.questions or tuple(step.name for step in solution.steps)
        exercise = Exercise(chosen.name, chosen.problem, solution, questions)
        return {"text": format_sheet([exercise], "toml")}


# ---- problems


def _choose(request: WorkRequest) -> Chosen:
    if request.family is not None:
        exercise = make_exercise(request.family, request.seed, request.level)
        title = f"Exercise of level {request.level}: {request.family}"
        chosen = Chosen(exercise.name, title, dict(exercise.problem), exercise.questions)
    else:
        titles = exercises.problem_titles()
        if request.problem not in titles:  # a name, never a path
            near = suggestion(request.problem, titles)
            raise ConfigError(f"problem: needs a name of the list, got {request.problem!r}{near}")
        problem = exercises.read_problem(request.problem)
        chosen = Chosen(request.problem, titles[request.problem], problem, ())
    if request.given is not None:
        given = _parse_tables("given", request.given)
        _check_given(given, chosen.problem)
        before = chosen.problem["given"]
        chosen.problem["given"] = {name: _like(before.get(name), x) for name, x in given.items()}
    if request.options is not None:
        _set_options(chosen.problem, request.options)
    return chosen


def _parse_tables(name: str, text: str) -> dict[str, Any]:
    """Tables of texts by name, from JSON."""
    try:
        tables = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(
            f'{name}: needs JSON such as {{"X": [["1/2"]]}}, got another text'
        ) from None
    if not isinstance(tables, dict) or len(tables) > 64:
        raise ConfigError(f"{name}: needs an object of at most 64 tables, got something else")
    for table in tables.values():
        rows = table if isinstance(table, list) else [table]
        cells = [x for row in rows for x in (row if isinstance(row, list) else [row])]
        if not all(isinstance(x, str | int) for x in cells):
            raise ConfigError(f"{name}: needs rows of texts, got something else")
    return tables


def _check_given(given: dict[str, Any], problem: Mapping[str, Any]) -> None:
    """Raise an error that names the entry which cannot be read, or the matrix that is too large."""
    symbols = [*(problem.get("symbols") or ()), *(problem.get("values") or ())]
    total = 0
    for name, table in given.items():
        rows = [row if isinstance(row, list) else [row] for row in _rows(table)]
        sides, total = (len(rows), *map(len, rows)), total + sum(map(len, rows))
        if max(sides) > MAX_SIDE or min(sides) < 1:
            got = f"{len(rows)} × {max(sides[1:], default=0)}"
            raise WorkError(f"{name}: needs 1 to {MAX_SIDE} rows and columns, got {got}")
        cells = ((i, j, x) for i, row in enumerate(rows, 1) for j, x in enumerate(row, 1))
        for i, j, x in cells:
            label = f"{name} ({i},{j})"
            if not str(x).strip():
                raise WorkError(f"{label}: needs a number, got nothing; try 0")
            try:
                parse_number(x, symbols)
            except WorkError as error:
                raise type(error)(f"{label}{str(error).removeprefix('number')}") from None
    if total > MAX_NUMBERS:
        raise WorkError(f"given: needs at most {MAX_NUMBERS} numbers in all, got {total}")


def _like(before: Any, table: Any) -> Any:
    """A table of the form in the shape that the problem has: a number, a row or rows."""
    rows = [
        [int(x) if re.fullmatch(r"-?\d{1,18}", str(x)) else x for x in row] for row in _rows(table)
    ]
    if not isinstance(before, list) and before is not None and [len(x) for x in rows] == [1]:
        return rows[0][0]
    is_flat = isinstance(before, list) and not isinstance(before[0], list)
    return rows[0] if is_flat and len(rows) == 1 else rows


def _set_options(problem: dict[str, Any], text: str) -> None:
    for name, value in _parse_tables("options", text).items():
        if name in COMMON_KEYS:
            raise WorkError(f"options: need names of options, got {name!r}")
        problem.pop(name, None)
        if str(value).strip().startswith("["):  # such as the scales to compare
            problem |= _parse_tables(name, f'{{"{name}": {value}}}')
        elif str(value).strip():  # empty: the default
            problem |= dict([parse_option(f"{name}={value}")])


@contextmanager
def _limited(job: Job) -> Iterator[None]:
    """Stop exact arithmetic that takes too long, or that nobody waits for."""
    end = time.monotonic() + MAX_SECONDS

    def check() -> None:
        job.check()
        if time.monotonic() > end:
            raise WorkError(
                f"given: needs numbers that are solved exactly in {MAX_SECONDS:.0f} s, got longer "
                "ones; try smaller matrices or simpler numbers"
            )

    job.report(0.0, "solving")
    with checking(check):
        yield
    job.check()  # a family may take the error of a cancelled step for one of its own


# ---- responses


def _step(one: DisplayStep, count: int, job: Job) -> dict[str, Any]:
    job.report(0.5 + one.number / count / 2, "writing")
    step, value = one.step, one.step.value
    rows = [value.row(i) for i in range(value.rows)]
    return {
        "name": step.name,
        "number": one.number,
        "heading": one.heading,
        "formula": step.formula,
        "formula_mathml": step.equation.mathml(display=True),
        "entry": None if one.entry is None else " = ".join(one.entry),
        "results": [tree.mathml(display=True) for tree in one.equations(DIGITS)],
        "rows": value.rows,
        "columns": value.cols,
        "exact": [[format_plain(x) if is_short_form(x) else "" for x in row] for row in rows],
        "rounded": [[format_decimal(x, DIGITS) for x in row] for row in rows],
    }


def _rows(table: Any) -> list[Any]:
    rows = table if isinstance(table, list) else [table]
    return rows if rows and isinstance(rows[0], list) else [rows]


def _as_text(x: Any) -> str:
    if isinstance(x, bool):
        return str(x).lower()
    return x if isinstance(x, str) else json.dumps(x, ensure_ascii=False)
