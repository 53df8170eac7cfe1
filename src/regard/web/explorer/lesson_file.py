"""Lessons: Markdown files with places for queries, which the lesson view walks through.

    lesson = parse_lesson("# Scores\\n## One score\\nIt is {{lesson.attention row[key].dot}}.")
    lesson.steps[0].title, lesson.steps[0].text[0].spans[1][1].query

A file is text: HTML in it stays text, and a place names a query of the explorer, nothing else.
docs/look/lessons.md has the format.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import ConfigError, FileError, RegardError, check_choice, suggestion
from regard.formulas import parse_formula
from regard.web.explorer.explorer import find_query

FOLDER = Path(__file__).parent / "lessons"
MAX_BYTES, MAX_STEPS, MAX_LINE, MAX_LESSONS = 64_000, 40, 2_000, 100
MAX_SHOWN, MAX_OPTIONS, MAX_OPTION, MAX_FORMULA = 6, 12, 24, 300
FENCE, SUFFIX = "```regard", ".md"
# of a place, not of its query
OPTIONS = ("as", "rows", "columns", "title", "mark", "size", "first", "last")
FORMS = ("bars", "map", "numbers", "tokens", "table", "grid", "steps", "line", "picture")
REDUCTIONS = ("largest", "smallest", "count")
CHOICES = ("query", "key", "head", "site")  # that a step may offer, by the model's own names
# what a link may say; a place and a `start` line use the same names
STATE = (
    "model", "text", "to", "target", "site", "head", "query", "key", "position", "sample", "token",
    "message", "cell", "unit", "sequence", "file",
)  # fmt: skip
READS = ("text", "image", "sound", "nothing")
_PATH = re.compile(r"[a-z]\w*(?:\.[a-z]\w*|\[(?:-?\d{1,6}|:|[A-Za-z][\w. ]*)\])*")
_INLINE = re.compile(
    r"\{\{(?P<value>.{1,300}?)\}\}|\*\*(?P<strong>.+?)\*\*|\*(?P<em>.+?)\*|`(?P<code>.+?)`"
)
_SLOT = re.compile(r"\{(\w*)\}")


@dataclass(frozen=True)
class Place:
    """A number, table or picture of a query: `lesson.attention row.dot rows=row.token as=bars`."""

    query: str
    path: str
    reduction: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)


class Paragraph(NamedTuple):
    """A paragraph or an entry of a list, as spans: ("strong", text), ("value", place) …"""

    kind: str
    spans: list[tuple[str, "str | Place"]]


@dataclass(frozen=True)
class Question:
    """A question with the place or the text of its answer; {} choices are those of the answer."""

    question: Paragraph
    answer: Place | str
    choices: tuple[str, ...] = ()
    because: Paragraph | None = None


@dataclass(frozen=True)
class Change:
    """What a step lets the reader change: a name of CHOICES, or values of its own."""

    name: str
    label: str = ""
    options: tuple[str, ...] = ()
    start: str = ""


@dataclass(frozen=True)
class Step:
    """One screen."""

    title: str
    text: tuple[Paragraph, ...] = ()
    formulas: tuple[str, ...] = ()  # MathML
    shown: tuple[Place, ...] = ()
    change: Change | None = None
    question: Question | None = None

    @property
    def places(self) -> list[Place]:
        """Every place of the step."""
        paragraphs, answers = list(self.text), []
        if values := self.question:
            paragraphs += filter(None, (values.question, values.because))
            answers = [values.answer] if isinstance(values.answer, Place) else []
        inline = [x for p in paragraphs for _, x in p.spans if isinstance(x, Place)]
        return [*inline, *self.shown, *answers]


@dataclass(frozen=True)
class Lesson:
    """A lesson: its title, what it starts with, and its steps."""

    name: str
    title: str
    summary: str
    reads: str
    starts: tuple[Mapping[str, str], ...]
    steps: tuple[Step, ...]


@cache
def included_lessons() -> dict[str, Lesson]:
    """The lessons that come with Regard, by name.

    >>> "attention" in included_lessons()
    True
    """
    return read_lessons(FOLDER)


def read_lessons(path: Path) -> dict[str, Lesson]:
    """The lessons of a file or of a folder of files, by name."""
    if not path.exists():
        raise FileError(f"{path}: needs a lesson or a folder of them, got nothing there")
    files = [path] if path.is_file() else sorted(path.glob(f"*{SUFFIX}"))[: MAX_LESSONS + 1]
    if not files or len(files) > MAX_LESSONS or files[0].suffix != SUFFIX:
        raise FileError(
            f"{path}: needs 1 to {MAX_LESSONS} files that end in {SUFFIX}, got {len(files)} files"
        )
    return {file.stem: read_lesson(file) for file in files}


def read_lesson(path: Path) -> Lesson:
    """The lesson of a file; an error names its line."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"{path}: needs a file that can be read, got {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise FileError(f"{path}: needs at most {MAX_BYTES} bytes, got more; try two lessons")
    try:
        return parse_lesson(content.decode("utf-8-sig"), path.stem, str(path))
    except UnicodeDecodeError:
        raise FileError(f"{path}: needs a text in UTF-8, got other bytes") from None


def parse_lesson(text: str, name: str = "lesson", file: str = "lesson") -> Lesson:
    r"""Parse a lesson.

    >>> parse_lesson("# A\n\n## B\n\nText.\n\n```regard\nshow: texts output\n```")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: lesson, line 8: query: needs a known name, got 'texts'; try text
    """
    title, parts, number = "", [_Part("", 1)], 0
    fenced = 0  # the line of a block that is open
    try:
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MAX_LINE:
                raise ConfigError(f"line: needs at most {MAX_LINE} characters, got {len(line)}")
            words = line.strip()
            if fenced:
                fenced = 0 if words == "```" else fenced
                parts[-1].settings += [(number, words)] if fenced and words else []
            elif words == FENCE:
                fenced = number
            elif line.startswith("## "):
                parts.append(_Part(words[3:].strip(), number))
            elif line.startswith("# ") and not title:
                title = words[2:].strip()
            else:
                parts[-1].lines.append((number, words))
        if fenced:
            raise ConfigError(f"block: needs a line ``` at its end, got none from line {fenced} on")
        if not title or not 2 <= len(parts) <= MAX_STEPS + 1:
            got = f"{'a' if title else 'no'} title and {len(parts) - 1} steps"
            raise ConfigError(f"lesson: needs '# Title' and 1 to {MAX_STEPS} '## Step', got {got}")
    except ConfigError as error:
        where = f"{file}, line {number}"
        raise FileError(f"{where}: {error}") from None
    reads, starts = _header(parts[0], file)
    summary = " ".join(x for _, x in parts[0].lines if x)
    steps = tuple(_step(part, file) for part in parts[1:])
    return Lesson(name, title, summary, reads, starts, steps)


@dataclass
class _Part:
    """Lines under one heading, each with its number."""

    title: str
    line: int
    lines: list[tuple[int, str]] = field(default_factory=list)
    settings: list[tuple[int, str]] = field(default_factory=list)


def _setting(line: str, known: tuple[str, ...]) -> tuple[str, str]:
    """The name and the value of a line of a block."""
    name, colon, value = (x.strip() for x in line.partition(":"))
    if not colon or name not in known or not value:
        names, close = ", ".join(known), suggestion(name, known)
        raise ConfigError(f"block: needs NAME: VALUE with one of {names}, got {line[:60]!r}{close}")
    return name, value


@contextmanager
def located(file: str, number: int) -> Iterator[None]:
    """Errors inside say where in the file."""
    where = f"{file}, line {number}"
    try:
        yield
    except RegardError as error:
        raise FileError(f"{where}: {error}") from None
    except RecursionError:
        raise FileError(f"{where}: formula: needs fewer brackets, got too many") from None


def _header(part: _Part, file: str) -> tuple[str, tuple[Mapping[str, str], ...]]:
    """What the lesson reads, and the states it starts with."""
    reads, starts = "text", []
    for number, line in part.settings:
        with located(file, number):
            name, value = _setting(line, ("reads", "start"))
            if name == "reads":
                check_choice("reads", value, READS)
                reads = value
            else:
                starts.append(dict(map(_pair, _split(value.replace("\\n", "\n")))))
                for key in starts[-1]:
                    check_choice("start", key, STATE)
    return reads, tuple(starts)


KEYS = ("formula", "show", "change", "question", "answer", "choices", "because")


def _step(part: _Part, file: str) -> Step:
    """A step of its heading, its text and its block."""
    step = Step(part.title, _paragraphs(part, file))
    values: dict[str, Any] = {}
    for number, line in part.settings:
        with located(file, number):
            name, value = _setting(line, KEYS)
            if name == "formula":
                xml = parse_formula(value[:MAX_FORMULA], True).mathml(display=True)
                step = replace(step, formulas=(*step.formulas, xml))
            elif name == "show":
                step = replace(step, shown=(*step.shown, parse_place(value)))
            elif name == "change":
                step = replace(step, change=_change(value))
            elif name == "choices":
                values[name] = tuple(x.strip() for x in value.split("|"))[:MAX_OPTIONS]
            elif name == "answer":
                quoted = value[0] == value[-1] == '"' and len(value) > 1
                values[name] = value[1:-1] if quoted else parse_place(value)
            else:
                values[name] = _paragraph(value)
    with located(file, part.line):
        if (count := len(step.shown)) > MAX_SHOWN:
            raise ConfigError(f"show: needs at most {MAX_SHOWN} in a step, got {count}")
        if values and not {"question", "answer"} <= values.keys():
            raise ConfigError(
                "question: needs an answer beside it, and an answer its question; got one"
            )
    return replace(step, question=Question(**values)) if values else step


def _change(text: str) -> Change:
    """`change: head`, or `change: β × = 0 0.5 *1 2`; the asterisk marks the start."""
    label, equals, values = text.partition("=")
    if not equals:
        name = text.split()[0]
        check_choice("change", name, CHOICES)
        return Change(name, text.removeprefix(name).strip())
    options = values.split()
    if not 2 <= len(options) <= MAX_OPTIONS or max(map(len, options)) > MAX_OPTION:
        raise ConfigError(f"change: needs 2 to {MAX_OPTIONS} short values, got {values[:60]!r}")
    marked = [x[1:] for x in options if x[0] == "*"]
    plain = tuple(x.removeprefix("*") for x in options)
    return Change("value", label.strip(), plain, (marked or plain)[0])


def parse_place(text: str) -> Place:
    """Parse `[largest] QUERY PATH [rows=PATH] [as=FORM] [name=value …]`.

    >>> place = parse_place("largest text.map map[query] rows=key_tokens")
    >>> place.query, place.reduction, place.options
    ('text.map', 'largest', {'rows': 'key_tokens'})
    """
    words = _split(text)
    plain = [x for x in words if "=" not in x]
    reduction = plain.pop(0) if plain and plain[0] in REDUCTIONS else ""
    named = dict(_pair(x) for x in words if "=" in x)
    if len(plain) != 2:
        raise ConfigError(f"place: needs QUERY PATH and name=value, got {text[:60]!r}")
    query, path = find_query(plain[0]), plain[1]
    options = {k: x for k, x in named.items() if k in OPTIONS}
    params = {k: x for k, x in named.items() if k not in OPTIONS}
    known = query.request.model_fields
    for name in params:
        if name not in known:
            raise ConfigError(
                f"{query.name}: needs parameters such as {', '.join(known)}, got {name!r}"
                f"{suggestion(name, [*known, *OPTIONS])}"
            )
    for one in (path, options.get("rows", path), options.get("columns", path)):
        if "," not in one and not _PATH.fullmatch(one):
            raise ConfigError(f"path: needs names and [indices] such as row[key].dot, got {one!r}")
    check_choice("as", options.get("as", FORMS[0]), FORMS)
    for slot in (x for value in named.values() for x in _SLOT.findall(value)):
        check_choice("{}", slot, (*STATE, "value"))
    return Place(query.name, path, reduction, options, params)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise ConfigError(f"place: needs closed quotes, got {text[:60]!r}") from None


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise ConfigError(f"start: needs NAME=VALUE, got {word[:40]!r}; try model=phrases")
    return name, value


def _paragraphs(part: _Part, file: str) -> tuple[Paragraph, ...]:
    """Paragraphs and list entries; an error names the line where one begins."""
    groups: list[list[tuple[int, str]]] = [[]]
    for number, line in part.lines:
        groups += [[]] if not line or line.startswith("- ") else []
        groups[-1] += [(number, line)] if line else []
    paragraphs: list[Paragraph] = []
    for group in filter(None, groups):
        with located(file, group[0][0]):
            paragraphs.append(_paragraph(" ".join(x for _, x in group)))
    return tuple(paragraphs)


def _paragraph(text: str) -> Paragraph:
    r"""Spans of a paragraph; what is no **strong**, *em*, `code` or {{place}} is text.

    >>> _paragraph("- A <b>bold</b> *move*")
    Paragraph(kind='li', spans=[('', 'A <b>bold</b> '), ('em', 'move')])
    """
    kind, text = ("li", text[2:]) if text.startswith("- ") else ("p", text)
    spans, at = list[tuple[str, str | Place]](), 0
    for match in _INLINE.finditer(text):
        style, content = match.lastgroup or "", match[match.lastgroup or 0]
        spans.append(("", text[at : match.start()]))
        spans.append((style, parse_place(content) if style == "value" else content))
        at = match.end()
    return Paragraph(kind, [(style, x) for style, x in [*spans, ("", text[at:])] if x])
