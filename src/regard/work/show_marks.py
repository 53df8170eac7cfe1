"""What became of one answer, or of the answers of a class, in every format."""

import json
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

from regard.errors import WorkError
from regard.work.check import Finding, first_wrong, is_finished
from regard.work.making.papers import Paper, papers_as_text, result_of, summary_of
from regard.work.page import page
from regard.work.show_tex import PREAMBLE
from regard.work.tex import tex_words


class Marks(NamedTuple):
    """The marks of an answer: a line per step with its details, a summary, and all of it as data.

    >>> marks_of([Finding("S", "right", (), "")]).lines
    [('S: right', [])]
    """

    lines: list[tuple[str, list[str]]]
    summary: list[str]
    data: dict[str, Any]
    text: str


def marks_of(findings: Sequence[Finding], steps: Sequence[str] = ()) -> Marks:
    """The marks of one answer; `steps` are the names of all steps, to say which are missing.

    >>> print(marks_of([], ["S", "A"]).text)
    Nothing was answered: needs a value for any of S, A.
    """
    lines = [(_verdict(found), _details(found)) for found in findings]
    summary = _summary(findings, steps)
    text = [part for head, rest in lines for part in (head, *(f"   {one}" for one in rest))]
    data = {"steps": [found._asdict() for found in findings], "summary": summary}
    return Marks(lines, summary, data, "\n".join([*text, *summary]))


def marks_of_papers(found: Sequence[Paper]) -> Marks:
    """The marks of a class, a line per paper.

    >>> marks_of_papers([Paper("ada", 3, 3, None, "")]).summary
    ['1 of 1 all right']
    """
    lines = [(f"{p.name}: {p.right} of {p.given}, {result_of(p)}", []) for p in found]
    rows = [{**p._asdict(), "wrong": p.wrong and p.wrong._asdict()} for p in found]
    summary = summary_of(found)
    return Marks(lines, summary, {"papers": rows, "summary": summary}, papers_as_text(found))


def findings_as_text(findings: Sequence[Finding], steps: Sequence[str] = ()) -> str:
    """What became of an answer, in words; the first wrong step is named.

    >>> findings_as_text([Finding("S", "right", (), "")])
    'S: right\\nEvery value that was given is right.'
    """
    return marks_of(findings, steps).text


def marks_as(marks: Marks, form: str = "text", title: str = "Marks") -> str:
    """Marks in one of the formats: text, markdown, latex, html or json.

    >>> marks_as(marks_of([Finding("S", "right", (), "")]), "markdown").splitlines()[2]
    '- S: right'
    """
    if form not in MARKS:
        raise WorkError(f"format: needs one of {', '.join(MARKS)} for --check, got {form!r}")
    return MARKS[form](marks, title)


def _verdict(found: Finding) -> str:
    said = found.verdict
    if found.verdict == "open":
        return f"{found.name}: not answered"
    if found.verdict == "wrong" and found.by:
        said += f", by what follows from {' and '.join(found.by)} as written"
    if found.against:
        said += f", but it does not follow from {' and '.join(found.against)} as written"
    if found.left_open:
        said += f"; {', '.join(found.left_open)} left open"
    return f"{found.name}: {said}"


def _details(found: Finding) -> list[str]:
    return [*found.wrong, *([f"likely: {found.why}"] if found.why else [])]


def _summary(findings: Sequence[Finding], steps: Sequence[str]) -> list[str]:
    answered = [found for found in findings if found.verdict != "open"]
    missing = [found.name for found in findings if found.left_open]
    elsewhere = [name for name in steps if name not in {found.name for found in findings}]
    if not answered:
        expected = missing or list(steps)
        names = f": needs a value for any of {', '.join(expected)}" if expected else ""
        return [f"Nothing was answered{names}."]
    wrong = first_wrong(findings)
    lines = ["Every value that was given is right."]
    if wrong is not None:
        lines = [f"The first wrong step is {wrong.name}."]
    if not is_finished(findings):
        lines.append(f"Still open: {', '.join(missing)}.")
    if elsewhere:
        lines.append(f"Not on the sheet: {', '.join(elsewhere)}.")
    return lines


def _markdown(marks: Marks, title: str) -> str:
    lines = [f"# {title}", ""]
    for head, rest in marks.lines:
        lines += [f"- {head}", *(f"    - {one}" for one in rest)]
    return "\n".join([*lines, "", *(f"{one}  " for one in marks.summary)]).rstrip() + "\n"


def _html(marks: Marks, title: str) -> str:
    items = []
    for head, rest in marks.lines:
        inner = "".join(f"<li>{escape(one)}</li>" for one in rest)
        items.append(f"<li>{escape(head)}{f'<ul>{inner}</ul>' if inner else ''}</li>")
    ends = "".join(f"<p>{escape(one)}</p>" for one in marks.summary)
    return page(
        title, f"{len(items)} marked", f"<section><ul>{''.join(items)}</ul>{ends}</section>"
    )


def _latex(marks: Marks, title: str) -> str:
    lines = [*PREAMBLE, f"\\section*{{{tex_words(title)}}}"]
    if marks.lines:
        lines.append("\\begin{itemize}")
        for head, rest in marks.lines:
            lines.append(" \\\\ ".join([f"\\item {tex_words(head)}", *map(tex_words, rest)]))
        lines.append("\\end{itemize}")
    lines += [f"{tex_words(one)}\\par" for one in marks.summary]
    return "\n".join([*lines, "\\end{document}", ""])


MARKS: dict[str, Callable[[Marks, str], str]] = {
    "text": lambda marks, _: marks.text,
    "markdown": _markdown,
    "latex": _latex,
    "html": _html,
    "json": lambda marks, _: json.dumps(marks.data, indent=1, ensure_ascii=False),
}
