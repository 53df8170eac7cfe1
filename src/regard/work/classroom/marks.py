"""Marks of a class: answers paired with problems, and each marked as `--check` does."""

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import FileError, RegardError, suggestion
from regard.work.classroom.output import ANSWERS
from regard.work.classroom.problems import Assignment, Class
from regard.work.classroom.roster import Row, Student, find_student, plain_name, read_rows
from regard.work.marking.findings import Finding, check_answers, first_wrong
from regard.work.problem import read_toml
from regard.work.show.formats import dump_json

ENTRY = re.compile(r"(\S+?)\s*\[\s*(\d+)\s*[,;]\s*(\d+)\s*\]")
PART = re.compile(r"(?:^|; )[^\W\d]+ ?(\d+) ?: ?(.*?)(?=; [^\W\d]+ ?\d+ ?:|$)", re.DOTALL)
TIMES = ("%d %B %Y %I:%M %p", "%d %B %Y, %I:%M %p", "%d %B %Y %H:%M", "%d. %B %Y %H:%M")
TIMES += ("%d/%m/%Y %H:%M", "%d/%m/%y, %H:%M", "%d.%m.%Y %H:%M", "%d.%m.%Y, %H:%M")


class Paper(NamedTuple):
    """What a student handed in: where it was found, and its cells by header or step."""

    place: str
    student: Student
    values: Mapping[str, Any]
    time: datetime | None = None
    number: int | None = None  # of the problem, where the paper names it
    error: str = ""


class Mark(NamedTuple):
    """The marks of one student; `error` is set where the paper cannot be read."""

    assignment: Assignment
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""

    @property
    def steps(self) -> dict[str, float]:
        """Points by step."""
        shares = {finding.name: finding.points for finding in self.findings}
        return {name: x * shares.get(name, 0) for name, x in self.assignment.points.items()}

    @property
    def points(self) -> float:
        """The points of all steps."""
        return sum(self.steps.values())

    @property
    def is_wrong(self) -> bool:
        """Whether something is wrong or cannot be read."""
        unread = any(finding.unread for finding in self.findings)
        return bool(self.error or unread or first_wrong(self.findings))

    @property
    def is_complete(self) -> bool:
        """Whether every step asked for has all its numbers."""
        full = {x.name for x in self.findings if not x.blanks and not x.unread}
        return set(self.assignment.points) <= full


@dataclass
class ClassMarks:
    """The marks of a class, who handed in nothing, and what could not be paired."""

    marks: list[Mark] = field(default_factory=list)
    missing: list[Student] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was left out of the files

    @property
    def exit_code(self) -> int:
        """As of `--check`: 3 if something is wrong, 1 if something is missing, else 0."""
        if self.unknown or any(one.is_wrong for one in self.marks):
            return 3
        return int(bool(self.missing) or not all(one.is_complete for one in self.marks))

    def lines(self) -> list[str]:
        """A line per student, and who is missing, late or unknown."""
        lines = [f"{one.assignment.student.name}: {describe(one)}" for one in self.marks]
        if self.missing:
            lines.append(f"Nothing from: {', '.join(x.name for x in self.missing)}")
        return [*lines, *(f"Not marked: {text}" for text in self.unknown), *self.notes]


def describe(one: Mark) -> str:
    """The marks of a student in a line."""
    text = f"{one.points:.3g} of {one.assignment.total:g}"
    if one.error:
        text += f", cannot be read: {one.error}"
    elif wrong := first_wrong(one.findings):
        cause = f", likely: {wrong.diagnosis}" if wrong.diagnosis else ""
        text += f", {wrong.name} is wrong{cause}"
    return "; ".join([text, *one.notes])


def mark_class(
    one: Class, path: str | Path, tolerance: Any = None, due: datetime | None = None
) -> ClassMarks:
    """Mark the answers of a file or folder.

    Args:
        one: the class.
        path: a table (.csv, .xlsx; the responses of a Moodle quiz too), an answer file (.toml), or
            a folder of those.
        tolerance: as of `check_answers`.
        due: papers with a later time are noted as late.
    """
    result, papers = ClassMarks(), dict[int, tuple[Assignment, list[Paper]]]()
    known = [x.student for x in one.assignments]
    if known:
        check_answers(one.assignments[0].exercise.solution, {}, tolerance)  # that it is a number
    for paper in _collect(one, Path(path), result.notes):
        n = find_student(paper.student, known)
        if n is not None:
            own = one.assignments[n]
        elif paper.number is not None:  # somebody else who took the quiz
            n = len(known) + len(papers)
            own = Assignment(paper.student, 0, f"guest-{n + 1}", one.assignments[0].exercise, {})
        else:
            result.unknown.append(f"{paper.place}: {_who(paper.student, known)}")
            continue
        problem = own if paper.number is None else one.assignments[paper.number - 1]
        assignment = problem._replace(student=own.student, file=own.file)
        papers[n] = (assignment, [*papers.get(n, (own, []))[1], paper])
    result.missing = [student for n, student in enumerate(known) if n not in papers]
    for n in sorted(papers):
        result.marks.append(_mark(*papers[n], tolerance, due, n >= len(known)))
    return result


def _who(student: Student, known: Sequence[Student]) -> str:
    name = student.name or student.id or student.email or "a line without a name"
    same = sum(plain_name(x.name) == plain_name(name) for x in known)
    if same > 1:
        return f"{name} is the name of {same} students; try a column id"
    return f"{name} is not in the class{suggestion(name, [x.name for x in known])}"


def _mark(
    assignment: Assignment, papers: list[Paper], tolerance: Any, due: datetime | None, guest: bool
) -> Mark:
    paper, notes = papers[-1], []
    if len(papers) > 1:
        notes.append(f"{len(papers)} papers, the last is marked: {paper.place}")
    if guest:
        notes.append("not in the roster")
    if due is not None and (paper.time is None or paper.time > due):
        time = paper.time and f"late: {paper.time:%Y-%m-%d %H:%M}"
        notes.append(time or "the time is not known")
    if paper.error:
        return Mark(assignment, (), tuple(notes), paper.error)
    try:
        answers = _answers(assignment, paper.values, notes)
        findings = check_answers(assignment.exercise.solution, answers, tolerance)
    except RegardError as error:
        return Mark(assignment, (), tuple(notes), str(error))
    return Mark(assignment, tuple(findings), tuple(notes))


def _answers(x: Assignment, values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Matrices by step, from the cells of a table or the values of an answer file."""
    shapes = {step.name: step.value.shape for step in x.exercise.solution.steps}
    answers: dict[str, Any] = {}
    for header, value in values.items():
        entry = ENTRY.fullmatch(header)
        name = entry[1] if entry else header
        if name not in shapes:
            answers |= {} if entry else {name: value}  # the marking names it
            continue
        rows, columns = shapes[name]
        if not entry:
            answers[name] = _matrix(value) if rows * columns > 1 else value
            continue
        i, j = int(entry[2]) - 1, int(entry[3]) - 1
        cells = answers.setdefault(name, [["?"] * columns for _ in range(rows)])
        if 0 <= i < rows and 0 <= j < columns:
            cells[i][j] = value or "?"
        elif value:
            notes.append(f"{header} is outside of {rows} × {columns}")
    return answers


def _matrix(value: Any) -> Any:
    """The rows of a matrix in one cell, "1 0; 2 3"."""
    if not isinstance(value, str):
        return value
    rows = re.split(r"[;\n]|\]\s*,\s*\[", value.strip(" []"))
    return [re.split(r",\s+|[\s|]+", row.strip(" []")) for row in rows]


def _collect(one: Class, path: Path, notes: list[str]) -> list[Paper]:
    """All papers of a file, or of the files of a folder; `notes` get what is left out."""
    if not path.exists():
        raise FileError(f"{path}: needs answers to mark, got no such file or folder")
    files = [path]
    if path.is_dir():
        folder = path / ANSWERS if (path / ANSWERS).is_dir() else path
        files = sorted(x for x in folder.iterdir() if x.suffix in (".toml", ".csv", ".xlsx"))
        if not files:
            raise FileError(f"{folder}: needs answers, .csv, .xlsx or .toml, got none")
    papers: list[Paper] = []
    for file in files:
        if file.suffix == ".toml":
            papers.append(_read_answer_file(one, file))
        else:
            papers += _read_table(one, file, notes)
    return [x for x in papers if x.error or any(_is_written(y) for y in x.values.values())]


def _read_table(one: Class, file: Path, notes: list[str]) -> list[Paper]:
    rows = read_rows(file)
    papers = [_quiz_paper(one, row) for row in rows]
    if any(papers):
        return [paper for paper in papers if paper]
    steps = {step.name for x in one.assignments for step in x.exercise.solution.steps}
    headers = list(rows[0].cells) if rows else []
    unused = [x for x in headers if x and x.partition("[")[0].strip() not in steps]
    if rows and len(unused) == len(headers):
        names = ", ".join(one.assignments[0].points)
        raise FileError(f"{file}: needs columns of steps, {names}, got {', '.join(headers):.80}")
    if unused:
        notes.append(f"{file.name}: columns that are no steps: {', '.join(unused)}")
    return [
        Paper(
            row.place, row.student, {k: x for k, x in row.cells.items() if k not in unused}
        )._replace(time=parse_time(row.time))
        for row in rows
    ]


def _is_written(value: Any) -> bool:
    """Whether a cell, or rows of them, has more than blanks."""
    return re.search(r"[^\s\[\]'\",?]", str(value)) is not None


def _read_answer_file(one: Class, file: Path) -> Paper:
    """An answer file: NAME.toml, NAME-answers.toml, or as Moodle names it, Name_1_file.toml."""
    stem = file.stem.partition("_")[0].removesuffix("-answers")
    match = next((x for x in one.assignments if x.file == stem), None)
    student = match.student if match else Student(stem)
    time = datetime.fromtimestamp(file.stat().st_mtime)
    try:
        return Paper(file.name, student, read_toml(file), time)
    except RegardError as error:  # an unreadable file does not stop the others
        return Paper(file.name, student, {}, time, error=str(error).removeprefix(f"{file}: "))


def _quiz_paper(one: Class, row: Row) -> Paper | None:
    """The response of a Moodle quiz, beside the text of its question; None for other rows."""
    time = parse_time(row.time)
    for header, cell in row.cells.items():
        match = re.search(rf"{one.code}-(\d+)\b", cell, re.IGNORECASE)
        if match is None or not 1 <= int(match[1]) <= len(one.assignments):
            continue
        number, index = int(match[1]), re.findall(r"\d+", header)
        beside = (text for name, text in row.cells.items() if re.findall(r"\d+", name) == index)
        response = next(filter(PART.match, beside), "")
        parts = {int(n): text.strip() for n, text in PART.findall(response)}
        fields = enumerate(quiz_fields(one.assignments[number - 1]), 1)
        values = {name: parts.get(n, "") for n, name in fields}
        return Paper(row.place, row.student, values, time, number)
    if any(PART.match(cell) for cell in row.cells.values()):
        error = "needs the text of the question next to the response, got none; try the quiz's "
        error += "responses report again, with the question text displayed"
        return Paper(row.place, row.student, {}, time, error=error)
    return None


def quiz_fields(x: Assignment) -> list[str]:
    """The fields of a quiz in order, as headers of a table."""
    return [
        f"{step.name}[{i + 1},{j + 1}]"
        for step in x.steps
        for i in range(step.value.rows)
        for j in range(step.value.cols)
    ]


def parse_time(text: str) -> datetime | None:
    """A time as tables have it; None where it cannot be read.

    >>> parse_time("2026-11-19 15:45") == parse_time("19 November 2026 3:45 PM")
    True
    """
    for form in ("", *TIMES):
        try:
            return datetime.strptime(text, form) if form else datetime.fromisoformat(text)
        except ValueError:
            continue
    return None


def marks_csv(marks: ClassMarks) -> str:
    """A table of the marks: points per step, the first wrong step, its likely cause, notes."""
    steps = list(dict.fromkeys(name for one in marks.marks for name in one.assignment.points))
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    head = ["name", "id", "email", "problem", "points", "of", *steps]
    table.writerow([*head, "first wrong", "likely cause", "notes"])
    for one in marks.marks:
        wrong, given = first_wrong(one.findings), one.steps
        row: list[Any] = [*one.assignment.student, one.assignment.number, _number(one.points)]
        row += [one.assignment.total, *(_number(given.get(name, 0)) for name in steps)]
        cause = (wrong.name, wrong.diagnosis) if wrong else ("", "")
        table.writerow([*row, *cause, "; ".join(filter(None, [one.error, *one.notes]))])
    for student in marks.missing:
        table.writerow([*student, *[""] * (len(steps) + 5), "nothing handed in"])
    return "\ufeff" + text.getvalue()


def _number(x: float) -> str:
    return f"{x:.4g}"


def marks_json(marks: ClassMarks) -> str:
    """The marks with all findings, as JSON."""
    students = [
        {
            **one.assignment.student._asdict(),
            "problem": one.assignment.number,
            "points": round(one.points, 6),
            "of": one.assignment.total,
            "steps": [{**x._asdict(), "worth": one.steps.get(x.name, 0)} for x in one.findings],
            "notes": one.notes,
            "error": one.error,
        }
        for one in marks.marks
    ]
    missing = [x._asdict() for x in marks.missing]
    return dump_json({"students": students, "missing": missing, "unknown": marks.unknown})


def count_mistakes(marks: ClassMarks) -> dict[str, Counter[str]]:
    """How often each mistake was made, by step; "" where no cause is known.

    Places in a matrix are left out: "a sign, in (1,2)" is a sign.
    """
    counts: dict[str, Counter[str]] = {}
    for one in marks.marks:
        for finding in one.findings:
            if finding.verdict == "wrong":
                cause = re.sub(r", in (\(\d+,\d+\)(, )?)+", "", finding.diagnosis)
                counts.setdefault(finding.name, Counter())[cause] += 1
    return counts
