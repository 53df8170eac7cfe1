"""Registry of problem families: the solver, options, given names and exercises of each."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from regard import errors
from regard.errors import WorkError, suggestion
from regard.files import parse_toml, read_text
from regard.work.solution import Solution

# given names, exercises and questions of each family, and groups of names
DECLARATIONS = parse_toml(read_text(Path(__file__).with_name("families.toml")))
NAMES: dict[str, str] = DECLARATIONS.pop("names")

MatrixShape = tuple[int, int]
check_choice = partial(errors.check_choice, kind=WorkError)  # of an option
Solver = TypeVar("Solver", bound=Callable[..., Solution])


class ExerciseTemplate(NamedTuple):
    """One difficulty level of a family: what to draw at random, and which steps to ask for."""

    shapes: Mapping[str, MatrixShape]  # matrices to fill with random entries
    choices: Mapping[str, Sequence[Any]]  # given name or option: candidate values
    questions: Sequence[str]  # glob patterns of step names
    permutations: Mapping[str, MatrixShape] = {}  # weights that reorder columns and flip signs
    entries: Sequence[Any] = ()  # in place of those of the level


def expand_names(names: str) -> str:
    """Names separated by spaces, with those of a group in place of @GROUP.

    >>> expand_names("X @feed_forward")
    'X W_1 b_1 W_2 b_2 W_G b_G'
    """
    words = (expand_names(NAMES[x[1:]]) if x.startswith("@") else x for x in names.split())
    return " ".join(words)


def declared_steps(family: str, part: str, **names: object) -> list[tuple[str, str, str, str]]:
    """Steps that families.toml declares: name, rule, inputs and title of each.

    >>> declared_steps("rnn", "backward", t=2, p=1, preactivation="hs_2")[0][:3]
    ('dhs_2', 'tanh backward', 'dh_2 h_2')
    """
    rows = DECLARATIONS[family]["steps"][part]
    return [
        (name, rule, inputs, title)
        for name, rule, inputs, title in ([x.format(**names) for x in row] for row in rows)
    ]


def parse_shapes(text: str) -> dict[str, MatrixShape]:
    """Shapes in plain text; several letters after an underscore are several names.

    >>> parse_shapes("X 3x2, W_QK 2x2")
    {'X': (3, 2), 'W_Q': (2, 2), 'W_K': (2, 2)}
    """
    shapes: dict[str, MatrixShape] = {}
    for part in filter(None, text.split(", ")):
        *names, size = part.split()
        rows, columns = map(int, size.split("x"))
        for name in names:
            letter, _, suffixes = name.partition("_")
            shapes |= {f"{letter}_{x}" if x else letter: (rows, columns) for x in suffixes or [""]}
    return shapes


def _template(level: Mapping[str, Any], questions: str) -> ExerciseTemplate:
    shapes, permutations = (parse_shapes(level.get(key, "")) for key in ("shapes", "permutations"))
    others = ("shapes", "permutations", "entries", "questions")
    choices = {name: x for name, x in level.items() if name not in others}
    patterns = level.get("questions", questions).split()
    return ExerciseTemplate(shapes, choices, patterns, permutations, level.get("entries", ()))


@dataclass(frozen=True)
class Family:
    """A kind of problem: how it is solved, and what a problem file may contain."""

    name: str
    solve: Callable[..., Solution]
    options: tuple[str, ...]  # keyword-only parameters of `solve`
    given: str | None = None  # names under [given]; None where they depend on an option
    exercises: tuple[ExerciseTemplate, ...] = ()  # one per level; empty: no generator


FAMILIES: dict[str, Family] = {}


def family(name: str) -> Callable[[Solver], Solver]:
    """Register a solver as the family `name`, which families.toml declares.

    Its keyword-only parameters are the options. It is called with the names of given numbers
    checked, and without those that are None.
    """
    facts = DECLARATIONS[name]
    given = expand_names(facts["given"]) if "given" in facts else None
    required, layered = facts.get("required", "").split(), facts.get("layered", False)

    def register(solve: Solver) -> Solver:
        parameters = inspect.signature(solve).parameters.values()
        options = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

        @wraps(solve)
        def checked(matrices: Mapping[str, Any], **chosen: Any) -> Solution:
            if given is not None:
                check_given(name, matrices, given, layered=layered)
            matrices = {key: value for key, value in matrices.items() if value is not None}
            if missing := [key for key in required if key not in matrices]:
                needs, none = " and ".join(required), " and no ".join(missing)
                raise WorkError(f"given: needs {needs}, got no {none}")
            return solve(matrices, **chosen)

        questions = facts.get("questions", "*")
        templates = tuple(_template(level, questions) for level in facts.get("exercises", ()))
        FAMILIES[name] = Family(name, checked, options, given, templates)
        return cast(Solver, checked)

    return register


def exercise_families() -> list[str]:
    """Names of the families that `make_exercise` can generate.

    >>> "rnn" in exercise_families(), "proof" in exercise_families()
    (True, False)
    """
    return [name for name, record in FAMILIES.items() if record.exercises]


def check_given(label: str, given: Mapping[str, Any], names: str, *, layered: bool = False) -> None:
    """Raise a WorkError unless every given name is one that the family takes.

    Args:
        label: family name, for the message.
        given: the table to check.
        names: allowed names, separated by spaces.
        layered: allow a layer index at the end of each name (W_Q_L2).

    >>> check_given("attention", {"X": 1, "WQ": 2}, "X W_Q")
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: given: needs names that attention takes, got 'WQ'; try W_Q
    """
    known = names.split()
    for name in given:
        stem = re.sub(r"_L[1-9]\d*$", "", name) if layered else name
        if stem in known:
            continue
        pattern, number = re.sub(r"_[1-9]\d*$", "_#", stem), stem.rpartition("_")[2]
        if pattern == stem or pattern not in known:
            hint = _suggest_name(stem, known)
            raise WorkError(f"given: needs names that {label} takes, got {name!r}{hint}")
        previous = f"{pattern[:-1]}{int(number) - 1}{name.removeprefix(stem)}"
        if int(number) > 1 and previous not in given:
            raise WorkError(f"given: needs {previous} before {name}, got none")


def check_required(purpose: str, given: Mapping[str, Any], *names: str) -> None:
    """Raise a WorkError unless all names are given; `purpose` says what for.

    >>> check_required("a gru", {"x": 1}, "x", "W")
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: given: needs W for a gru, got none
    """
    if missing := [name for name in names if name not in given]:
        raise WorkError(f"given: needs {', '.join(missing)} for {purpose}, got none")


def check_integer(name: str, value: Any, minimum: int = 1) -> int:
    """The value of an option that must be a whole number.

    >>> check_integer("heads", 2)
    2
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise WorkError(f"{name}: needs a whole number from {minimum} on, got {value!r}")
    return value


def _suggest_name(name: str, known: list[str]) -> str:
    """The most similar known name, preferring the same first letter; else the whole list."""
    names = [candidate.replace("#", "1") for candidate in known]
    folded = {candidate.replace("_", "").lower(): candidate for candidate in names}
    exact = folded.get(name.replace("_", "").lower())
    if exact is not None:
        return f"; try {exact}"
    alike = [candidate for candidate in names if name and candidate[0].lower() == name[0].lower()]
    closest = max(alike, key=lambda other: SequenceMatcher(None, name, other).ratio(), default="")
    if SequenceMatcher(None, name, closest).ratio() > 0.4:
        return f"; try {closest}"
    return suggestion(name, names) or f"; try one of {', '.join(known)}"
