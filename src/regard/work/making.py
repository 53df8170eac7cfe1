"""Random exercises with simple numbers, and sheets of them."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import RegardError, WorkError, check_choice
from regard.files import is_stream, make_folder, write_text
from regard.formulas import FormulaTree, parse_name
from regard.work.exact import evaluate_digits, is_infinity
from regard.work.families.registry import FAMILIES, ExerciseTemplate, exercise_families
from regard.work.problem import solve
from regard.work.show.formats import (
    LATEX,
    MARKDOWN,
    Markup,
    given_html,
    html_body,
    latex_document,
    mark_up,
    render_page,
)
from regard.work.show.text import as_text, detect_convention, matches_any, value_equation
from regard.work.solution import Solution

ENTRY_CHOICES = ((-1, 0, 1, 2), (-2, -1, 0, 1, 2), (-2, -1, "-1/2", 0, "1/2", 1, 2))  # by level
SPARSE_ENTRY_CHOICES = ((-1, 0, 1), (-1, 0, 0, 1), (-1, 0, 0, "1/2", 1))  # for sums of many terms
MAX_DRAWS = 300
MAX_ACTIVATION_INPUT = 4  # of exp, σ and tanh: larger ones saturate
MAX_NUMERATOR, MAX_DENOMINATOR = 24, 8
MAX_EXERCISES = 100  # per sheet
MAX_VARIANTS = 400  # that are drawn in vain before a family counts as exhausted


class Exercise(NamedTuple):
    """A problem, its solution, and the names of the steps asked for."""

    name: str
    problem: Mapping[str, Any]
    solution: Solution
    questions: tuple[str, ...]


def make_exercise(
    family: str,
    seed: int = 0,
    level: int = 1,
    variant: int = 1,
    options: Mapping[str, Any] | None = None,
) -> Exercise:
    """Generate an exercise with simple numbers.

    Args:
        family: one of `exercise_families()`.
        seed: random seed.
        level: difficulty, 1 to 3.
        variant: number of the exercise on a sheet.
        options: of the family, in place of those that the level draws; "none" leaves one out.

    >>> make_exercise("rnn", seed=3).problem == make_exercise("rnn", seed=3).problem
    True
    """
    check_choice("family", family, exercise_families(), WorkError)
    if not 1 <= level <= 3:
        raise WorkError(f"level: needs 1, 2 or 3, got {level}")
    for option in options or ():
        check_choice("set", option, FAMILIES[family].options, WorkError)
    name = f"{family}-{level}-{seed}-{variant}"
    template = FAMILIES[family].exercises[level - 1]
    rng = random.Random(name)  # seeded by a string: the same on every machine
    refused: RegardError | None = None
    for _ in range(MAX_DRAWS):
        problem = _draw_problem(family, level, rng, options or {})
        try:
            solution = solve(problem)
        except RegardError as error:  # a divisor that does not divide, a variance of 0
            refused = error
            continue
        if _is_simple(solution, template):
            names = [step.name for step in solution.steps]
            questions = tuple(name for name in names if matches_any(name, template.questions))
            return Exercise(name, problem, solution, questions)
    if refused is not None and options:
        raise refused  # an option that this level's matrices do not fit
    raise WorkError(f"seed: needs one that gives simple numbers, got {seed}; try another")


def make_sheet(family: str, seed: int = 0, level: int = 1, count: int = 4) -> list[Exercise]:
    """Generate `count` distinct exercises; raises a WorkError where there are fewer.

    >>> [one.name for one in make_sheet("counts", count=2)]
    ['counts-1-0-1', 'counts-1-0-2']
    """
    if not 1 <= count <= MAX_EXERCISES:
        raise WorkError(f"count: needs 1 to {MAX_EXERCISES}, got {count}")
    exercises: list[Exercise] = []
    for number in range(1, MAX_VARIANTS + count):
        one = make_exercise(family, seed, level, number)
        if all(one.problem != other.problem for other in exercises):
            name = f"{family}-{level}-{seed}-{len(exercises) + 1}"
            exercises.append(one._replace(name=name))
        if len(exercises) == count:
            return exercises
    most = len(exercises)
    raise WorkError(
        f"count: needs at most {most}, as many as {family} has at level {level}, got {count}; "
        f"try --count {most}, or another level"
    )


def _draw_problem(
    family: str, level: int, rng: random.Random, options_set: Mapping[str, Any]
) -> dict[str, Any]:
    template, options = FAMILIES[family].exercises[level - 1], FAMILIES[family].options
    given: dict[str, Any] = {}
    for name, (rows, columns) in template.shapes.items():
        of_level = (SPARSE_ENTRY_CHOICES if columns > 2 else ENTRY_CHOICES)[level - 1]
        entries = template.entries or of_level
        cells = [[rng.choice(entries) for _ in range(columns)] for _ in range(rows)]
        given[name] = cells[0][0] if rows == columns == 1 else cells
    for name, (size, _) in template.permutations.items():
        order, signs = rng.sample(range(size), size), rng.choices((1, 1, -1), k=size)
        given[name] = [[signs[i] * (j == order[i]) for j in range(size)] for i in range(size)]
    # given numbers before options: a seed draws the same problem whatever the order of `choices`
    names = sorted(template.choices, key=options.__contains__)
    values = {name: rng.choice(template.choices[name]) for name in names}
    given |= {name: value for name, value in values.items() if name not in options}
    drawn = {name: values[name] for name in names if name in options}
    chosen = {name: x for name, x in {**drawn, **options_set}.items() if x != "none"}
    return {"family": family, **chosen, "given": given}


def _is_simple(solution: Solution, template: ExerciseTemplate) -> bool:
    """Whether fractions are short, activations not saturated, and matrices not constant."""
    values = solution.values()
    for step in solution.steps:
        if step.rule in ("exp", "sigmoid", "tanh"):
            inside = [x for x in values[step.inputs[0]] if not is_infinity(x)]
            if any(abs(float(evaluate_digits(x, 9))) > MAX_ACTIVATION_INPUT for x in inside):
                return False
        rationals = [x for x in step.value if x.is_Rational]
        is_long = any(abs(x.p) > MAX_NUMERATOR or x.q > MAX_DENOMINATOR for x in rationals)
        if template.shapes and is_long:
            return False
    if not template.shapes:  # chosen numbers are simple already
        return True
    drawn = [v for name, v in solution.given.items() if name in template.shapes and len(v) > 1]
    varied = all(len(set(v)) > 1 and all(any(v.row(i)) for i in range(v.rows)) for v in drawn)
    # the last may be a difference that has to be 0
    return varied and any(x != 0 for step in solution.steps[-3:] for x in step.value)


def format_sheet(exercises: Sequence[Exercise], fmt: str = "text", solutions: bool = False) -> str:
    """Format exercises, or their solutions.

    >>> print(format_sheet(rg.work.make_sheet("rnn", seed=1, count=1)).splitlines()[0])
    Exercises: rnn
    """
    check_choice("fmt", fmt, SHEET_FORMATS, WorkError)
    return SHEET_FORMATS[fmt](exercises, solutions)


def write_sheet(exercises: Sequence[Exercise], fmt: str, path: str | Path) -> list[Path]:
    """Write a sheet and its solutions; as TOML, one problem and one blank answer file per exercise.

    A single exercise may go to a path that ends in .toml.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [file.name for file in write_sheet(rg.work.make_sheet("rnn", count=1), "toml", folder)]
    ['rnn-1-0-1.toml', 'rnn-1-0-1-answers.toml']
    """
    place = Path(path)
    if fmt != "toml":
        written = [write_text(place, format_sheet(exercises, fmt))]
        if not is_stream(place):  # no second file next to /dev/stdout
            solutions = format_sheet(exercises, fmt, solutions=True)
            written.append(write_text(_beside(place, "solutions"), solutions))
        return written
    if place.suffix == ".toml":
        _check_single(exercises)
        files = {place: exercises[0]}
    else:
        files = {make_folder(place) / f"{one.name}.toml": one for one in exercises}
    return [
        write_text(*text)
        for file, one in files.items()
        for text in ((file, problem_toml(one)), (_beside(file, "answers"), blank_answers(one)))
    ]


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.stem}-{what}{path.suffix}")


def blank_answers(exercise: Exercise) -> str:
    """Blank answer file (TOML) of an exercise."""
    note = '# A number for each ?: 0.25, "1/4", "sqrt(2)". What is left open is not checked.'
    answers = [(name, exercise.solution[name]) for name in exercise.questions]
    blanks = {name: [["?"] * value.cols] * value.rows for name, value in answers}
    return "\n".join([note, *_toml_lines(blanks), ""])


def _title(exercises: Sequence[Exercise], solutions: bool) -> str:
    families = ", ".join(dict.fromkeys(one.solution.family for one in exercises))
    return f"{'Solutions' if solutions else 'Exercises'}: {families}"


def _question_list(names: Sequence[str]) -> str:
    *most, last = names
    return f"Find {', '.join(most)} and {last}." if most else f"Find {last}."


def equations(one: Exercise) -> list[FormulaTree]:
    """The equations that an exercise is marked by, of its first time step, layer or head."""
    needed = set(one.questions)
    for step in reversed(one.solution.steps):
        needed |= set(step.inputs) if step.name in needed else set()
    first: dict[str, FormulaTree] = {}
    for step in one.solution.steps:
        if step.name in needed:
            first.setdefault(re.sub(r"\d+", "", step.equation.text), step.equation)
    return list(first.values())


def chosen_options(one: Exercise) -> str:
    """Family, convention, and options that the given matrices do not show."""
    shown = ("samples", "family", "given", "scale", "convention")
    options = [f"{name}: {value}" for name, value in one.problem.items() if name not in shown]
    return "; ".join(filter(None, [one.solution.family, detect_convention(one.solution), *options]))


def _text(exercises: Sequence[Exercise], solutions: bool) -> str:
    parts = [_title(exercises, solutions)]
    for n, one in enumerate(exercises, 1):
        only = () if solutions else [*one.solution.given]
        parts += [f"\n=== {n} ===", as_text(one.solution, only=only)]
        if not solutions:
            lines = (f"  {formula.text}" for formula in equations(one))
            parts += [chosen_options(one), "Marked by:", *lines, _question_list(one.questions)]
    return "\n".join(parts)


def _mark_up(markup: Markup, exercises: Sequence[Exercise], solutions: bool) -> list[str]:
    title, number, _ = markup.headings
    parts = [title.format(markup.escape(_title(exercises, solutions)))]
    for n, one in enumerate(exercises, 1):
        parts.append(number.format(n))
        if solutions:
            parts += mark_up(markup, one.solution, level=3)
            continue
        parts += [
            markup.equation.format(value_equation(*x).tex) for x in one.solution.given.items()
        ]
        parts.append(markup.paragraph.format(markup.escape(chosen_options(one))))
        parts.append(markup.paragraph.format("Marked by:"))
        parts += [markup.equation.format(formula.tex) for formula in equations(one)]
        parts.append(_question_list([f"${parse_name(name).tex}$" for name in one.questions]))
    return parts


def _html(exercises: Sequence[Exercise], solutions: bool) -> str:
    parts = []
    for n, one in enumerate(exercises, 1):
        if solutions:
            body = html_body(one.solution, id_prefix=f"{n}-", level=3)
            parts.append(f'<div id="exercise-{n}" class="new"><h2>{n}</h2>\n{body}</div>')
            continue
        questions = _question_list([parse_name(name).mathml() for name in one.questions])
        items = "".join(f"<li>{formula.mathml()}</li>" for formula in equations(one))
        marked_by = f"<p>Marked by:</p><ul>{items}</ul>"
        parts.append(
            f'<section id="exercise-{n}"><h2>{n}</h2>{given_html(one.solution.given)}'
            f'<p class="soft">{escape(chosen_options(one))}</p>{marked_by}'
            f'<p>{questions}</p><div class="answer"></div></section>'
        )
    facts = f"{len(exercises)} of them, {exercises[0].name.rpartition('-')[0]}"
    links = {f"exercise-{n}": str(n) for n in range(1, len(exercises) + 1)}
    return render_page(_title(exercises, solutions), facts, "\n".join(parts), links)


def _toml(exercises: Sequence[Exercise], solutions: bool) -> str:
    _check_single(exercises)
    if not solutions:
        return problem_toml(exercises[0])
    solution, questions = exercises[0].solution, exercises[0].questions
    answers = {name: [[*map(str, row)] for row in solution[name].tolist()] for name in questions}
    return "\n".join([*_toml_lines(answers), ""])


def _check_single(exercises: Sequence[Exercise]) -> None:
    if len(exercises) != 1:
        raise WorkError(f"count: needs 1 for TOML, got {len(exercises)}; try --out FOLDER")


def problem_toml(one: Exercise) -> str:
    tables = {name: x for name, x in one.problem.items() if isinstance(x, Mapping)}
    options = {name: value for name, value in one.problem.items() if name not in tables}
    lines = [f"# {one.name}: {_question_list(one.questions)}", *_toml_lines(options)]
    for name, values in tables.items():
        lines += ["", f"[{name}]", *_toml_lines(values)]
    return "\n".join([*lines, ""])


def _toml_lines(values: Mapping[str, Any]) -> list[str]:
    """One line per key; TOML writes these values as JSON does."""
    return [
        f"{name if re.fullmatch('[A-Za-z0-9_]+', name) else json.dumps(name, ensure_ascii=False)}"
        f" = {json.dumps(value, ensure_ascii=False)}"
        for name, value in values.items()
    ]


SHEET_FORMATS: dict[str, Callable[[Sequence[Exercise], bool], str]] = {
    "text": _text,
    "markdown": lambda *sheet: "\n\n".join(_mark_up(MARKDOWN, *sheet)),
    "latex": lambda *sheet: latex_document(_mark_up(LATEX, *sheet)),
    "html": _html,
    "toml": _toml,
}
