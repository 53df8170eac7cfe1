"""Output formats of marks: one submission in detail, or one line per submission."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import WorkError
from regard.work.marking.findings import (
    Finding,
    check_answers,
    count_points,
    first_wrong,
    is_complete,
)
from regard.work.marking.submissions import (
    Submission,
    check_submissions,
    describe_submission,
    summarize_submissions,
)
from regard.work.problem import read_toml
from regard.work.show.formats import LATEX, dump_json, escape_latex, latex_document, render_page
from regard.work.solution import Solution


class Marks(NamedTuple):
    """Marks: one line per step with details, a summary, the data, and the overall verdict."""

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
    lines = []
    for finding in findings:
        likely = [f"likely: {finding.diagnosis}"] if finding.diagnosis else []
        unread = [f"not read: {one}" for one in finding.unread]
        lines.append((_verdict(finding), [*finding.differences, *likely, *unread]))
    summary = _summary(findings, steps)
    text = [part for head, rest in lines for part in (head, *(f"   {one}" for one in rest))]
    return Marks(
        lines,
        summary,
        {"steps": [finding._asdict() for finding in findings], "summary": summary},
        "\n".join([*text, *summary]),
        first_wrong(findings) is not None,
        is_complete(findings),
    )


def marks_from_submissions(submissions: Sequence[Submission]) -> Marks:
    """Marks of many submissions, one line each.

    >>> print(marks_from_submissions([Submission("ada", 3, 3, None, "")]).text)
    ada  3 of 3  all right
    1 of 1 all right
    """
    summary = summarize_submissions(submissions)
    width = max(len(one.name) for one in submissions)
    lines, rows, text = [], [], []
    for one in submissions:
        score, result = f"{one.correct} of {one.answers}", describe_submission(one)
        lines.append((f"{one.name}: {score}, {result}", []))
        text.append(f"{one.name:<{width}}  {score}  {result}")
        rows.append({**one._asdict(), "first_wrong": one.first_wrong and one.first_wrong._asdict()})
    return Marks(
        lines,
        summary,
        {"submissions": rows, "summary": summary},
        "\n".join([*text, *summary]),
        any(one.is_wrong for one in submissions),
        all(one.is_correct for one in submissions),
    )


def mark_files(solution: Solution, paths: Sequence[str | Path], tolerance: Any = None) -> Marks:
    """Check answer files: one in detail, several or a folder as a table."""
    if len(paths) == 1 and not Path(paths[0]).is_dir():
        findings = check_answers(solution, read_toml(paths[0]), tolerance)
        return marks_from_findings(findings, [step.name for step in solution.steps])
    return marks_from_submissions(check_submissions(solution, paths, tolerance))


def findings_as_text(findings: Sequence[Finding], steps: Sequence[str] = ()) -> str:
    """Format findings as text, with the first wrong step."""
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
    if finding.verdict == "open":
        return f"{finding.name}: {'cannot be read' if finding.unread else 'not answered'}"
    text = finding.verdict
    if finding.verdict == "wrong" and finding.wrong_inputs:
        text += f" even given {' and '.join(finding.wrong_inputs)} as written"
    if finding.inconsistent_with:
        wrong = " and ".join(finding.inconsistent_with)
        text += f", but it does not follow from {wrong} as written"
    if finding.note:
        text += f", {finding.note}"
    unread = [one.partition(":")[0] for one in finding.unread]
    if blanks := [one for one in finding.blanks if one not in unread]:
        text += f"; {', '.join(blanks)} left open"
    return f"{finding.name}: {text}"


def _summary(findings: Sequence[Finding], steps: Sequence[str]) -> list[str]:
    missing = [finding.name for finding in findings if finding.blanks or finding.unread]
    elsewhere = [name for name in steps if name not in {finding.name for finding in findings}]
    if all(finding.verdict == "open" for finding in findings):
        expected = missing or list(steps)
        names = f": needs a value for any of {', '.join(expected)}" if expected else ""
        return [f"Nothing was answered{names}."]
    lines = ["Every value that was given is right."]
    if wrong := first_wrong(findings):
        lines = [f"The first wrong step is {wrong.name}."]
        points, most = count_points(findings)
        lines.append(f"Points: {points:.3g} of {most}.")
    if missing:
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
    body = f"<section><ul>{''.join(items)}</ul>{ends}</section>"
    return render_page(title, f"{len(items)} marked", body)


def _latex(marks: Marks, title: str) -> str:
    items = [" \\\\ ".join(map(escape_latex, [head, *rest])) for head, rest in marks.lines]
    lines = [LATEX.headings[0].format(escape_latex(title))]
    lines += LATEX.list_items(items) if items else []
    return latex_document(lines + [f"{escape_latex(one)}\\par" for one in marks.summary])


MARK_FORMATS: dict[str, Callable[[Marks, str], str]] = {
    "text": lambda marks, _: marks.text,
    "markdown": _markdown,
    "latex": _latex,
    "html": _html,
    "json": lambda marks, _: dump_json(marks.data),
}
