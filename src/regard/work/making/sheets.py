"""Exercise sheets and their solutions in every format."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from regard.errors import WorkError
from regard.files import is_stream, make_folder, write_text
from regard.work.making.exercise import Exercise
from regard.work.show.html import html_body
from regard.work.show.latex import LATEX_PREAMBLE, as_markdown, latex_lines, tex_equation
from regard.work.show.latex_escape import escape_latex
from regard.work.show.mathml import tex_to_mathml
from regard.work.show.page import render_page
from regard.work.show.shapes import detect_convention
from regard.work.show.text import as_text
from regard.work.solution import tex_name

SUFFIXES = {"text": ".txt", "markdown": ".md", "latex": ".tex", "html": ".html", "toml": ".toml"}


def format_sheet(exercises: Sequence[Exercise], fmt: str = "text", solutions: bool = False) -> str:
    """Format exercises, or their solutions.

    >>> from regard.work import make_sheet
    >>> print(format_sheet(make_sheet("rnn", seed=1, count=1)).splitlines()[0])
    Exercises: rnn
    """
    if fmt not in SHEET_FORMATS:
        raise WorkError(f"fmt: needs one of {', '.join(SHEET_FORMATS)}, got {fmt!r}")
    return SHEET_FORMATS[fmt](exercises, solutions)


def write_sheet(exercises: Sequence[Exercise], fmt: str, path: str | Path) -> list[Path]:
    """Write a sheet and its solutions; as TOML, one problem and one blank answer file per exercise.

    A single exercise may go to a path that ends in .toml.

    >>> import tempfile
    >>> from regard.work import make_sheet
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [file.name for file in write_sheet(make_sheet("rnn", count=1), "toml", folder)]
    ['rnn-1-0-1.toml', 'rnn-1-0-1-answers.toml']
    """
    place = Path(path)
    if fmt != "toml":
        written = [write_text(place, format_sheet(exercises, fmt))]
        if not is_stream(place):  # no second file next to /dev/stdout
            beside = place.with_name(f"{place.stem}-solutions{place.suffix}")
            written.append(write_text(beside, format_sheet(exercises, fmt, solutions=True)))
        return written
    if place.suffix == ".toml":
        beside = place.with_name(f"{place.stem}-answers.toml")
        text = format_sheet(exercises, fmt)
        return [write_text(place, text), write_text(beside, blank_answers(exercises[0]))]
    make_folder(place)
    written = []
    for one in exercises:
        written.append(write_text(place / f"{one.name}.toml", _problem_toml(one)))
        written.append(write_text(place / f"{one.name}-answers.toml", blank_answers(one)))
    return written


def blank_answers(exercise: Exercise) -> str:
    """Blank answer file (TOML) of an exercise.

    >>> from regard.work import make_exercise
    >>> print(blank_answers(make_exercise("rnn", seed=1)).splitlines()[-1])
    h_1 = [["?"]]
    """
    lines = ['# A number for each ?: 0.25, "1/4", "sqrt(2)". What is left open is not checked.']
    values = exercise.solution.values()
    for name in exercise.questions:
        row = "[" + ", ".join(['"?"'] * values[name].cols) + "]"
        lines.append(f"{_key(name)} = [{', '.join([row] * values[name].rows)}]")
    return "\n".join(lines) + "\n"


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
        parts.append(f"\n=== {n} ===")
        if solutions:
            parts.append(as_text(one.solution))
            continue
        parts.append(as_text(one.solution, only=[*one.solution.given]))
        parts += [_chosen(one), _asked(one.questions)]
    return "\n".join(parts)


def _markdown(exercises: Sequence[Exercise], solutions: bool) -> str:
    parts = [f"# {_title(exercises, solutions)}"]
    for n, one in enumerate(exercises, 1):
        parts.append(f"## {n}")
        if solutions:
            parts.append(as_markdown(one.solution).replace("## ", "### "))
            continue
        parts += [
            f"$$ {tex_equation(name, value)} $$" for name, value in one.solution.given.items()
        ]
        parts += [_chosen(one), _asked([f"${tex_name(a)}$" for a in one.questions])]
    return "\n\n".join(parts)


def _latex(exercises: Sequence[Exercise], solutions: bool) -> str:
    lines = [*LATEX_PREAMBLE, f"\\section*{{{escape_latex(_title(exercises, solutions))}}}"]
    for n, one in enumerate(exercises, 1):
        lines.append(f"\\subsection*{{{n}}}")
        if solutions:
            lines += [x.replace("\\section*", "\\paragraph*") for x in latex_lines(one.solution)]
            continue
        lines += [
            f"\\[ {tex_equation(name, value)} \\]" for name, value in one.solution.given.items()
        ]
        lines += [escape_latex(_chosen(one)), ""]
        lines.append(_asked([f"${tex_name(a)}$" for a in one.questions]))
    return "\n".join([*lines, "\\end{document}", ""])


def _html(exercises: Sequence[Exercise], solutions: bool) -> str:
    parts, links = [], {}
    for n, one in enumerate(exercises, 1):
        links[f"exercise-{n}"] = str(n)
        if solutions:
            inside = html_body(one.solution, id_prefix=f"{n}-").replace("<h2", "<h3")
            parts.append(f'<div id="exercise-{n}" class="new"><h2>{n}</h2>')
            parts.append(inside.replace("</h2>", "</h3>") + "</div>")
            continue
        given = "".join(
            f'<div class="wide">{tex_to_mathml(tex_equation(*x))}</div>'
            for x in one.solution.given.items()
        )
        asks = _asked([tex_to_mathml(tex_name(a)) for a in one.questions])
        chosen = f'<p class="soft">{escape(_chosen(one))}</p>'
        parts.append(
            f'<section id="exercise-{n}"><h2>{n}</h2><div class="row">{given}</div>{chosen}'
            f'<p>{asks}</p><div class="answer"></div></section>'
        )
    facts = f"{len(exercises)} of them, {exercises[0].name.rpartition('-')[0]}"
    return render_page(_title(exercises, solutions), facts, "\n".join(parts), links)


def _toml(exercises: Sequence[Exercise], solutions: bool) -> str:
    if len(exercises) != 1:
        raise WorkError(f"count: needs 1 for TOML, got {len(exercises)}; try --out FOLDER")
    return _problem_toml(exercises[0]) if not solutions else _answers_toml(exercises[0])


def _answers_toml(one: Exercise) -> str:
    values = one.solution.values()
    lines = (f"{_key(a)} = {_value([[str(x) for x in r] for r in values[a].tolist()])}"
             for a in one.questions)  # fmt: skip
    return "\n".join(lines) + "\n"


def _problem_toml(one: Exercise) -> str:
    lines = [f"# {one.name}: {_asked(one.questions)}"]
    lines += [f"{k} = {_value(v)}" for k, v in one.problem.items() if k != "given"]
    lines += ["", "[given]"]
    lines += [f"{_key(k)} = {_value(v)}" for k, v in one.problem["given"].items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").isalnum() else f'"{name}"'


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


SHEET_FORMATS: dict[str, Callable[[Sequence[Exercise], bool], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "html": _html,
    "toml": _toml,
}
