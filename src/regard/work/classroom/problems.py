"""A class: its students, a problem for each of them, and the points of each step, in a folder."""

import hmac
import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import FileError, WorkError
from regard.files import make_folder, parse_json, read_text, write_text
from regard.work.classroom.roster import Student, file_names, find_student, student_key
from regard.work.families.registry import FAMILIES
from regard.work.making import MAX_VARIANTS, Exercise, make_exercise
from regard.work.problem import solve
from regard.work.solution import Step

CLASS_FILE = "class.json"
MAX_POINTS = 1_000


class Assignment(NamedTuple):
    """A student's problem; its number stands in quizzes, its file name is that of the sheet."""

    student: Student
    number: int
    file: str
    exercise: Exercise
    points: dict[str, float]  # by step asked for, in order

    @property
    def steps(self) -> list[Step]:
        """The steps asked for."""
        return [step for step in self.exercise.solution.steps if step.name in self.points]

    @property
    def total(self) -> float:
        """The points of all steps."""
        return sum(self.points.values())


@dataclass
class Class:
    """The problems of a class, from one family at one level with the same options.

    Who has the secret can draw the problems again; `class.json` has it, and the problems too.
    """

    family: str
    level: int = 1
    points: Mapping[str, float] = field(default_factory=dict)  # by step, as patterns; "" for all
    options: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    assignments: list[Assignment] = field(default_factory=list)

    @property
    def code(self) -> str:
        """Marks the problems of this class in a quiz, before their number."""
        return hmac.digest(self.secret.encode(), b"code", "sha256").hex()[:6]

    def add(self, students: Sequence[Student]) -> list[Assignment]:
        """Draw a problem for each student who has none; returns these."""
        known = [one.student for one in self.assignments]
        new = [one for one in students if find_student(one, known) is None]
        names = file_names([*known, *new])[len(known) :]
        if not self.assignments:
            self.options = self._class_options()
        taken = {_numbers(one.exercise) for one in self.assignments}
        before = len(self.assignments)
        for student, file in zip(new, names, strict=True):
            exercise = next(self._draw(student_key(student), taken), None)
            if exercise is None:
                most, got = len(taken), len(known) + len(new)
                raise WorkError(
                    f"roster: needs at most {most} students, as many as {self.family} has problems "
                    f"at level {self.level}, got {got}; try another level"
                )
            taken.add(_numbers(exercise))
            number = len(self.assignments) + 1
            self.assignments.append(self._assign(student, number, file, exercise))
        return self.assignments[before:]

    def _class_options(self) -> dict[str, Any]:
        """Options that all problems have, so that all have the same steps: given, or drawn once."""
        one = next(self._draw("", set(), self.options))
        drawn = FAMILIES[self.family].exercises[self.level - 1].choices
        names = [name for name in drawn if name in FAMILIES[self.family].options]
        return {**{name: one.problem.get(name, "none") for name in names}, **self.options}

    def _draw(
        self, key: str, taken: set[str], options: Mapping[str, Any] | None = None
    ) -> Iterator[Exercise]:
        """Problems of a key that are not taken."""
        digest = hmac.digest(self.secret.encode(), key.encode(), "sha256")
        seed, options = int.from_bytes(digest[:6], "big"), options or self.options
        for variant in range(1, MAX_VARIANTS):
            one = make_exercise(self.family, seed, self.level, variant, options)
            if _numbers(one) not in taken:
                yield one

    def _assign(self, student: Student, number: int, file: str, one: Exercise) -> Assignment:
        return Assignment(student, number, file, one, step_points(one, self.points))

    def save(self, folder: str | Path) -> Path:
        """Write `class.json`, which has all that marking needs."""
        students = [
            {**one.student._asdict(), "file": one.file, "problem": one.exercise.problem}
            | {"questions": list(one.points)}
            for one in self.assignments
        ]
        facts = {"family": self.family, "level": self.level, "title": self.title}
        facts |= {"secret": self.secret, "points": dict(self.points), "options": dict(self.options)}
        text = json.dumps({**facts, "students": students}, ensure_ascii=False)
        return write_text(make_folder(folder) / CLASS_FILE, text + "\n")


def load_class(folder: str | Path) -> Class:
    """Read a class from the folder that `regard class make` wrote.

    >>> load_class("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs a class.json, which `regard class make` writes, got none
    """
    file = Path(folder) / CLASS_FILE
    if not file.is_file():
        raise FileError(
            f"{folder}: needs a {CLASS_FILE}, which `regard class make` writes, got none"
        )
    try:
        facts = parse_json(read_text(file))
        one = Class(**{name: x for name, x in facts.items() if name != "students"})
        for n, x in enumerate(facts["students"], 1):
            student = Student(x["name"], x["id"], x["email"])
            exercise = Exercise(x["file"], x["problem"], solve(x["problem"]), tuple(x["questions"]))
            one.assignments.append(one._assign(student, n, x["file"], exercise))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{file}: needs what `regard class make` wrote, got {error}") from error
    return one


def make_class(
    folder: str | Path, changed: Class, students: Sequence[Student], secret: str | None = None
) -> Class:
    """The class of a folder with these students; those it has keep their problems.

    Args:
        folder: where the class is, or will be.
        wanted: a class without students; a folder that exists has to agree with it.
        students: of the roster.
        secret: to draw the problems from, in place of a new one.
    """
    changed.secret = secret or changed.secret
    if not (Path(folder) / CLASS_FILE).is_file():
        changed.add(students)
        return changed
    old = load_class(folder)
    for name in ("family", "level"):
        was, now = getattr(old, name), getattr(changed, name)
        if was != now:
            raise WorkError(
                f"{name}: needs to be {was} as in {folder}, got {now}; try another folder"
            )
    if secret is not None and secret != old.secret:
        raise WorkError(f"secret: needs to be that of {folder}, got another; try another folder")
    if any(old.options.get(name) != x for name, x in changed.options.items()):
        raise WorkError(f"set: needs the options of {folder}, {dict(old.options)}, got others")
    old.points, old.title = changed.points or old.points, changed.title or old.title
    old.add(students)
    old.assignments = [
        one._replace(points=step_points(one.exercise, old.points)) for one in old.assignments
    ]
    return old


def step_points(exercise: Exercise, points: Mapping[str, float]) -> dict[str, float]:
    """Points by step: 1 for each that an exercise asks for, or those of a pattern; 0 is not asked.

    >>> one = make_exercise("rnn", seed=1, level=2)
    >>> step_points(one, {"h_2": 3, "hs_*": 0.5})
    {'hs_1': 0.5, 'h_1': 1, 'hs_2': 0.5, 'h_2': 3}
    """
    names = [step.name for step in exercise.solution.steps]
    for pattern in points:
        if pattern and not any(fnmatchcase(name, pattern) for name in names):
            raise WorkError(f"points: needs steps, {', '.join(names)}, got {pattern!r}")
    result: dict[str, float] = {}
    for name in names:
        worth = points.get("", 1) if name in exercise.questions else 0
        for pattern, value in points.items():
            worth = value if pattern and fnmatchcase(name, pattern) else worth
        if worth:
            result[name] = worth
    if not result:
        raise WorkError(f"points: needs a step with points among {', '.join(names)}, got none")
    return result


def parse_points(text: str) -> dict[str, float]:
    """Points of steps, "A=2, H=3", or of each step, "2".

    >>> parse_points("2"), parse_points("A=2, h_*=0.5")
    ({'': 2}, {'A': 2, 'h_*': 0.5})
    """
    points: dict[str, float] = {}
    for part in filter(None, (x.strip() for x in text.split(","))):
        name, _, number = part.rpartition("=")
        value = float(number) if re.fullmatch(r"\s*\d+(\.\d+)?\s*", number) else math.nan
        if not 0 <= value <= MAX_POINTS:
            raise WorkError(
                f"points: needs STEP=NUMBER from 0 to {MAX_POINTS}, got {part!r}; try A=2"
            )
        points[name.strip()] = int(value) if value == int(value) else value
    return points


def format_points(points: float) -> str:
    """Points in words.

    >>> format_points(1), format_points(2.5)
    ('1 point', '2.5 points')
    """
    return f"{points:g} point{'' if points == 1 else 's'}"


def _numbers(one: Exercise) -> str:
    """What two problems differ in."""
    return json.dumps(one.problem, sort_keys=True)
