"""Registry of problem families: the solver, options, given names and exercises of each."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

from regard.errors import WorkError, suggestion
from regard.work.solution import Solution

# given names that several families share; `#` stands for 1, 2, 3 … without a gap
PROJECTION_NAMES = "W_Q W_K W_V b_Q b_K b_V"
ATTENTION_NAMES = f"X Q K V {PROJECTION_NAMES} B rel β"
HEAD_NAMES = f"{PROJECTION_NAMES} W_Q_# W_K_# W_V_# b_Q_# b_K_# b_V_# W_O b_O"
FEED_FORWARD_NAMES = "W_1 b_1 W_2 b_2 W_G b_G"
BLOCK_NAMES = (
    f"{HEAD_NAMES} {FEED_FORWARD_NAMES} gamma_1 beta_1 gamma_2 beta_2 γ_1 β_1 γ_2 β_2 B B_# rel"
)
CROSS_NAMES = "U_Q U_K U_V U_O U_Q_# U_K_# U_V_# b_U_Q b_U_K b_U_V b_U_O b_U_Q_# b_U_K_# b_U_V_#"

MatrixShape = tuple[int, int]
Solver = TypeVar("Solver", bound=Callable[..., Solution])


class ExerciseTemplate(NamedTuple):
    """One difficulty level of a family: what to draw at random, and which steps to ask for."""

    shapes: Mapping[str, MatrixShape] = {}  # matrices to fill with random entries
    choices: Mapping[str, tuple[Any, ...]] = {}  # given name or option: candidate values
    questions: tuple[str, ...] = ("*",)  # glob patterns of step names


def draw(shapes: str = "", /, **choices: tuple[Any, ...]) -> ExerciseTemplate:
    """A template from shapes in plain text; `choices` are values of given names and options.

    >>> draw("X 3x2, W_QK 2x2", scale=(1,)).shapes
    {'X': (3, 2), 'W_Q': (2, 2), 'W_K': (2, 2)}
    """
    parsed: dict[str, MatrixShape] = {}
    for part in filter(None, shapes.split(", ")):
        *names, size = part.split()
        rows, columns = map(int, size.split("x"))
        for name in names:
            letter, _, suffixes = name.partition("_")
            parsed |= {f"{letter}_{x}" if x else letter: (rows, columns) for x in suffixes or [""]}
    return ExerciseTemplate(parsed, choices)


@dataclass(frozen=True)
class Family:
    """A kind of problem: how it is solved, and what a problem file may contain.

    >>> FAMILIES["rotary"].options
    ('scale', 'mask')
    """

    name: str
    solve: Callable[..., Solution]
    options: tuple[str, ...]  # keyword-only parameters of `solve`
    given: str | None = None  # names under [given]; None where they depend on an option
    exercises: tuple[ExerciseTemplate, ...] = ()  # one per level; empty: no generator


FAMILIES: dict[str, Family] = {}


def family(
    name: str,
    *,
    given: str | None = None,
    required: str = "",
    layered: bool = False,
    exercises: tuple[ExerciseTemplate, ...] = (),
    questions: tuple[str, ...] = (),
) -> Callable[[Solver], Solver]:
    """Register a solver as the family `name`; its keyword-only parameters are the options.

    The solver is called with the names checked and without those that are None.

    Args:
        name: `family` of a problem file.
        given: names that may stand under `[given]`, separated by spaces; `W_Q_#` stands for
            W_Q_1, W_Q_2 … without a gap. None where the solver checks them itself.
        required: names that must stand there.
        layered: allow a layer index at the end of each name (W_Q_L2).
        exercises: templates of levels 1, 2 and 3 for `make_exercise`.
        questions: steps that all of them ask for, as glob patterns; those of each if empty.
    """

    def register(solve: Solver) -> Solver:
        parameters = inspect.signature(solve).parameters.values()
        options = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

        @wraps(solve)
        def checked(matrices: Mapping[str, Any], **chosen: Any) -> Solution:
            if given is not None:
                check_given(name, matrices, given, layered=layered)
            matrices = {key: value for key, value in matrices.items() if value is not None}
            if missing := [key for key in required.split() if key not in matrices]:
                needs, none = " and ".join(required.split()), " and no ".join(missing)
                raise WorkError(f"given: needs {needs}, got no {none}")
            return solve(matrices, **chosen)

        templates = tuple(t._replace(questions=questions or t.questions) for t in exercises)
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


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise a WorkError unless the value of an option is one of its choices.

    >>> check_choice("norm", "mid", ("pre", "post"))
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: norm: needs pre or post, got 'mid'
    """
    known = tuple(choices)
    if value not in known:
        rule, hint = " or ".join(known), ""
        if len(known) > 2:
            rule, hint = f"one of {', '.join(known)}", suggestion(str(value), known)
        raise WorkError(f"{name}: needs {rule}, got {value!r}{hint}")


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
