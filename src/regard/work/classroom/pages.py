"""What comes back from marking: a page per student, and a page about the class without names."""

from collections import Counter
from html import escape
from pathlib import Path

from regard.errors import counted
from regard.files import fill_page, make_folder, write_text
from regard.work.classroom.marks import ClassMarks, Mark, count_mistakes, marks_csv, marks_json
from regard.work.classroom.problems import Class
from regard.work.classroom.sheets import TEMPLATE, heading
from regard.work.marking.findings import CARRIED, ROUNDED_EARLY
from regard.work.show.formats import given_html
from regard.work.show.marks import marks_from_findings
from regard.work.solution import Step

VERDICTS = {"right": "--c", ROUNDED_EARLY: "--a", CARRIED: "--b", "wrong": "--mistake"}
VERDICTS |= {"open": "--line"}  # verdict: its colour
NO_CAUSE = "no known cause"
DISCUSSED = 3  # steps
BAR, ROW = 460, 26  # width of a full bar, height of a row


def write_marks(one: Class, marks: ClassMarks, folder: str | Path) -> list[str]:
    """Write tables, a feedback page per student and the page of the class; a line about each."""
    place = make_folder(folder)
    write_text(place / "marks.csv", marks_csv(marks))
    write_text(place / "marks.json", marks_json(marks))
    for mark in marks.marks:
        page = feedback_html(one, mark)
        write_text(make_folder(place / "feedback") / f"{mark.assignment.file}.html", page)
    write_text(place / "class.html", class_html(one, marks))
    return [
        f"{place / 'marks.csv'}, marks.json: points per step",
        f"{place / 'feedback'}: a page per student, {len(marks.marks)} in all",
        f"{place / 'class.html'}: mistakes by step, and what to discuss; without names",
    ]


def feedback_html(one: Class, mark: Mark) -> str:
    """What a student gets back: points, verdict and likely mistake of each step."""
    x, worth = mark.assignment, mark.steps
    lines = dict(zip(mark.findings, marks_from_findings(mark.findings).lines, strict=True))
    by_step = {finding.name: lines[finding] for finding in mark.findings}
    parts = []
    for step in x.exercise.solution.steps:
        if step.name not in x.points and step.name not in by_step:
            continue
        head, rest = by_step.get(step.name, (f"{step.name}: not answered", []))
        points = f"{worth.get(step.name, 0):.3g} of {x.points.get(step.name, 0):g}"
        more = "".join(f"<li>{escape(text)}</li>" for text in rest)
        parts.append(
            f'<section><h3><span class="points">{points}</span>{step.equation.mathml()} '
            f"<small>{escape(step.title)}</small></h3><p>{escape(head.partition(': ')[2])}</p>"
            f"{f'<ul>{more}</ul>' if more else ''}</section>"
        )
    notes = "".join(f"<p>{escape(text)}</p>" for text in filter(None, [mark.error, *mark.notes]))
    body = (
        f'<article class="sheet"><header><h2>{escape(heading(one))}</h2><p class="who">'
        f"<b>{escape(x.student.name)}</b><span>{mark.points:.3g} of {x.total:g} points</span></p>"
        f"{notes}</header><section><h3>Given</h3>{given_html(x.exercise.solution.given)}</section>"
        f"{''.join(parts)}</article>"
    )
    return fill_page(TEMPLATE, f"{heading(one)}: {x.student.name}", {"BODY": body})


def class_html(one: Class, marks: ClassMarks) -> str:
    """The class at a glance: verdicts by step, mistakes by step, and what to discuss."""
    papers, mistakes = marks.marks, count_mistakes(marks)
    mean = sum(x.points / x.assignment.total for x in papers) / max(len(papers), 1)
    facts = [counted(len(papers), "paper"), f"{mean:.0%} of the points on average"]
    facts += [f"{len(marks.missing)} missing"] if marks.missing else []
    facts += [f"{n} cannot be read"] if (n := sum(bool(x.error) for x in papers)) else []
    facts += [f"{len(marks.unknown)} not paired"] if marks.unknown else []
    steps = {step.name: step for x in papers for step in x.assignment.steps}
    questions = _questions(steps, mistakes, papers)
    body = (
        f"<h1>{escape(heading(one))}</h1><p>{' · '.join(facts)}</p>"
        f"<section><h3>Each step</h3>{_bars(steps, papers)}</section>"
        f"<section><h3>Mistakes by step</h3>{_table(steps, mistakes)}</section>"
        f"<section><h3>Worth discussing</h3><ol>{questions}</ol></section>"
    )
    return fill_page(TEMPLATE, f"Class: {heading(one)}", {"BODY": body})


def _bars(steps: dict[str, Step], papers: list[Mark]) -> str:
    """How many papers had which verdict in each step, as a picture."""
    counts = {name: Counter(dict.fromkeys(VERDICTS, 0)) for name in steps}
    for mark in papers:
        verdicts = {finding.name: finding.verdict for finding in mark.findings}
        for name in steps:
            counts[name][verdicts.get(name, "open")] += 1
    total, parts = max(len(papers), 1), []
    for row, (name, count) in enumerate(counts.items()):
        y, left = row * ROW + 30, 90.0
        parts.append(f'<text x="80" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        for verdict, colour in VERDICTS.items():
            width = BAR * count[verdict] / total
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}" '
                f'style="fill: var({colour})"><title>{count[verdict]} {verdict}</title></rect>'
            )
            left += width
        parts.append(f'<text x="{BAR + 98}" y="{y + 15}">{count["wrong"]} wrong</text>')
    left = 90
    for verdict, colour in VERDICTS.items():
        parts.append(f'<rect x="{left}" y="4" width="12" height="12" style="fill: var({colour})"/>')
        parts.append(f'<text x="{left + 16}" y="15">{verdict}</text>')
        left += 34 + 7 * len(verdict)
    label = "; ".join(
        f"{name}: {x['right']} right, {x['wrong']} wrong" for name, x in counts.items()
    )
    size = f"0 0 {BAR + 180} {len(steps) * ROW + 34}"
    return (
        f'<svg class="bars" viewBox="{size}" width="100%" style="max-width: 52rem" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _table(steps: dict[str, Step], mistakes: dict[str, Counter[str]]) -> str:
    """How often each mistake was made in each step, the most frequent first."""
    total = sum(mistakes.values(), Counter())
    if not total:
        return "<p>None.</p>"
    names = [x for x in steps if x in mistakes] + [x for x in mistakes if x not in steps]
    most = max(max(count.values()) for count in mistakes.values())
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = []
    for cause, number in sorted(total.items(), key=lambda x: (not x[0], -x[1])):
        cells = "".join(
            f'<td style="background: rgba(var(--wrong), {0.7 * n / most:.2f})">{n or ""}</td>'
            for n in (mistakes[name][cause] for name in names)
        )
        rows.append(f"<tr><th>{escape(cause or NO_CAUSE)}</th>{cells}<td>{number}</td></tr>")
    top = f"<tr><th>mistake</th>{head}<th>all</th></tr>"
    return f'<div class="wide"><table class="counts">{top}{"".join(rows)}</table></div>'


def _questions(
    steps: dict[str, Step], mistakes: dict[str, Counter[str]], papers: list[Mark]
) -> str:
    """A question about each of the steps that went wrong most often."""
    items = []
    worst = sorted(mistakes, key=lambda name: -mistakes[name].total())
    for name in [x for x in worst if x in steps][:DISCUSSED]:
        count, step = mistakes[name], steps[name]
        causes = [f"{cause or NO_CAUSE} ({n})" for cause, n in count.most_common(3)]
        cause = next((cause for cause, _ in count.most_common() if cause), "")
        example = next(
            (
                finding.differences[0]
                for mark in papers
                for finding in mark.findings
                if finding.name == name and finding.differences and cause in finding.diagnosis
            ),
            "",
        )
        ask = f"What shows, without the solution, that {cause}?" if cause else "What went wrong?"
        items.append(
            f"<li>{step.equation.mathml()}, {escape(step.title)}: {count.total()} of {len(papers)} "
            f"wrong: {escape('; '.join(causes))}.<br>In one paper, {escape(example)}. "
            f"<b>{escape(ask)}</b></li>"
        )
    return "".join(items) or "<li>Nothing went wrong.</li>"
