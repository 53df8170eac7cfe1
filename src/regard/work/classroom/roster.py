"""Tables of students: rosters and answers, from CSV files of any spreadsheet, or .xlsx files."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import FileError
from regard.files import import_extra, read_text

HEADERS = {  # names of the columns in use, in plain letters
    "name": "name|full name|fullname|student|student name|nom complet|vollständiger name",
    "first": "first name|firstname|given name|forename|vorname|prénom|nombre|nome",
    "last": "last name|lastname|surname|family name|nachname|nom|nom de famille|apellidos|cognome",
    "id": "id|id number|student id|student number|matriculation number|matrikelnummer|matricola"
    "|username|user name|anmeldename|numéro d identification",
    "email": "email|email address|e mail|e mail address|e mail adresse|mail|adresse de courriel",
    "time": "completed|submitted|timestamp|time|date|beendet|terminé",
}
COLUMNS = {header: name for name, headers in HEADERS.items() for header in headers.split("|")}
MAX_ROWS = 2_000


class Student(NamedTuple):
    """A student, as the roster has it."""

    name: str
    id: str = ""
    email: str = ""


class Row(NamedTuple):
    """A row of a table: where it stands, its cells by header, and whose it is."""

    place: str
    cells: dict[str, str]
    student: Student
    time: str = ""


def read_rows(path: str | Path) -> list[Row]:
    """The rows of a table with a column of names, ids or addresses; headers are recognised.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "roster.csv"
    >>> _ = file.write_text("\\ufeffVorname;Nachname\\nAda;Lovelace\\n")
    >>> read_rows(file)[0].student.name
    'Ada Lovelace'
    """
    file = Path(path)
    table = _read_xlsx(file) if file.suffix == ".xlsx" else _read_csv(file)
    if not table:
        raise FileError(f"{file}: needs a line of headers and one per student, got no lines")
    if len(table) > MAX_ROWS:
        raise FileError(f"{file}: needs at most {MAX_ROWS} lines, got {len(table)}")
    (_, header), *body = table
    known = {n: COLUMNS.get(_plain(text), "") for n, text in enumerate(header)}
    if not {"name", "last", "id", "email"} & set(known.values()):
        raise FileError(
            f"{file}: needs a column of names in its first line, got {', '.join(header):.80}; "
            "try the header name, or first name and last name"
        )
    rows = []
    for number, cells in body:
        if any(cells):
            padded = [*cells, *[""] * (len(header) - len(cells))]
            rows.append(_row(f"{file.name}, line {number}", header, padded, known))
    return rows


def _row(place: str, header: list[str], cells: list[str], known: dict[int, str]) -> Row:
    facts: dict[str, str] = {}
    for n, name in known.items():
        facts.setdefault(name, " ".join(cells[n].split()))
    both = f"{facts.get('first', '')} {facts.get('last', '')}".strip()
    student = Student(facts.get("name") or both, facts.get("id", ""), facts.get("email", ""))
    others = {text: cells[n].strip() for n, text in enumerate(header) if not known[n]}
    return Row(place, others, student, facts.get("time", ""))


def read_roster(path: str | Path) -> list[Student]:
    """The students of a class; a name that is empty or listed twice is refused with its line.

    Two students of one name need different ids or addresses.
    """
    file = Path(path)
    students: list[Student] = []
    places: list[str] = []
    for row in read_rows(file):
        one = row.student
        if not one.name:
            raise FileError(f"{row.place}: needs the name of a student, got none")
        for other, place in zip(students, places, strict=True):
            if _is_same(one, other):
                raise FileError(
                    f"{row.place}: needs another student, got {one.name} as in {place}; "
                    "try a column id if these are two students"
                )
        students.append(one)
        places.append(row.place)
    if not students:
        raise FileError(f"{file}: needs at least one student below its headers, got none")
    return students


def _is_same(a: Student, b: Student) -> bool:
    """Whether two lines name one student: one id, one address, or one name and nothing else."""
    for x, y in ((a.id, b.id), (a.email, b.email)):
        if x and y:
            return plain_name(x) == plain_name(y)
    return plain_name(a.name) == plain_name(b.name)


def student_key(student: Student) -> str:
    """What identifies a student: the id, else the address, else the name."""
    return plain_name(student.id or student.email or student.name)


def plain_name(name: str) -> str:
    """A name in a form to compare: "Lovelace, Ada" is "ada lovelace".

    >>> plain_name(" Lovelace,  ADA ")
    'ada lovelace'
    """
    parts = [x.strip() for x in unicodedata.normalize("NFC", name).split(",")]
    return " ".join(" ".join(reversed(parts) if len(parts) == 2 else parts).casefold().split())


def file_names(students: Iterable[Student]) -> list[str]:
    """A file name for each student, without an ending; of two that are alike one gets a number.

    >>> file_names([Student("Zoë Å."), Student("Zoe A"), Student("../王芳")])
    ['zoe-a', 'zoe-a-2', '王芳']
    """
    names: list[str] = []
    for one in students:
        letters = unicodedata.normalize("NFKD", one.name.casefold())
        plain = "".join(x for x in letters if not unicodedata.combining(x))
        stem = re.sub(r"[^\w]+", "-", plain).strip("-_")[:60] or "student"
        same = sum(
            x == stem or re.fullmatch(re.escape(stem) + r"-\d+", x) is not None for x in names
        )
        names.append(f"{stem}-{same + 1}" if same else stem)
    return names


def _plain(header: str) -> str:
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFC", header).casefold()))


Table = list[tuple[int, list[str]]]  # line numbers and cells


def _read_csv(file: Path) -> Table:
    text, skipped = read_text(file), 0
    if text.lower().startswith("sep="):  # which Excel writes
        text, skipped = text.partition("\n")[2], 1
    head = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))
    try:
        return [
            (reader.line_num + skipped, [x.strip() for x in cells]) for cells in reader if cells
        ]
    except csv.Error as error:
        raise FileError(f"{file}: needs a table, got {error}") from error


def _read_xlsx(file: Path) -> Table:
    openpyxl = import_extra("openpyxl", "excel", "to read .xlsx files")
    try:
        sheet = openpyxl.load_workbook(file, data_only=True).worksheets[0]
        rows = [[_cell_text(cell) for cell in row] for row in sheet.iter_rows()]
    except FileNotFoundError as error:
        raise FileError(f"{file}: cannot be read, No such file or directory") from error
    except Exception as error:  # of any kind: a damaged archive or its XML
        raise FileError(f"{file}: needs an .xlsx file, got {error}") from error
    return [(n, cells) for n, cells in enumerate(rows, 1) if any(cells)]


def _cell_text(cell: Any) -> str:
    """A cell as it is shown: 0.5 in the format 0.00 is 0.50, and 1 is 1.00."""
    value = cell.value
    if value is None:
        return ""
    decimals = re.fullmatch(r"[#,0]*0\.(0+)", cell.number_format or "")
    if isinstance(value, int | float) and not isinstance(value, bool) and decimals:
        return f"{value:.{len(decimals[1])}f}"
    return f"{value:.15g}" if isinstance(value, float) else str(value).strip()


def find_student(student: Student, known: Sequence[Student]) -> int | None:
    """Which of the known students this is, by id, address, then name; None if it is none of them.

    >>> find_student(Student("", "12"), [Student("Ada", "11"), Student("Bob", "12")])
    1
    """
    for field in ("id", "email", "name"):
        value = plain_name(getattr(student, field))
        matches = [
            n for n, one in enumerate(known) if value and plain_name(getattr(one, field)) == value
        ]
        if len(matches) == 1:
            return matches[0]
    return None
