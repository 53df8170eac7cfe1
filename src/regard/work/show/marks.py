"""Output formats of marks: one submission in detail, or one line per submission."""

import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import WorkError
from regard.work.marking.findings import Finding, check_answers, first_wrong, is_complete
from regard.work.marking.submissions import (
    Submission,
    check_submissions,
    describe_submission,
    submissions_as_text,
    summarize_submissions,
)
from regard.work.problem import read_toml
from regard.work.show.latex import LATEX_PREAMBLE
from regard.work.show.latex_escape import escape_latex
from regard.work.show.page import render_page
from regard.work.solution import Solution


class Marks(NamedTuple):
    """Marks: one line per step with details, a summary, the data, and the overall verdict.

    >>> marks_from_findings([Finding("S", "right", (), "")]).lines
    [('S: right', [])]
    """

    lines: list[tuple[str, list[str]]]
    summary: list[str]
    data: dict[str, Any]
    text: str
    is_wrong: bool  # something is wrong or unreadable
    is_complete: bool  # every question has an answer


def marks_from_findings(findings: Sequence[Finding], steps: Sequence[str] = ()) -> Marks:
    """Marks of one submission; `steps` are all step names, to list the missing ones.

    >>> print(marks_from_findings([], ["S", "A"]).text)
    Nothing was answered: needs a value for any of S, A.
    """
    lines = [(_verdict(found), _details(found)) for found in findings]
    summary = _summary(findings, steps)
    text = [part for head, rest in lines for part in (head, *(f"   {one}" for one in rest))]
    data = {"steps": [found._asdict() for found in findings], "summary": summary}
    text = "\n".join([*text, *summary])
    wrong = first_wrong(findings) is not None
    return Marks(lines, summary, data, text, wrong, is_complete(findings))


def marks_from_submissions(submissions: Sequence[Submission]) -> Marks:
    """Marks of many submissions, one line each.

    >>> marks_from_submissions([Submission("ada", 3, 3, None, "")]).summary
    ['1 of 1 all right']
    """
    lines = [
        (f"{p.name}: {p.correct} of {p.answers}, {describe_submission(p)}", []) for p in submissions
    ]
    rows = [
        {**p._asdict(), "first_wrong": p.first_wrong and p.first_wrong._asdict()}
        for p in submissions
    ]
    summary = summarize_submissions(submissions)
    return Marks(
        lines,
        summary,
        {"submissions": rows, "summary": summary},
        submissions_as_text(submissions),
        any(submission.is_wrong for submission in submissions),
        all(submission.is_correct for submission in submissions),
    )


def mark_files(solution: Solution, paths: Sequence[str | Path]) -> Marks:
    """Check answer files: one in detail, several or a folder as a table.

    >>> from regard.work import read_problem, solve
    >>> mark_files(solve(read_problem("rnn")), ["missing.toml", "lost.toml"]).is_wrong
    True
    """
    if len(paths) == 1 and not Path(paths[0]).is_dir():
        findings = check_answers(solution, read_toml(paths[0]))
        return marks_from_findings(findings, [step.name for step in solution.steps])
    return marks_from_submissions(check_submissions(solution, paths))


def findings_as_text(findings: Sequence[Finding], steps: Sequence[str] = ()) -> str:
    """Format findings as text, with the first wrong step.

    >>> findings_as_text([Finding("S", "right", (), "")])
    'S: right\\nEvery value that was given is right.'
    """
    return marks_from_findings(findings, steps).text


def format_marks(marks: Marks, fmt: str = "text", title: str = "Marks") -> str:
    """Format marks as text, markdown, latex, html or json.

    >>> marks = marks_from_findings([Finding("S", "right", (), "")])
    >>> format_marks(marks, "markdown").splitlines()[2]
    '- S: right'
    """
    if fmt not in MARK_FORMATS:
        raise WorkError(f"fmt: needs one of {', '.join(MARK_FORMATS)} for --check, got {fmt!r}")
    return MARK_FORMATS[fmt](marks, title)


def _verdict(finding: Finding) -> str:
    text = finding.verdict
    if finding.verdict == "open":
        return f"{finding.name}: not answered"
    if finding.verdict == "wrong" and finding.wrong_inputs:
        text += f", by what follows from {' and '.join(finding.wrong_inputs)} as written"
    if finding.inconsistent_with:
        text += (
            f", but it does not follow from {' and '.join(finding.inconsistent_with)} as written"
        )
    if finding.blanks:
        text += f"; {', '.join(finding.blanks)} left open"
    return f"{finding.name}: {text}"


def _details(finding: Finding) -> list[str]:
    return [*finding.differences, *([f"likely: {finding.diagnosis}"] if finding.diagnosis else [])]


def _summary(findings: Sequence[Finding], steps: Sequence[str]) -> list[str]:
    answered = [found for found in findings if found.verdict != "open"]
    missing = [found.name for found in findings if found.blanks]
    elsewhere = [name for name in steps if name not in {found.name for found in findings}]
    if not answered:
        expected = missing or list(steps)
        names = f": needs a value for any of {', '.join(expected)}" if expected else ""
        return [f"Nothing was answered{names}."]
    wrong = first_wrong(findings)
    lines = ["Every value that was given is right."]
    if wrong is not None:
        lines = [f"The first wrong step is {wrong.name}."]
    if not is_complete(findings):
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
    return render_page(
        title, f"{len(items)} marked", f"<section><ul>{''.join(items)}</ul>{ends}</section>"
    )


def _latex(marks: Marks, title: str) -> str:
    lines = [*LATEX_PREAMBLE, f"\\section*{{{escape_latex(title)}}}"]
    if marks.lines:
        lines.append("\\begin{itemize}")
        for head, rest in marks.lines:
            lines.append(" \\\\ ".join([f"\\item {escape_latex(head)}", *map(escape_latex, rest)]))
        lines.append("\\end{itemize}")
    lines += [f"{escape_latex(one)}\\par" for one in marks.summary]
    return "\n".join([*lines, "\\end{document}", ""])


MARK_FORMATS: dict[str, Callable[[Marks, str], str]] = {
    "text": lambda marks, _: marks.text,
    "markdown": _markdown,
    "latex": _latex,
    "html": _html,
    "json": lambda marks, _: json.dumps(marks.data, indent=1, ensure_ascii=False),
}
