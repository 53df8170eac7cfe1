"""Exercise sheets and their solutions in every format."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from regard.errors import WorkError
from regard.files import is_stream, make_folder, write_text
from regard.work.making.exercise import Exercise
from regard.work.show.html import given_html, html_body, render_page
from regard.work.show.latex import LATEX, MARKDOWN, Markup, latex_document, mark_up, tex_equation
from regard.work.show.mathml import tex_to_mathml
from regard.work.show.shapes import detect_convention
from regard.work.show.text import as_text
from regard.work.solution import tex_name


def format_sheet(exercises: Sequence[Exercise], fmt: str = "text", solutions: bool = False) -> str:
    """Format exercises, or their solutions.

    >>> print(format_sheet(rg.work.make_sheet("rnn", seed=1, count=1)).splitlines()[0])
    Exercises: rnn
    """
    if fmt not in SHEET_FORMATS:
        raise WorkError(f"fmt: needs one of {', '.join(SHEET_FORMATS)}, got {fmt!r}")
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
        for text in ((file, _problem_toml(one)), (_beside(file, "answers"), blank_answers(one)))
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


def _asked(names: Sequence[str]) -> str:
    *most, last = names
    return f"Find {', '.join(most)} and {last}." if most else f"Find {last}."


def _chosen(one: Exercise) -> str:
    """Family, convention, and options that the given matrices do not show."""
    shown = ("samples", "family", "given", "scale", "convention")
    options = [f"{name}: {value}" for name, value in one.problem.items() if name not in shown]
    return "; ".join(filter(None, [one.solution.family, detect_convention(one.solution), *options]))


def _text(exercises: Sequence[Exercise], solutions: bool) -> str:
    parts = [_title(exercises, solutions)]
    for n, one in enumerate(exercises, 1):
        only = () if solutions else [*one.solution.given]
        parts += [f"\n=== {n} ===", as_text(one.solution, only=only)]
        parts += [] if solutions else [_chosen(one), _asked(one.questions)]
    return "\n".join(parts)


def _mark_up(markup: Markup, exercises: Sequence[Exercise], solutions: bool) -> list[str]:
    title, number, _ = markup.headings
    parts = [title.format(markup.escape(_title(exercises, solutions)))]
    for n, one in enumerate(exercises, 1):
        parts.append(number.format(n))
        if solutions:
            parts += mark_up(markup, one.solution, level=3)
            continue
        parts += [markup.equation.format(tex_equation(*x)) for x in one.solution.given.items()]
        parts.append(markup.paragraph.format(markup.escape(_chosen(one))))
        parts.append(_asked([f"${tex_name(name)}$" for name in one.questions]))
    return parts


def _html(exercises: Sequence[Exercise], solutions: bool) -> str:
    parts = []
    for n, one in enumerate(exercises, 1):
        if solutions:
            body = html_body(one.solution, id_prefix=f"{n}-", level=3)
            parts.append(f'<div id="exercise-{n}" class="new"><h2>{n}</h2>\n{body}</div>')
            continue
        asked = _asked([tex_to_mathml(tex_name(name)) for name in one.questions])
        parts.append(
            f'<section id="exercise-{n}"><h2>{n}</h2>{given_html(one.solution.given)}'
            f'<p class="soft">{escape(_chosen(one))}</p>'
            f'<p>{asked}</p><div class="answer"></div></section>'
        )
    facts = f"{len(exercises)} of them, {exercises[0].name.rpartition('-')[0]}"
    links = {f"exercise-{n}": str(n) for n in range(1, len(exercises) + 1)}
    return render_page(_title(exercises, solutions), facts, "\n".join(parts), links)


def _toml(exercises: Sequence[Exercise], solutions: bool) -> str:
    _check_single(exercises)
    if not solutions:
        return _problem_toml(exercises[0])
    solution, questions = exercises[0].solution, exercises[0].questions
    answers = {name: [[*map(str, row)] for row in solution[name].tolist()] for name in questions}
    return "\n".join([*_toml_lines(answers), ""])


def _check_single(exercises: Sequence[Exercise]) -> None:
    if len(exercises) != 1:
        raise WorkError(f"count: needs 1 for TOML, got {len(exercises)}; try --out FOLDER")


def _problem_toml(one: Exercise) -> str:
    options = {name: value for name, value in one.problem.items() if name != "given"}
    title = f"# {one.name}: {_asked(one.questions)}"
    given = _toml_lines(one.problem["given"])
    return "\n".join([title, *_toml_lines(options), "", "[given]", *given, ""])


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
